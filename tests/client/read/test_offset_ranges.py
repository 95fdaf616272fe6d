"""Ways through a partition, against a list of its offsets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.offset_ranges import ALL_PARTS, Leg, Stretch, Way, find_way
from overlay.index.skip.plan import Route, Saving
from overlay.index.skip.probes import Part
from tests.index.partitions import Record, load, seal, stream

SOURCE = ("t", 0)


@st.composite
def any_ways(draw: st.DrawFn) -> Way:
    """Up to eight spans within 0..80, some of which touch."""
    cuts = sorted(draw(st.sets(st.integers(0, 80), max_size=9)))
    spans = [pair for pair in itertools.pairwise(cuts) if draw(st.booleans())]
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    residual = np.array([draw(st.integers(0, 15)) for _ in spans], np.uint8)
    sizes = np.array([draw(st.integers(-1, 100)) for _ in spans], np.int64)
    return Way(Route(bounds[:, 0], bounds[:, 1], residual, Saving(0, 0, 0, 0, 0), True), sizes)


@st.composite
def any_stretches(draw: st.DrawFn) -> Stretch:
    start, stop = sorted(draw(st.tuples(st.integers(0, 80), st.integers(0, 80))))
    return Stretch(SOURCE, start, stop, way=draw(any_ways() | st.none()))


def list_offsets(stretch: Stretch) -> list[int]:
    """What has to be read."""
    if stretch.way is None:
        return list(range(stretch.start, stretch.stop))
    return [
        o
        for span in stretch.way.route
        for o in range(span.first_offset, span.next_offset)
        if stretch.start <= o < stretch.stop
    ]


@given(any_stretches())
def test_legs_are_what_has_to_be_read_without_a_break(stretch: Stretch) -> None:
    legs = list(stretch.legs())
    assert [offset for leg in legs for offset in range(leg.start, leg.stop)] == list_offsets(stretch)
    assert all(leg.start < leg.stop for leg in legs)
    assert all(before.stop < after.start for before, after in itertools.pairwise(legs))


@given(any_stretches(), st.integers(1, 90))
def test_the_end_of_a_stretch(stretch: Stretch, count: int) -> None:
    end = stretch.keep_last(count)
    assert list_offsets(end) == list_offsets(stretch)[-count:]
    assert (end.stop, end.start >= stretch.start) == (stretch.stop, True)
    if len(list_offsets(stretch)) < count:
        assert end.start == stretch.start


@given(any_stretches())
def test_what_lies_before_the_end_is_left(stretch: Stretch) -> None:
    """As the search for the last records goes on backwards."""
    found: list[int] = []
    rest = stretch
    while rest.start < rest.stop:
        end = rest.keep_last(7)
        found = list_offsets(end) + found
        rest = replace(rest, stop=end.start)
    assert found == list_offsets(stretch)


@given(any_stretches(), st.integers(0, 79), st.integers(1, 20))
def test_slices_are_tested_for_what_any_of_their_spans_asks(stretch: Stretch, first: int, length: int) -> None:
    found = stretch.find_residual(first, first + length)
    if stretch.way is None:
        assert found == ALL_PARTS
        return
    touched = [
        span.residual for span in stretch.way.route if span.first_offset < first + length and first < span.next_offset
    ]
    wanted = ALL_PARTS if not touched else Part(0)
    for residual in touched:
        wanted |= residual
    assert found == wanted


def test_sizes_of_legs_are_those_of_their_chunks() -> None:
    """Unknown where some of a leg has no header."""
    config = stream()
    headers = [seal(config, [Record(at, "a")], at, at + 10, bytes=100 + at) for at in (0, 10, 30, 40, 60)]
    chunks = load(config, headers)
    spans = np.array([(0, 20), (30, 35), (35, 50), (55, 70)])
    route = Route(spans[:, 0], spans[:, 1], np.zeros(4, np.uint8), Saving(0, 0, 0, 0, 0), True)
    way = find_way(route, chunks)
    assert way.sizes.tolist() == [210, 130, 270, -1]
    assert list(Stretch(SOURCE, 0, 70, way=way).legs()) == [Leg(0, 20, 210), Leg(30, 50, 400), Leg(55, 70, None)]


@pytest.mark.parametrize("spans", [[], [(5, 9)]])
def test_ways_outside_of_the_chunks(spans: list[tuple[int, int]]) -> None:
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    route = Route(bounds[:, 0], bounds[:, 1], np.zeros(len(spans), np.uint8), Saving(0, 0, 0, 0, 0), True)
    assert find_way(route, load(stream(), [])).sizes.tolist() == [-1] * len(spans)
