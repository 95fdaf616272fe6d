from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.config.consumer import FilterConfig
from overlay.config.stream import StreamConfig
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import plan
from overlay.index.skip.probes import Answer, Part
from overlay.index.skip.prune import evaluate
from overlay.match import choose_values
from overlay.subject import Pattern, escape_token
from tests.filter import strategies as some
from tests.index.partitions import Question, Record, forget, load, seal
from tests.index.strategies import Message, configs, filters

CASES = int(os.environ.get("OVERLAY_PLANS", "200"))

many = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

SUBJECTS = ("a", "b", "a.b", "a.b.c", "a.x.c", "b.b", "b.c.c.d")
PATTERNS = ("a", "a.>", "*.b", "a.*.c", "b.>", "*", "*.*.c", "a.b", "x.>", ">", "*.b.>")


@dataclass(frozen=True)
class Case:
    """A partition, cut into chunks, and a question. `chunks`: records of each; `headers`: what is known of some of them."""

    config: StreamConfig
    chunks: tuple[tuple[Record, ...], ...]
    headers: tuple[Header, ...]
    question: Question
    now: int
    later: int
    """When records are tested."""
    end: int


@st.composite
def records(draw: st.DrawFn, said: list[Message], config: StreamConfig, offset: int) -> Record:
    message = {section: dict(fields) for section, fields in draw(st.sampled_from(said)).items()}
    subject: str | None = draw(st.sampled_from(SUBJECTS))
    source = config.subject
    if source.header:
        message["properties"]["subject"] = subject
    elif source.template:
        carrier = message["application_properties"].get("carrier")
        subject = f"s.{escape_token(carrier.encode())}.k" if carrier else None
    time = draw(st.sampled_from((-1, 0, 5, 10, 50, some.NOW)))
    return Record(offset, subject, time, message, draw(st.sampled_from((None, b"u", b"v"))))


optional = st.none() | st.integers(-1, 60)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schema, config = draw(configs())
    # few, so that chunks have something in common
    said = draw(st.lists(some.messages(schema), min_size=1, max_size=4))
    chunks, headers, offset = [], [], draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 6))):
        first = offset
        offset += draw(st.integers(0, 2))
        chunk = []
        for _ in range(draw(st.integers(0, 3))):
            chunk.append(draw(records(said, config, offset)))
            offset += draw(st.integers(1, 2))
        after = max(offset, first + 1)
        offset = after
        chunks.append(tuple(chunk))
        size = draw(st.sampled_from((0, 100, 1 << 20, 100 << 20)))
        header = forget(
            seal(config, chunk, first, after, bytes=size),
            draw(st.sampled_from(("", "", "", "", "counts", "terms", "zones", "bloom"))),
        )
        match draw(st.sampled_from(("right", "right", "right", "right", "missing", "other"))):
            case "right":
                headers.append(header)
            case "other":
                # sealed under another rule for subjects, so other records were in the stream
                alien = seal(config, [], first, after, bytes=size)
                headers.append(
                    replace(
                        alien,
                        config_fingerprint=header.config_fingerprint ^ 1,
                        min_time=header.min_time,
                        max_time=header.max_time,
                    )
                )
    # one part or two: of many at once, one always refuses
    asked = draw(
        st.sampled_from(
            ("subject", "values", "filter", "filter", "filter", "window", "subject filter window", "values filter")
        )
    )
    question = Question()
    if "subject" in asked:
        patterns = draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2, unique=True))
        question = replace(question, patterns=tuple(map(Pattern, patterns)))
    if "values" in asked:
        values = draw(st.lists(st.sampled_from(("u", "v", "", "a.b", "w", "a b")), max_size=2))
        question = replace(question, values=tuple(values), match_unfiltered=draw(st.booleans()))
    if "filter" in asked:
        question = replace(question, filter=draw(filters(schema, config, said)))
    if "window" in asked:
        bounds = [draw(optional) for _ in range(4)]
        question = replace(question, since=bounds[0], until=bounds[1], start=bounds[2], stop=bounds[3])
    now = draw(st.sampled_from((0, 5, some.NOW)))
    later = now + draw(st.sampled_from((0, 1, 1000)))
    return Case(config, tuple(chunks), tuple(headers), question, now, later, offset)


def ask(case: Case) -> Any:
    question = case.question
    config = FilterConfig(values=question.values, match_unfiltered=question.match_unfiltered)
    conditions = derive(
        case.config, question.patterns, choose_values(config, case.config), question.filter,
        now=case.now, since=question.since, until=question.until, start=question.start, stop=question.stop,
    )  # fmt: skip
    chunks = load(case.config, case.headers)
    return chunks, evaluate(conditions, chunks)


@many
@given(cases(), st.data())
def test_answers_and_routes_are_those_of_a_full_scan(case: Case, data: st.DataObject) -> None:
    chunks, answers = ask(case)
    members = {
        row: [
            record
            for chunk in case.chunks
            for record in chunk
            if record.subject is not None and header.first_offset <= record.offset < header.next_offset
        ]
        for row, header in enumerate(case.headers)
    }

    def passes(part: Part, record: Record) -> bool:
        return case.question.passes(part, record, case.config, case.later)

    for row, inside in members.items():
        level, residual = answers.levels[row], Part(int(answers.residual[row]))
        if level == Answer.NO:
            assert not any(all(passes(part, record) for part in Part) for record in inside)
        else:
            assert (level == Answer.ALL) == (residual == Part(0))
            assert all(passes(part, record) for part in Part if part not in residual for record in inside)

    position = data.draw(st.integers(0, case.end + 1))
    stop = data.draw(st.integers(position, case.end + 2))
    route = plan(answers, chunks, position, stop, exactly=data.draw(st.booleans()))
    every = [record for chunk in case.chunks for record in chunk if record.subject is not None]
    found, at = [], position
    while (span := route.next(at)) is not None:
        assert at <= span.first_offset < span.next_offset <= stop
        found += [
            record.offset
            for record in every
            if span.first_offset <= record.offset < span.next_offset
            and all(passes(part, record) for part in Part if part in span.residual)
        ]
        at = data.draw(st.integers(span.first_offset + 1, span.next_offset)) if span.residual else span.next_offset
        found = [offset for offset in found if offset < at]
    wanted = [record.offset for record in every if position <= record.offset < stop]
    assert found == [r.offset for r in every if r.offset in wanted and all(passes(part, r) for part in Part)]
