"""The printed form of an explanation: a sheet, the rules, strips of the log, and advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from overlay.index.skip.probes import Answer
from overlay.match import Values

from .analysis import Observed
from .explanation import Explanation, ReadConditions, Rule
from .figures import show_bytes, show_count, show_seconds
from .stored import name_source
from .strip import MARKS, NAMES, PLAIN_MARKS, STYLES, WORDS, Strip, find_kinds
from .table import make_sheet, make_table

MOST_STRIPS = 16
_WEAK = 0.05
"""Share of false positives from which Bloom filters are called too small.

`auto` aims at a fifth of it.
"""
_FEW = 0.05
"""If less than this share of the bytes is skipped, skipping is called useless."""
_LATE = 0.05
"""If more than this share of the log has no headers, the advice says so."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice, and the YAML lines to put into the stream's file, if any."""

    text: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeliveringEngine:
    """What delivers a consumer: `name` is `service` or `spark`. `reason`: a sentence that names the Spark job and its
    application, or says that none has begun. `job`, `owner`: the job's name, and the id of the application. All three are ""
    for the service."""

    name: str
    reason: str = ""
    job: str = ""
    owner: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.reason}" if self.reason else self.name


def list_advice(found: Explanation) -> Iterator[Advice]:
    """Yield what the user can do to have more chunks skipped, or why nothing helps. Nothing if all is well."""
    name, missing = found.wanted.stream.name, found.missing
    if not found.chunks:
        yield Advice(found.reason or f"no chunk is indexed yet. A service does that, or `overlay index build {name}`")
    elif found.unindexed > _LATE * sum(part.end - part.first for part in found.parts):
        yield Advice(
            f"{show_count(found.unindexed)} offsets have no header yet and are read in any case; see `overlay index status"
            f" {name}`"
        )
    if found.outdated:
        yield Advice(
            f"{show_count(found.outdated)} of {show_count(found.chunks)} chunks were made under an older config and say less."
            f" A service makes them anew when it starts, and so does `overlay index build {name}`"
        )
    if missing.terms or missing.zones:
        named = ", ".join(dict.fromkeys((*missing.terms, *missing.zones)))
        yield Advice(
            f"headers would say more about {named} with these lines in the stream's file; then restart the service, which"
            " makes the index anew. It pays for values that are rare, come in clusters, or grow with time",
            tuple(missing.write(found.wanted.stream)),
        )
    elif not found.can_refuse:
        yield Advice("headers can tell nothing of what is asked, so nothing is skipped (docs/skipping.md)")
    yield from _judge_chunks(found)


def _judge_chunks(found: Explanation) -> Iterator[Advice]:
    refused, total = found.shares[Answer.NO], sum(share.bytes for share in found.shares.values())
    if found.can_refuse and found.chunks and refused.bytes < _FEW * total and not found.outdated:
        yield Advice(
            "nearly every chunk may hold what is asked for. An index helps where values come in clusters: order or partition"
            " the records by them"
        )
    elif refused.chunks and not found.skips:
        yield Advice("skipping would save too little: everything is read in a row, as without an index")
    if found.weakness > _WEAK and found.shares[Answer.MAYBE].chunks:
        yield Advice(
            f"the Bloom filters of the chunks that were not refused let {found.weakness:.0%} of what they do not hold through:"
            " there is more in a chunk than they have room for. Raise index.bloom_bytes, or lower index.chunk_records"
        )


