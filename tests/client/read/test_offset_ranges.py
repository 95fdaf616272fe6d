"""Ways through a partition, against a list of its offsets."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.offset_ranges import ALL_PARTS, FetchRange, OffsetRange, SizedRoute, size_route
from overlay.index.skip.plan import Route, Saving
from overlay.index.skip.probes import Part
from tests.index.partitions import Record, load, seal, stream

SOURCE = ("t", 0)


@st.composite
def any_sized_routes(draw: st.DrawFn) -> SizedRoute:
    """Up to eight spans within 0..80, some of which touch."""
    cuts = sorted(draw(st.sets(st.integers(0, 80), max_size=9)))
    spans = [pair for pair in itertools.pairwise(cuts) if draw(st.booleans())]
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    residual = np.array([draw(st.integers(0, 15)) for _ in spans], np.uint8)
    sizes = np.array([draw(st.integers(-1, 100)) for _ in spans], np.int64)
    return SizedRoute(Route(bounds[:, 0], bounds[:, 1], residual, Saving(0, 0, 0, 0, 0), True), sizes)


@st.composite
def any_offset_ranges(draw: st.DrawFn) -> OffsetRange:
    start, stop = sorted(draw(st.tuples(st.integers(0, 80), st.integers(0, 80))))
    return OffsetRange(SOURCE, start, stop, sized_route=draw(any_sized_routes() | st.none()))


def list_offsets(offset_range: OffsetRange) -> list[int]:
    """What has to be read."""
    if offset_range.sized_route is None:
        return list(range(offset_range.start, offset_range.stop))
    return [
        o
        for span in offset_range.sized_route.route
        for o in range(span.first_offset, span.next_offset)
        if offset_range.start <= o < offset_range.stop
    ]


@given(any_offset_ranges())
def test_fetch_ranges_are_what_has_to_be_read_without_a_break(offset_range: OffsetRange) -> None:
    fetch_ranges = list(offset_range.fetch_ranges())
    assert [
        offset for fetch_range in fetch_ranges for offset in range(fetch_range.start, fetch_range.stop)
    ] == list_offsets(offset_range)
    assert all(fetch_range.start < fetch_range.stop for fetch_range in fetch_ranges)
    assert all(before.stop < after.start for before, after in itertools.pairwise(fetch_ranges))


@given(any_offset_ranges(), st.integers(1, 90))
def test_the_end_of_a_offset_range(offset_range: OffsetRange, count: int) -> None:
    end = offset_range.keep_last(count)
    assert list_offsets(end) == list_offsets(offset_range)[-count:]
    assert (end.stop, end.start >= offset_range.start) == (offset_range.stop, True)
    if len(list_offsets(offset_range)) < count:
        assert end.start == offset_range.start


@given(any_offset_ranges())
def test_what_lies_before_the_end_is_left(offset_range: OffsetRange) -> None:
    """As the search for the last records goes on backwards."""
    found: list[int] = []
    rest = offset_range
    while rest.start < rest.stop:
        end = rest.keep_last(7)
        found = list_offsets(end) + found
        rest = replace(rest, stop=end.start)
    assert found == list_offsets(offset_range)


@given(any_offset_ranges(), st.integers(0, 79), st.integers(1, 20))
def test_slices_are_tested_for_what_any_of_their_spans_asks(offset_range: OffsetRange, first: int, length: int) -> None:
    found = offset_range.find_residual(first, first + length)
    if offset_range.sized_route is None:
        assert found == ALL_PARTS
        return
    touched = [
        span.residual
        for span in offset_range.sized_route.route
        if span.first_offset < first + length and first < span.next_offset
    ]
    wanted = ALL_PARTS if not touched else Part(0)
    for residual in touched:
        wanted |= residual
    assert found == wanted


def test_sizes_of_fetch_ranges_are_those_of_their_chunks() -> None:
    """Unknown where some of a fetch range has no header."""
    config = stream()
    headers = [seal(config, [Record(at, "a")], at, at + 10, bytes=100 + at) for at in (0, 10, 30, 40, 60)]
    chunks = load(config, headers)
    spans = np.array([(0, 20), (30, 35), (35, 50), (55, 70)])
    route = Route(spans[:, 0], spans[:, 1], np.zeros(4, np.uint8), Saving(0, 0, 0, 0, 0), True)
    sized_route = size_route(route, chunks)
    assert sized_route.sizes.tolist() == [210, 130, 270, -1]
    assert list(OffsetRange(SOURCE, 0, 70, sized_route=sized_route).fetch_ranges()) == [
        FetchRange(0, 20, 210),
        FetchRange(30, 50, 400),
        FetchRange(55, 70, None),
    ]


@pytest.mark.parametrize("spans", [[], [(5, 9)]])
def test_sized_routes_outside_of_the_chunks(spans: list[tuple[int, int]]) -> None:
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    route = Route(bounds[:, 0], bounds[:, 1], np.zeros(len(spans), np.uint8), Saving(0, 0, 0, 0, 0), True)
    assert size_route(route, load(stream(), [])).sizes.tolist() == [-1] * len(spans)
