"""Explanations against partitions in plain Python: what they say is skipped, read and found by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.stream import StreamConfig
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.plan import FETCH_S, READ_BYTES_S
from overlay.index.skip.probes import Answer
from overlay.subject import Pattern
from overlay.view.account import list_advice
from overlay.view.analysis import Matches
from overlay.view.explanation import FOREIGN_RULE, Explanation, ReadConditions, Share, explain
from tests.index.partitions import Record, forget, load, say, seal, sql, stream

NOW = 1_700_000_000_000
SIZE = 1 << 20
PLACES = ("a.x", "a.y", "b.x")


def make_records(count: int, run: int = 1) -> list[Record]:
    """Subjects in runs; `n` rises."""
    return [Record(at, PLACES[at // run % len(PLACES)], 1_000 + at, say(n=at // 10)) for at in range(count)]


def cut(config: StreamConfig, records: Sequence[Record], size: int, holes: Sequence[int] = ()) -> list[Header]:
    """Chunks of `size` offsets, but for those of `holes`."""
    return [
        seal(config, records[at : at + size], at, at + size, bytes=SIZE)
        for number, at in enumerate(range(0, len(records) - size + 1, size))
        if number not in holes
    ]


def ask(config: StreamConfig, headers: Sequence[Header], end: int, first: int = 0, **wanted: object) -> Explanation:
    patterns = tuple(Pattern(text) for text in wanted.pop("subjects", ()))  # type: ignore[attr-defined]
    filter = sql(str(text), config) if (text := wanted.pop("sql", None)) else None
    question = ReadConditions(config, patterns, filter, **wanted)  # type: ignore[arg-type]
    return explain(question, [(("t", 0), load(config, headers), first, end)], NOW)


def test_shares_reading_and_time() -> None:
    config = stream(properties={"n": "long"}, index={"zones": ["n"]})
    records = make_records(1_000, run=100)
    found = ask(config, cut(config, records, 100), 1_000, subjects=["a.y"], sql="n > 50")
    runs = [records[at].subject for at in range(0, 1_000, 100)]
    reads = [at for at, subject in enumerate(runs) if subject == "a.y" and 100 * at + 99 >= 510]
    assert found.shares[Answer.NO] == Share(10 - len(reads), (10 - len(reads)) * SIZE)
    assert found.chunks == 10 and found.reading == Share(len(reads), len(reads) * SIZE)
    assert found.skips and found.requests == len(reads)
    assert found.seconds == pytest.approx(len(reads) * SIZE / READ_BYTES_S + len(reads) * FETCH_S)
    assert found.scan_seconds == pytest.approx(10 * SIZE / READ_BYTES_S + FETCH_S)
    assert sum(rule.refused for rule in found.rules) == 10 - len(reads)
    assert [rule.text for rule in found.rules] == ["subject a.y", "zone n in 51.."]
    assert found.rules[0].asked == 10 and found.rules[1].asked == 10 - found.rules[0].refused


def test_what_is_not_indexed_is_read_and_as_large_as_the_rest() -> None:
    config = stream()
    records = make_records(1_000, run=100)
    found = ask(config, cut(config, records, 100, holes=[2, 3]), 1_050, first=50, subjects=["b.z"])
    assert found.unindexed == 200 + 50
    assert found.shares[Answer.NO].chunks == 8 and found.reading.chunks == 0
    per_offset = 8 * SIZE / 750
    assert found.seconds == pytest.approx(250 * per_offset / READ_BYTES_S + found.requests * FETCH_S)
    strip = found.parts[0].draw("t-0", 20)
    assert strip.write(".-?#") == "...????............?"


def test_without_an_index_nothing_is_known() -> None:
    found = ask(stream(), [], 500, subjects=["a.x"])
    assert (found.chunks, found.unindexed, found.seconds, found.scan_seconds) == (0, 500, None, None)
    assert found.parts[0].draw("t-0", 5).write(".-?#") == "?????"
    (advice,) = list_advice(found)
    assert "overlay index build S" in advice.text


def test_an_empty_log() -> None:
    found = ask(stream(), [], 0, subjects=["a.x"])
    assert (found.chunks, found.unindexed, found.seconds) == (0, 0, 0.0)
    assert found.parts[0].draw("t-0", 5).write() == ""


def test_records_of_no_stream_are_a_rule_of_their_own() -> None:
    config = stream()
    records = [Record(at, None) for at in range(100)]
    found = ask(config, cut(config, records, 10), 100)
    assert [(rule.text, rule.asked, rule.refused) for rule in found.rules] == [(FOREIGN_RULE, 10, 10)]


def test_advice() -> None:
    config = stream(properties={"n": "long", "c": "string"}, index={"terms": ["c"]})
    records = make_records(400)
    headers = cut(config, records, 20)
    texts = [advice.text for advice in list_advice(ask(config, headers, 400, subjects=["a.x"]))]
    assert len(texts) == 1 and texts[0].startswith("nearly every chunk may hold")
    texts = [advice.text for advice in list_advice(ask(config, headers, 400, sql="n * n > 5"))]
    assert texts == ["headers can tell nothing of what is asked, so nothing is skipped (docs/skipping.md)"]
    first, *_ = list_advice(ask(config, headers, 400, sql="n > 5"))
    assert first.lines == ("index:", "  zones: [n]")
    first, *_ = list_advice(ask(config, [forget(header, "terms") for header in headers], 400, sql="c = 'x'"))
    assert first.text.startswith("20 of 20 chunks were made under an older config")
    first, *_ = list_advice(ask(config, headers[:10], 400, sql="c = 'x'"))
    assert first.text.startswith("200 offsets have no header yet")


def test_filters_that_are_too_full_are_pointed_out() -> None:
    config = stream(index={"bloom_bytes": 16})
    records = [Record(at, f"s.{at}") for at in range(400)]
    found = ask(config, [forget(header, "counts") for header in cut(config, records, 30)], 390, subjects=["s.7"])
    assert found.weakness > 0.05
    assert any("Raise index.bloom_bytes" in advice.text for advice in list_advice(found))


def test_predicted_false_positives_are_those_that_come() -> None:
    """Absent subjects, asked of filters that let some through: over many of them the sums agree."""
    config = stream(index={"bloom_bytes": 64})
    records = [Record(at, f"s.{at}") for at in range(6_000)]
    chunks = load(config, [forget(header, "counts") for header in cut(config, records, 60)])
    predicted = observed = 0.0
    for number in range(60):
        wanted = ReadConditions(config, (Pattern(f"s.{10_000 + number}"),))
        found = explain(wanted, [(("t", 0), chunks, 0, 6_000)], NOW)
        predicted += found.false_positives
        observed += found.shares[Answer.MAYBE].chunks
    assert observed > 100
    assert predicted == pytest.approx(observed, rel=0.25)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["a.x", "a.*", "*.x", "b.z"]), st.integers(1, 40))
def test_what_a_reading_finds(seed: int, pattern: str, width: int) -> None:
    """Chunks in vain, and the strip, against the records themselves; batches come in any pieces."""
    chance = random.Random(seed)
    config = stream()
    records = make_records(240, run=chance.choice([1, 7, 40]))
    headers = [
        header if chance.random() < 0.7 else forget(header, "counts")
        for header in cut(config, records, 20, holes=[chance.randrange(12)])
    ]
    found = ask(config, headers, 240, first=chance.randrange(30), subjects=[pattern])
    (part,) = found.parts
    passing = [r.offset for r in records if Pattern(pattern).matches(r.subject or "") and r.offset >= part.first]
    matches = Matches(found.parts, width)
    rest = list(passing)
    while rest:
        size = chance.randint(1, len(rest))
        matches.add(make_batch(rest[:size]))
        del rest[:size]
    matches.add(make_batch([3], topic="added-later"))
    assert matches.matched == len(passing) + 1
    spans = zip(part.chunks.first_offset.tolist(), part.chunks.next_offset.tolist(), strict=True)
    held = [any(low <= offset < high for offset in passing) for low, high in spans]
    maybe = (part.answers.levels == Answer.MAYBE).tolist()
    assert matches.count_in_vain() == sum(m and not h for m, h in zip(maybe, held, strict=True))
    strip = part.draw("t-0", width, matches.canvases[part.source]).write(".-?#")
    hit = {(offset - part.first) * len(strip) // (240 - part.first) for offset in passing}
    assert {at for at, log_position in enumerate(strip) if log_position == "#"} == hit


def make_batch(offsets: Sequence[int], topic: str = "t") -> pa.RecordBatch:
    count = len(offsets)
    columns = [pa.array([topic] * count), pa.array(np.zeros(count, np.int32)), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "offset"])