def print_explanation(
    console: Console,
    found: Explanation,
    engine: DeliveringEngine | None,
    strips: Sequence[Strip],
    file: str,
    observed: Observed | None = None,
) -> None:
    """Print the output of `overlay explain`.

    `engine`: what delivers the consumer, None if a filter on a stream is explained. `strips`: one for each partition,
    from PartPlan.draw. `file`: the stream's config file, for the advice. `observed`: the results of --analyze, None
    without it.
    """
    # a consumer of the service is the rule, and needs no line
    row = [("engine", engine.text)] if engine is not None and engine.reason else []
    console.print(make_sheet(*row, *_describe_question(found)))
    console.print()
    table = make_table(console, "answer", right=("chunks", "bytes"))
    for answer, share in found.shares.items():
        table.add_row(Text(answer.name), show_count(share.chunks), show_bytes(share.bytes))
    console.print(table)
    if found.rules:
        console.print()
        table = make_table(console, "rule", right=("asked", "refused", "let through", "by chance"))
        for rule in found.rules:
            counts = map(show_count, (rule.asked, rule.refused, rule.passed))
            table.add_row(Text(rule.text), *counts, _show_few(rule.false_positives))
        console.print(table)
    console.print()
    console.print(make_sheet(*_describe_plan(found, observed)))
    print_strips(console, strips)
    for advice in list_advice(found):
        console.print()
        console.print(Text(advice.text), soft_wrap=True)
        if advice.lines:
            console.print(Text("\n".join(("", f"  # {file}", *(f"  {line}" for line in advice.lines)))), soft_wrap=True)


def _describe_question(found: Explanation) -> Iterator[tuple[str, str]]:
    wanted = found.wanted
    offsets = sum(part.end - part.first for part in found.parts)
    count = len(found.parts)
    yield (
        "stream",
        f"{wanted.stream.name}, {show_count(offsets)} offsets in {count} partition{'s' if count != 1 else ''}",
    )
    yield "subjects", ", ".join(pattern.text for pattern in wanted.patterns)
    yield "values", "" if wanted.values is None else ", ".join(_list_values(wanted.values))
    yield "filter", wanted.filter.text if wanted.filter else ""
    yield "since", _show_time(wanted.since)
    yield "until", _show_time(wanted.until)


def _list_values(values: Values) -> Iterator[str]:
    yield from sorted(values.wanted)
    if values.unfiltered:
        yield "records without a value"


def _describe_plan(found: Explanation, observed: Observed | None) -> Iterator[tuple[str, str]]:
    total = sum(share.bytes for share in found.shares.values())
    requests = (
        f" in {show_count(found.requests)} request{'' if found.requests == 1 else 's'}" if found.skips else " in a row"
    )
    reading = found.reading
    yield (
        "reads",
        f"{show_count(reading.chunks)} of {show_count(found.chunks)} chunks, {show_bytes(reading.bytes)} of"
        f" {show_bytes(total)},{requests}",
    )
    yield "not indexed", f"{show_count(found.unindexed)} offsets, read" if found.unindexed else ""
    yield (
        "by chance",
        f"{_show_few(found.false_positives)} chunks, as far as the chance of Bloom filters can be predicted",
    )
    if found.seconds is not None:
        yield "time", f"about {show_seconds(found.seconds)}; all of it about {show_seconds(found.scan_seconds)}"
    if observed is not None:
        yield "found", f"{show_count(observed.matched)} records, of {show_count(observed.scanned)} read"
        yield "in vain", f"{show_count(observed.in_vain)} chunks whose header said MAYBE and that held nothing"
        yield "took", show_seconds(observed.seconds)


def _show_few(number: float) -> str:
    """Return a number with up to two significant digits below 10, without decimals from 10 on.

    For example: `0`, `1e-05`, `0.004`, `3.4`, `12`, `1234`.
    """
    return f"{number:.0f}" if number == 0 or number >= 10 else f"{number:.2g}"


def _show_time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def print_strips(console: Console, strips: Sequence[Strip]) -> None:
    """Print a line for each of the first MOST_STRIPS strips that have cells, a legend, and how many
    more have cells. Print nothing if none has.
    """
    filled = [strip for strip in strips if strip.cells.size]
    if not filled:
        return
    shown = filled[:MOST_STRIPS]
    marks = MARKS if console.encoding.lower().startswith("utf") else PLAIN_MARKS
    width = max(len(strip.name) for strip in shown)
    console.print()
    for strip in shown:
        line = Text(f"{strip.name:<{width}}  ")
        for mark, kind in zip(strip.write(marks), strip.cells.tolist(), strict=True):
            line.append(mark, STYLES[kind])
        console.print(line, soft_wrap=True)
    legend = Text(" " * (width + 2))
    for kind in find_kinds(shown):
        legend.append(marks[kind], STYLES[kind]).append(f" {WORDS[kind]}   ")
    console.print(legend, soft_wrap=True)
    if len(filled) > MOST_STRIPS:
        console.print(Text(f"and {len(filled) - MOST_STRIPS} more partitions"), soft_wrap=True)


