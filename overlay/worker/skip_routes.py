"""Skip routes: which parts of the log a catching-up cursor may skip, by the stream's chunk index.
No IO.

A cursor behind the tail reads its partition by itself, so it need not read what none of its
consumers wants. Its route is planned once, when the cursor begins or when other consumers join it.
A chunk that any of its consumers may want is read. What the index does not cover is always read, so
the tail is never skipped.

A cursor of last messages knows the offsets that it wants, and needs no index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlay.clock import now_ms
from overlay.config.stream import StreamConfig
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import OPEN_END, Route, Saving, plan, weigh
from overlay.index.skip.probes import NO_PART
from overlay.index.skip.prune import Answers, evaluate
from overlay.kafka.fetcher import PartitionFetch
from overlay.kafka.log_position import LogPosition
from overlay.metrics import Metrics
from overlay.state.shard_state import StreamPartition

from .assignment import Assignment
from .cursors.cursor import Cursor
from .cursors.positions import Positions
from .round.task import Reader

Ints = npt.NDArray[np.int64]

NEAR = 2_000
"""Up to so many offsets between two last messages are read through rather than skipped, since a
fetch of its own costs more."""


@dataclass(frozen=True, slots=True, eq=False)
class Detour:
    """The skip route of one cursor, and the chunks it was planned from; None for a route to single
    offsets."""

    route: Route
    chunks: Chunks | None = None

    def find_next(self, position: int, end: int) -> int:
        """Return the next offset to read from `position` on, `end` at the latest."""
        return max(position, min(self.route.next_needed(position), end))

    def find_size(self, position: int) -> int | None:
        """Return the bytes from `position` to where the next skipped part begins, None if
        unknown."""
        span = self.route.next(position)
        if self.chunks is None or span is None or span.next_offset == OPEN_END:
            return None
        size = int(weigh(self.chunks, np.array([position]), np.array([span.next_offset]))[0])
        return size if size >= 0 else None

    def find_log_position(self, position: int) -> LogPosition:
        """Return the log position at an offset that was reached by skipping, with epoch and
        checksum if a chunk ends there."""
        if self.chunks is not None:
            row = int(np.searchsorted(self.chunks.next_offset, position))
            if row < len(self.chunks) and self.chunks.next_offset[row] == position:
                return self.chunks.log_position(row)
        return LogPosition(position)


def plan_detour(
    readers: Sequence[Reader], stream: StreamConfig, chunks: Chunks, position: int, now: int
) -> Detour | None:
    """Return the skip route of some consumers from `position` on, None if it would skip nothing or
    too little. `now`: ms since 1970, for UTC() in filters."""
    if not readers or not len(chunks):
        return None
    answers = [
        evaluate(derive(stream, reader.subjects, reader.values, reader.filter, now=now, start=position), chunks)
        for reader in readers
    ]
    levels = np.maximum.reduce([answer.levels for answer in answers])
    # no residuals: the pipeline tests everything anyway, since its cursors come and go
    route = plan(Answers(levels, np.zeros(levels.size, np.uint8), NO_PART), chunks, position)
    return Detour(route, chunks) if route.skips and route.saving.skipped_chunks else None


def plan_visits(offsets: Ints, end: int) -> Detour:
    """Return the route to some offsets, ascending, and to everything from `end` on."""
    wanted = np.append(offsets[offsets < end], end)
    first = np.flatnonzero(np.diff(wanted, prepend=-NEAR - 1) > NEAR)
    last = np.append(first[1:], wanted.size) - 1
    after = np.where(last == wanted.size - 1, OPEN_END, wanted[last] + 1)
    return Detour(Route(wanted[first], after, np.zeros(first.size, np.uint8), Saving(0, 0, 0, 0, first.size - 1), True))


class Detours:
    """The skip routes of a session's cursors. Moves cursors over skipped parts, and has their
    partition fetches fetch what comes after these."""

    def __init__(self, assignment: Assignment, positions: Positions, metrics: Metrics) -> None:
        self._assignment = assignment
        self._positions = positions
        self._metrics = metrics
        self._detours: dict[Cursor, Detour] = {}

    def plan(self, place: StreamPartition, cursor: Cursor) -> None:
        """Plan what a cursor may skip, and move it to the first part that it has to read.

        A cursor that an index is made from skips nothing.
        """
        stream, source = place
        self.forget(cursor)
        if cursor.undecided:
            return
        index = self._assignment.indexes.get(stream)
        if cursor.only is not None:
            detour: Detour | None = plan_visits(cursor.only, cursor.snapshot_end)
        elif index is None or cursor.indexed:
            return
        else:
            readers = [self._assignment.readers[consumer] for consumer in sorted(cursor.members)]
            detour = plan_detour(readers, self._assignment.streams[stream], index.of(source), cursor.position, now_ms())
        if detour is not None:
            self._detours[cursor] = detour
            self._metrics.chunks.labels(stream, "no").inc(detour.route.saving.skipped_chunks)
            self._metrics.chunks.labels(stream, "maybe").inc(detour.route.saving.read_chunks)
            self.leap(place, cursor)

    def leap(self, place: StreamPartition, cursor: Cursor) -> None:
        """Move a cursor over what none of its consumers wants, up to the next cursor at most."""
        if detour := self._detours.get(cursor):
            reached = detour.find_next(cursor.position, self._positions.find_ahead(place, cursor))
            if reached > cursor.position:
                cursor.log_position = detour.find_log_position(reached)

    def lead(self, place: StreamPartition, cursor: Cursor, partition_fetch: PartitionFetch, need: LogPosition) -> None:
        """Set a partition fetch to where its cursor needs data from the log position `need` on.

        `need` is the cursor's position or the end of its kept data. Data that the partition fetch
        has already and that is needed is kept. The fetch may move backwards: it may have been set
        beyond parts that the cursor had planned to skip before it joined a cursor that skips
        nothing.
        """
        detour = self._detours.get(cursor)
        reached = need
        if detour is not None and need.position > cursor.position:
            leapt = detour.find_next(need.position, self._positions.find_ahead(place, cursor))
            reached = detour.find_log_position(leapt) if leapt > need.position else need
        if not partition_fetch.holds(reached.position):
            partition_fetch.seek(reached.position, reached.epoch)
        partition_fetch.size = None if detour is None else detour.find_size(partition_fetch.position)

    def find_size(self, cursor: Cursor) -> int | None:
        """Return the bytes that are worth fetching at once from a cursor's position, None if
        unknown."""
        detour = self._detours.get(cursor)
        return detour.find_size(cursor.position) if detour else None

    def forget(self, cursor: Cursor) -> None:
        """Drop the skip route of a cursor."""
        self._detours.pop(cursor, None)
