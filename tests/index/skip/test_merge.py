"""Merging: what becomes of small neighbours is what sealing them as one would have said, filters aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.config.stream import IndexConfig
from overlay.index.skip import bloom
from overlay.index.skip.bloom import Bloom
from overlay.index.skip.chunk_header import MAX_SUBJECT_CHARS, Header
from overlay.index.skip.merge import LIMIT, join, merge
from overlay.index.skip.terms import Term
from overlay.index.skip.zones import Bounds
from tests.index.headers import ask_bloom

INDEX = IndexConfig(chunk_records=100, chunk_bytes=10_000)


def make_bloom(terms: set[int]) -> Bloom:
    hashes = [(n * 0x9E3779B97F4A7C15 % (1 << 64), n * 0xC2B2AE3D27D4EB4F % (1 << 64)) for n in terms]
    return bloom.make(np.array(hashes, np.uint64).reshape(-1, 2))


def make(first: int, after: int, *, records: int = 5, terms: set[int] = frozenset({1, 2, 3}), at: int = 7) -> Header:  # type: ignore[assignment]
    zones = {9: Bounds("long", at, at, False)}
    return Header(
        "t",
        3,
        first,
        after,
        records,
        records,
        100,
        at,
        at + 1,
        1,
        first,
        True,
        5,
        (4,),
        make_bloom(terms),
        {"s": records},
        zones,
    )


def test_neighbours_become_one() -> None:
    a, b, c = make(0, 10, at=7), make(10, 20, at=3), make(20, 25, records=0, at=-1)
    c = replace(c, min_time=-1, max_time=-1, zones={9: Bounds("long", None, None, False)}, subjects={}, exact=False)
    (merged,) = merge([a, b, c], INDEX)
    assert merged.replaced == (a, b, c)
    assert merged.header == replace(
        a,
        next_offset=25,
        records=10,
        addressed=10,
        bytes=300,
        min_time=3,
        max_time=8,
        crc=20,
        exact=False,
        subjects={"s": 10},
        zones={9: Bounds("long", 3, 7, False)},
    )


@pytest.mark.parametrize(
    "other",
    [
        make(11, 20),
        replace(make(10, 20), config_fingerprint=6),
        replace(make(10, 20), indexed=()),
        replace(make(10, 20), zones={}),
        replace(make(10, 20), partition=4),
        replace(make(10, 20), topic="u"),
        make(10, 20, records=96),
        replace(make(10, 20), bytes=9901),
        replace(make(10, 20), bloom=bloom.NONE),
    ],
)
def test_what_does_not_belong_together_stays_apart(other: Header) -> None:
    assert join(make(0, 10), other, INDEX) is None
    assert list(merge([make(0, 10), other], INDEX)) == []


def test_filters_that_would_let_too_much_through_stay_apart() -> None:
    many = [make(at, at + 1, terms=set(range(100 * at, 100 * at + 100))) for at in range(6)]
    alike = [make(at, at + 1, terms=set(range(100))) for at in range(6)]
    assert all(merged.header.bloom.false_positives <= LIMIT for merged in merge(many, INDEX))
    assert sum(len(merged.replaced) for merged in merge(many, INDEX)) < 6
    (one,) = merge(alike, INDEX)
    assert one.header.bloom == alike[0].bloom
    without = [replace(header, bloom=bloom.NONE) for header in many]
    assert [merged.header.bloom for merged in merge(without, INDEX)] == [bloom.NONE]


def test_times_that_are_not_known_stay_so() -> None:
    a, b = make(0, 10), replace(make(10, 20), min_time=-1, max_time=-1)
    joined = join(a, b, INDEX)
    assert joined is not None
    assert (joined.min_time, joined.max_time) == (-1, -1)


def test_counts_of_too_many_subjects_are_dropped() -> None:
    a, b = (replace(make(0, 10), subjects={f"{name}.{i}": 1 for i in range(40)}) for name in "ab")
    joined = join(a, replace(b, first_offset=10, next_offset=20), INDEX)
    assert joined is not None
    assert joined.subjects is None


@pytest.mark.parametrize(("size", "is_kept"), [(MAX_SUBJECT_CHARS // 2, True), (MAX_SUBJECT_CHARS // 2 + 1, False)])
def test_counts_of_subjects_that_are_too_long_together_are_dropped(size: int, is_kept: bool) -> None:
    a, b = (replace(make(0, 10), subjects={name * size: 1}) for name in "ab")
    joined = join(a, replace(b, first_offset=10, next_offset=20), INDEX)
    assert joined is not None
    assert (joined.subjects is not None) == is_kept


chains = st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.sets(st.integers(0, 300), max_size=60)), max_size=10)


@settings(deadline=None)
@given(chains)
def test_nothing_is_lost(found: list[tuple[int, bool, set[int]]]) -> None:
    headers, terms, at = [], {}, 0
    for records, gap, put in found:
        at += gap
        headers.append(make(at, at + 5, records=records, terms=put))
        terms[at] = put
        at += 5
    merged = list(merge(headers, INDEX))
    for one in merged:
        assert len(one.replaced) > 1
        assert one.header.first_offset == one.replaced[0].first_offset
        assert one.header.next_offset == one.replaced[-1].next_offset
        assert one.header.records == sum(header.records for header in one.replaced) <= INDEX.chunk_records
        assert all(a.next_offset == b.first_offset for a, b in zip(one.replaced, one.replaced[1:], strict=False))
        for header in one.replaced:
            for n in terms[header.first_offset]:
                term = Term(n * 0x9E3779B97F4A7C15 % (1 << 64), n * 0xC2B2AE3D27D4EB4F % (1 << 64), "")
                assert ask_bloom(one.header.bloom, term)
    replaced = [header for one in merged for header in one.replaced]
    assert len(replaced) == len({header.first_offset for header in replaced})
