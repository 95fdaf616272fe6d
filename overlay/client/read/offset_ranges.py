"""Offset ranges of a partition that a reading covers, and how they are cut into fetch ranges.

An offset range lies in one partition. With a chunk index it has a sized route: the spans of a route
(overlay/index/skip/plan.py) that have to be read, and their bytes. Two spans may touch, if the
records of one have to be tested for less. Spans that touch make one fetch range, which is fetched
without a break. An offset range without a route is one fetch range, and its records are tested for
everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlay.arrays import Ints
from overlay.index.pending.last_per_subject import Piece
from overlay.index.skip.plan import Route, Saving, weigh
from overlay.index.skip.probes import Part
from overlay.index.skip.prune import Chunks
from overlay.kafka.log_position import TopicPartition
from overlay.scan.decode import NO_STOP

ALL_PARTS = Part.SUBJECT | Part.VALUES | Part.FILTER | Part.WINDOW


@dataclass(frozen=True, slots=True, eq=False)
class SizedRoute:
    """A route (the spans of a partition's log that have to be read), and for each of its spans the
    bytes in the log of the chunks that it touches: -1 if headers of some of these are missing
    (`weigh`).
    """

    route: Route
    sizes: Ints

    def find(self, start: int, stop: int) -> slice:
        """Return the slice of the route's arrays with those spans that have offsets with start <= offset < stop."""
        low = int(np.searchsorted(self.route.next_offset, start, side="right"))
        return slice(low, max(low, int(np.searchsorted(self.route.first_offset, stop, side="left"))))

    def keep(self, start: int, stop: int) -> SizedRoute:
        """Return a copy of the route with only the spans that have an offset with start <= offset < stop.
        Spans that are partly outside are kept whole.

        The copy's `saving` still counts the whole route.
        """
        part, route = self.find(start, stop), self.route
        some = route.first_offset[part].copy(), route.next_offset[part].copy(), route.residual[part].copy()
        return SizedRoute(Route(*some, route.saving, route.skips), self.sizes[part].copy())


def size_route(route: Route, chunks: Chunks) -> SizedRoute:
    """Return a route with the bytes of its spans. `chunks`: those that the route was planned over."""
    return SizedRoute(route, weigh(chunks, route.first_offset, route.next_offset))


def cut_out(offset_range: OffsetRange, pieces: Sequence[Piece]) -> OffsetRange:
    """Return `offset_range` cut to these pieces (newest first, at least one): from the first offset of
    the oldest to the end of the newest, with a route of the pieces alone. Their records have to be
    tested for all parts of the question. `floor` stays.
    """
    bounds = np.array(pieces[::-1], np.int64)
    residual = np.full(len(pieces), ALL_PARTS, np.uint8)
    first, after, sizes = (bounds[:, i].copy() for i in range(3))
    route = Route(first, after, residual, Saving(0, 0, 0, 0, 0), True)
    return replace(offset_range, start=int(first[0]), stop=int(after[-1]), sized_route=SizedRoute(route, sizes))


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Offsets without a gap: start <= offset < stop. `size`: bytes, None if unknown."""

    start: int
    stop: int
    size: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of a partition: start <= offset < stop.

    Only records at offsets from `floor` on are returned; it may be above `start`.
    """

    source: TopicPartition
    start: int
    stop: int = NO_STOP
    floor: int = 0
    sized_route: SizedRoute | None = None
    """The spans that have to be read; None for all of it. Valid up to the end that it was planned for."""
    enough: int = 0
    """An offset from which on the range surely has as many last records as asked for; 0 if unknown."""

    def begin_at(self, offset: int) -> OffsetRange:
        """Return the range with `offset` as its start; the same if `offset` is not above its start. Its route and its
        stop stay, so the range is empty if `offset` is at or above the stop.
        """
        return replace(self, start=max(self.start, offset))

    def cut(self, start: int, stop: int) -> OffsetRange:
        """Return the part of the range with start <= offset < stop, whose route has only the spans with such offsets. The
        range is never widened.
        """
        part = replace(self, start=max(self.start, start), stop=min(self.stop, stop))
        return (
            part
            if self.sized_route is None
            else replace(part, sized_route=self.sized_route.keep(part.start, part.stop))
        )

    def keep_last(self, count: int) -> OffsetRange:
        """Return the range with a higher start, so that exactly its last `count` offsets to read are
        left. Offsets that the route skips do not count. The range itself if it has no more than
        `count`.
        """
        if self.sized_route is None:
            return replace(self, start=max(self.start, self.stop - count))
        first, after, _ = self._clip(self.sized_route)
        # offsets to read from each span on
        left = np.cumsum((after - first)[::-1])[::-1]
        whole = int(np.searchsorted(-left, -count, side="right"))
        if not whole:
            return self
        return replace(self, start=int(first[whole - 1] + left[whole - 1] - count))

    def fetch_ranges(self) -> Iterator[FetchRange]:
        """Yield the fetch ranges that have to be read, by rising offsets, each from spans of the route that touch; one if
        there is no route, none if the range is empty or its route skips all of it.
        """
        if self.start >= self.stop:
            return
        if self.sized_route is None:
            yield FetchRange(self.start, self.stop)
            return
        first, after, sizes = self._clip(self.sized_route)
        if not first.size:
            return
        begins = np.flatnonzero(np.concatenate([[True], first[1:] > after[:-1]]))
        ends = np.append(begins[1:], first.size) - 1
        weights = np.add.reduceat(sizes, begins)
        known = np.minimum.reduceat(sizes, begins) >= 0
        for begin, end, weight, is_known in zip(begins, ends, weights, known, strict=True):
            yield FetchRange(int(first[begin]), int(after[end]), int(weight) if is_known else None)

    def find_residual(self, first: int, after: int) -> Part:
        """Return the parts of the question (subject, values, filter, time) that records with first
        <= offset < after have to be tested for: those that any span of the route there asks for, and
        all if there is no route or no span there.
        """
        if self.sized_route is None:
            return ALL_PARTS
        route = self.sized_route.route
        low = int(np.searchsorted(route.next_offset, first, side="right"))
        high = int(np.searchsorted(route.first_offset, after, side="left"))
        return Part(int(np.bitwise_or.reduce(route.residual[low:high], initial=0))) if low < high else ALL_PARTS

    def _clip(self, sized_route: SizedRoute) -> tuple[Ints, Ints, Ints]:
        """Return three arrays for the spans of `sized_route` that have offsets in this range: first and
        next offset, cut to the range, and bytes of the uncut span (-1 if unknown).
        """
        route = sized_route.route
        spans = sized_route.find(self.start, self.stop)
        first = np.maximum(route.first_offset[spans], self.start)
        return first, np.minimum(route.next_offset[spans], self.stop), sized_route.sizes[spans]
