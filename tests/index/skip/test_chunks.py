"""Chunks as arrays against a dict of headers; a million of them within their time and memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.pending.counts import Choice, Counts
from overlay.index.skip import bloom
from overlay.index.skip.bloom import NONE, Bloom
from overlay.index.skip.chunk_header import AddressCounts, Header
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import ConfigFingerprint, find_config_fingerprint
from overlay.index.skip.encode import encode, parse_values
from overlay.index.skip.terms import Term, as_hashes, property_term, value_term
from overlay.subject import Pattern
from tests.index import partitions
from tests.index.headers import any_blooms, any_bounds, ask_bloom, subjects

SCOPE = ConfigFingerprint(
    99,
    {"x": 1, "y": 2},
    {"d": 11, "l": 12, "s": 13},
    {"x": "long", "y": "string", "d": "double", "l": "long", "s": "string"},
)
TERMS = [value_term(b"v%d" % i) for i in range(12)] + [property_term(name, i) for name in "xy" for i in range(4)]
ROOT = Path(__file__).resolve().parents[3]


def make_bloom(terms: list[Term]) -> Bloom:
    return bloom.make(as_hashes(*dict.fromkeys(terms)))


@st.composite
def headers(draw: st.DrawFn, first: int, after: int) -> Header:
    counts = draw(st.none() | st.dictionaries(subjects, st.integers(1, 70_000), max_size=4))
    low = draw(st.integers(-1, 50))
    zones = {
        property: draw(any_bounds(SCOPE.types[name])) for name, property in SCOPE.zones.items() if draw(st.booleans())
    }
    return Header(
        "t", 0, first, after, draw(st.integers(70_000 * 4, 1 << 30)), sum((counts or {"": 3}).values()),
        draw(st.integers(0, 1 << 31)), low, low + 5 if low >= 0 else -1, draw(st.integers(0, 5)), draw(st.integers(-1, 9)),
        draw(st.booleans()), draw(st.sampled_from([99, 99, 99, 98])), draw(st.sampled_from([(), (1,), (1, 2), (2, 7)])),
        draw(st.lists(st.sampled_from(TERMS), max_size=8).map(make_bloom) | st.just(bloom.NONE)), counts, zones,
    )  # fmt: skip


@st.composite
def writes(draw: st.DrawFn) -> list[list[Header]]:
    """Headers in the order they were written, in blocks: mostly one behind the other, some again, grown, merged or cut."""
    found: list[list[Header]] = []
    end = 0
    for _ in range(draw(st.integers(0, 6))):
        block = []
        for _ in range(draw(st.integers(1, 4))):
            first = end + draw(st.sampled_from([0, 0, 0, 5])) if draw(st.integers(0, 3)) else draw(st.integers(0, end))
            after = first + draw(st.integers(1, 20))
            block.append(draw(headers(first, after)))
            end = max(end, after)
        found.append(block)
    return found


class Twin:
    """The newest headers by their offsets."""

    def __init__(self) -> None:
        self.headers: list[Header] = []

    def append(self, header: Header) -> None:
        apart = [
            one
            for one in self.headers
            if one.next_offset <= header.first_offset or header.next_offset <= one.first_offset
        ]
        self.headers = sorted([*apart, header], key=lambda one: one.first_offset)


def check_addresses(chunks: Chunks, current: list[Header]) -> None:
    lacking = [one for one in current if one.records > one.addressed]
    assert chunks.count_addresses() == AddressCounts(
        sum(one.records for one in current),
        sum(one.records - one.addressed for one in lacking),
        (lacking[-1].first_offset, lacking[-1].next_offset) if lacking else None,
    )


def check(chunks: Chunks, headers: list[Header]) -> None:
    assert len(chunks) == len(headers)
    for name in (
        "first_offset",
        "next_offset",
        "records",
        "addressed",
        "bytes",
        "min_time",
        "max_time",
        "epoch",
        "crc",
        "exact",
    ):
        assert getattr(chunks, name).tolist() == [getattr(header, name) for header in headers], name
    current = [header.config_fingerprint == 99 for header in headers]
    assert chunks.current.tolist() == current
    check_addresses(chunks, [one for one in headers if one.config_fingerprint == 99])
    for name, property in SCOPE.terms.items():
        assert chunks.covers(name).tolist() == [
            property in one.indexed and one.config_fingerprint == 99 for one in headers
        ]
    assert not chunks.covers("z").any()
    check_terms(chunks, headers)
    check_zones(chunks, headers)
    for pattern in ("a.>", "*", "b"):
        counts, known = chunks.subject_counts([Pattern(pattern)])
        assert known.tolist() == [one.config_fingerprint == 99 and one.subjects is not None for one in headers]
        for at in np.flatnonzero(known):
            mine = headers[at].subjects or {}
            assert counts[at] == sum(n for text, n in mine.items() if Pattern(pattern).matches(text))


def check_terms(chunks: Chunks, headers: list[Header]) -> None:
    def may_hold(header: Header, term: Term) -> bool:
        knows = header.config_fingerprint == 99 and (not term.property or SCOPE.terms[term.property] in header.indexed)
        return not knows or ask_bloom(header.bloom, term)

    for asked in ([TERMS[0]], TERMS[3:5], [TERMS[12], TERMS[1]], [TERMS[12], TERMS[16]], []):
        expected = [all(may_hold(header, term) for term in asked) for header in headers]
        assert chunks.might_contain(asked).tolist() == expected
        among = np.arange(len(headers)) % 2 == 0
        assert chunks.might_contain(asked, among).tolist() == [one and at % 2 == 0 for at, one in enumerate(expected)]


def check_zones(chunks: Chunks, headers: list[Header]) -> None:
    assert chunks.zone("z") is None
    for name, property in SCOPE.zones.items():
        expected = [header.zones.get(property) if header.config_fingerprint == 99 else None for header in headers]
        zone = chunks.zone(name)
        if zone is None:
            assert expected == [None] * len(headers)
            continue
        assert zone.type == SCOPE.types[name]
        assert zone.known.tolist() == [bounds is not None for bounds in expected]
        for at, bounds in enumerate(expected):
            if bounds is not None:
                assert (zone.has_null[at], zone.has_value[at]) == (bounds.has_null, bounds.min is not None)
                if bounds.min is not None:
                    assert (read(zone.min[at]), read(zone.max[at])) == (bounds.min, bounds.max)


def read(bound: Any) -> int | float:
    if isinstance(bound, np.ndarray):
        return int(bound[0]) << 64 | int(bound[1])
    number: int | float = bound.item()
    return number


@settings(max_examples=120, deadline=None)
@given(writes(), st.integers(0, 120), st.booleans())
def test_chunks_are_the_newest_headers(blocks: list[list[Header]], offset: int, cut: bool) -> None:
    chunks, twin = Chunks(SCOPE), Twin()
    for at, block in enumerate(blocks):
        if at % 2:
            chunks.extend(parse_values([encode(header)[1] for header in block]), np.arange(len(block)))
        else:
            for header in block:
                chunks.append(header)
        for header in block:
            twin.append(header)
    check(chunks, twin.headers)
    for place in (offset, 0, 60):
        holders = [i for i, one in enumerate(twin.headers) if one.first_offset <= place < one.next_offset]
        assert chunks.find(place) == (holders[0] if holders else -1)
    if cut:
        chunks.truncate(offset)
        twin.headers = [one for one in twin.headers if one.next_offset <= offset]
    else:
        chunks.drop(offset)
        twin.headers = [one for one in twin.headers if one.next_offset > offset]
    check(chunks, twin.headers)
    for header in blocks[0] if blocks else []:
        again = replace(header, first_offset=header.first_offset + 500, next_offset=header.next_offset + 500)
        chunks.append(again)
        twin.append(again)
    check(chunks, twin.headers)


def make(first: int, terms: list[Term], counts: dict[str, int] | None = None) -> Header:
    return Header("t", 0, first, first + 1, 5, 5, 1, 1, 2, 0, 0, True, 99, (), make_bloom(terms), counts)


def test_what_is_dropped_is_given_back() -> None:
    chunks = Chunks(SCOPE)
    values = [encode(make(at, [TERMS[at % 12]], {f"s.{at % 12}": 5}))[1] for at in range(5000)]
    chunks.extend(parse_values(values), np.arange(5000))
    before = chunks.nbytes
    for at in range(0, 4900, 100):
        chunks.drop(at)
        assert chunks.first_offset[0] == at
        assert bool(chunks.might_contain([TERMS[at % 12]])[0])
    assert chunks.nbytes < before / 2


def test_filters_beyond_the_budget_are_folded() -> None:
    """Fewer bytes, more found by chance, nothing lost."""
    many = [[value_term(b"%d.%d" % (at, i)) for i in range(100 if at % 2 else 8)] for at in range(200)]
    chunks, plenty = Chunks(SCOPE, bloom_budget=8_000), Chunks(SCOPE)
    for at, terms in enumerate(many):
        for one in (chunks, plenty):
            one.append(make(at, terms))
    assert plenty._blooms.used > 12_000 > 8_000 >= chunks._blooms.used
    assert all(chunks.might_contain([term])[at] for at, terms in enumerate(many) for term in terms)
    asked = [value_term(b"other %d" % i) for i in range(100)]
    found, fewer = (sum(int(one.might_contain([term]).sum()) for term in asked) for one in (chunks, plenty))
    assert fewer < found < 100 * 200 / 2


def test_counts_beyond_the_limit_of_subjects_are_not_known() -> None:
    counts = Counts(limit=10)
    for at in range(4):
        headers = [make(0, [], {f"s.{at}.{i}.{j}": i + 1 for j in range(2)}) for i in range(3)]
        block = parse_values(
            [
                encode(replace(header, addressed=sum((header.subjects or {}).values()), records=9))[1]
                for header in headers
            ]
        )
        known = counts.add(block, np.arange(3), np.ones(3, np.bool_))
        assert known.tolist() == [[True] * 3, [True, True, False], [False] * 3, [False] * 3][at]
    assert counts.count(Choice([Pattern(">")]).learn(counts.subjects), 0, 12).tolist() == [2, 4, 6, 2, 4] + [0] * 7
    assert counts.count(Choice([Pattern("s.0.>")]).learn(counts.subjects), 1, 12).tolist() == [4, 6, *[0] * 9]


def test_counts_beyond_the_bytes_of_subjects_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary that is full is emptied, and gives its codes to other subjects."""
    monkeypatch.setattr("overlay.subject.dictionary.LIMIT_BYTES", 40)
    counts, known = Counts(), list[bool]()
    for at in range(4):
        header = replace(make(0, [], {f"s.{at}.long.subject": 1}), addressed=1, records=1)
        known += counts.add(parse_values([encode(header)[1]]), np.arange(1), np.ones(1, np.bool_)).tolist()
    assert known == [True, True, False, False]
    assert counts.subjects == ["s.0.long.subject", "s.1.long.subject"]
    assert counts.count(Choice([Pattern("s.0.>")]).learn(counts.subjects), 0, 4).tolist() == [1, 0, 0, 0]