def describe_explanation(
    found: Explanation, engine: DeliveringEngine | None, strips: Sequence[Strip], observed: Observed | None
) -> dict[str, Any]:
    """Return the explanation as a JSON object. `engine`: as in `print_explanation`."""
    return {
        **_describe_wanted(found.wanted),
        "engine": None if engine is None else asdict(engine),
        "answers": {
            answer.name: {"chunks": share.chunks, "bytes": share.bytes} for answer, share in found.shares.items()
        },
        "rules": [_describe_rule(rule) for rule in found.rules],
        "reads": {"chunks": found.reading.chunks, "bytes": found.reading.bytes, "requests": found.requests},
        "skips": found.skips,
        "unindexed": found.unindexed,
        "outdated": found.outdated,
        "false_positives": found.false_positives,
        "seconds": found.seconds,
        "scan_seconds": found.scan_seconds,
        "missing": {
            "terms": list(found.missing.terms),
            "zones": list(found.missing.zones),
            "properties": dict(found.missing.declare),
        },
        "advice": [advice.text for advice in list_advice(found)],
        "strips": {strip.name: strip.write(PLAIN_MARKS) for strip in strips},
        "observed": None if observed is None else _describe_observed(observed),
    }


def describe_chunks(found: Explanation, width: int) -> dict[str, Any]:
    """Return the plan of a read as a JSON object for a page: of up to MOST_STRIPS partitions the strip of at most `width`
    cells, each with the name of its kind; what the kinds mean; and a text about all of it.
    """
    parts = []
    for part in found.parts[:MOST_STRIPS]:
        name = name_source(part.source)
        counts = {answer: int(np.count_nonzero(part.answers.levels == answer)) for answer in Answer}
        parts.append(
            {
                "partition": name,
                "first": part.first,
                "end": part.end,
                "cells": [NAMES[cell] for cell in part.draw(name, width).cells.tolist()],
                "text": f"{show_count(len(part.chunks))} chunks: {show_count(counts[Answer.NO])} have no match,"
                f" {show_count(counts[Answer.MAYBE])} may have some, in {show_count(counts[Answer.ALL])} all match;"
                f" {show_count(part.unindexed_offsets)} offsets are not indexed",
            }
        )
    rest = len(found.parts) - len(parts)
    text = [f"A read of the whole log fetches {show_count(found.reading.chunks)} of {show_count(found.chunks)} chunks."]
    text += [f"{rest} more partitions are not drawn."] if rest else []
    text += [f"{advice.text}." for advice in list_advice(found)]
    return {"partitions": parts, "kinds": dict(zip(NAMES, WORDS, strict=True)), "text": " ".join(text)}


def _describe_wanted(wanted: ReadConditions) -> dict[str, Any]:
    return {
        "stream": wanted.stream.name,
        "subjects": [pattern.text for pattern in wanted.patterns],
        "values": None if wanted.values is None else sorted(wanted.values.wanted),
        "match_unfiltered": None if wanted.values is None else wanted.values.unfiltered,
        "filter": wanted.filter.text if wanted.filter else None,
        "since": wanted.since,
        "until": wanted.until,
    }


def _describe_rule(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.text,
        "asked": rule.asked,
        "refused": rule.refused,
        "passed": rule.passed,
        "false_positives": rule.false_positives,
    }


def _describe_observed(observed: Observed) -> dict[str, Any]:
    return {
        "scanned": observed.scanned,
        "matched": observed.matched,
        "in_vain": observed.in_vain,
        "seconds": observed.seconds,
    }