@pytest.mark.slow
def test_a_million_headers() -> None:
    """In a process of its own, whose memory is all theirs. Values are made from a pattern while they are loaded."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.index.million"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=True
    )
    count, seconds, megabytes, held = (float(word) for word in done.stdout.split())
    assert count == 1_000_000
    assert seconds < 10, seconds
    assert megabytes < 400, megabytes
    assert held < 400


def test_what_was_made_from_the_config_of_today() -> None:
    """All that headers are about has to be that of today; other properties, and sizes, are nothing to them."""
    config = partitions.stream(properties={"a": "long", "b": "string"}, index={"terms": ["b"], "zones": ["a"]})
    records = [partitions.Record(at, "x", message=partitions.say(a=at, b="v")) for at in range(10)]
    header = partitions.seal(config, records, 0, 10)
    old = [
        header,
        *(
            replace(partitions.forget(header, what), first_offset=at, next_offset=at + 1)
            for at, what in ((10, "terms"), (11, "zones"), (12, "counts"), (13, "bloom"))
        ),
    ]
    old.append(replace(header, first_offset=14, next_offset=15, config_fingerprint=header.config_fingerprint ^ 1))
    assert partitions.load(config, old).made.tolist() == [True, False, False, True, True, False]
    assert partitions.load(partitions.stream(index={"chunk_records": 7}), old).made.tolist() == [True] * 5 + [False]
    assert Chunks(find_config_fingerprint(config)).made.tolist() == []


@settings(deadline=None)
@given(st.lists(any_blooms() | st.just(NONE), max_size=6), st.data())
def test_false_positives_are_those_of_each_filter(blooms: list[Bloom], data: st.DataObject) -> None:
    config = partitions.stream()
    chunks = partitions.load(
        config, [replace(partitions.seal(config, [], at, at + 1), bloom=one) for at, one in enumerate(blooms)]
    )
    drop = data.draw(st.integers(0, len(blooms)))
    chunks.drop(drop)
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks))), np.bool_)
    wanted = [one.false_positives for one, asked in zip(blooms[drop:], among, strict=True) if asked]
    assert chunks.false_positives(among) == pytest.approx(wanted)
