"""Skip routes: which parts of the log a catching-up cursor may skip, by the stream's chunk index.
No IO.

A cursor behind the tail reads its partition by itself, so it need not read what none of its
consumers wants. Its route is planned when the cursor begins, and anew when cursors of its partition
join. A chunk that any of its consumers may want is read. What the index does not cover is always
read, so the tail is never skipped.

A cursor of last messages knows the offsets that it wants, and needs no index.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import OPEN_END, Route, Saving, plan, weigh
from overlay.index.skip.probes import NO_PART
from overlay.index.skip.prune import Answers, evaluate
from overlay.index.topic import Index
from overlay.kafka.log_position import LogPosition
from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.worker.round.task import Reader

NEAR = 2_000
"""Up to so many offsets between two last messages are read through rather than skipped, since a
fetch of its own costs more."""


@dataclass(frozen=True, slots=True, eq=False)
class SkipRoute:
    """The offset ranges that one cursor has to read; it skips what is in between. `chunks`: those
    it was planned from; None for a route to single offsets."""

    route: Route
    chunks: Chunks | None = None

    def find_next(self, position: int, end: int) -> int:
        """Return the first offset from `position` on that has to be read, but at most `end`; never
        less than `position`."""
        return max(position, min(self.route.next_needed(position), end))

    def find_size(self, position: int) -> int | None:
        """Return how many bytes the chunks have from the one at `position` to where the next skipped part begins.
        None if that is unknown, or if nothing more is skipped.
        """
        span = self.route.next(position)
        if self.chunks is None or span is None or span.next_offset == OPEN_END:
            return None
        size = int(weigh(self.chunks, np.array([position]), np.array([span.next_offset]))[0])
        return size if size >= 0 else None

    def find_log_position(self, position: int) -> LogPosition:
        """Return the log position of an offset that was reached by skipping. It has the epoch and
        checksum of the batch before it if a chunk ends there, else neither."""
        if self.chunks is not None:
            row = int(np.searchsorted(self.chunks.next_offset, position))
            if row < len(self.chunks) and self.chunks.next_offset[row] == position:
                return self.chunks.log_position(row)
        return LogPosition(position)


def plan_route(
    readers: Sequence[Reader], stream: StreamConfig, chunks: Chunks, position: int, now: int
) -> SkipRoute | None:
    """Return what a cursor with these consumers may skip from `position` on, by the headers of `chunks`. None if
    there are no consumers or chunks, or if there is nothing to skip, or too little. `now`: ms since 1970, for UTC()
    in filters.
    """
    if not readers or not len(chunks):
        return None
    answers = [
        evaluate(derive(stream, reader.subjects, reader.values, reader.filter, now=now, start=position), chunks)
        for reader in readers
    ]
    levels = np.maximum.reduce([answer.levels for answer in answers])
    # no residuals: the pipeline tests everything anyway, since its cursors come and go
    route = plan(Answers(levels, np.zeros(levels.size, np.uint8), NO_PART), chunks, position)
    return SkipRoute(route, chunks) if route.skips and route.saving.skipped_chunks else None


def plan_visits(offsets: Ints, end: int) -> SkipRoute:
    """Return the route that reads these offsets (ascending; those from `end` on are ignored) and everything from
    `end` on. Between two of these offsets, or the last one and `end`, everything is read if they are at most NEAR
    apart.
    """
    wanted = np.append(offsets[offsets < end], end)
    first = np.flatnonzero(np.diff(wanted, prepend=-NEAR - 1) > NEAR)
    last = np.append(first[1:], wanted.size) - 1
    after = np.where(last == wanted.size - 1, OPEN_END, wanted[last] + 1)
    return SkipRoute(
        Route(wanted[first], after, np.zeros(first.size, np.uint8), Saving(0, 0, 0, 0, first.size - 1), True)
    )


@dataclass(frozen=True, slots=True)
class Routes:
    """Plans what the cursors of a session may skip.

    `streams`, `indexes`: by stream; `readers`: of all consumers.
    """

    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    indexes: Mapping[str, Index] = field(default_factory=dict)
    readers: Mapping[ConsumerId, Reader] = field(default_factory=dict)

    def plan(
        self, partition: StreamPartition, members: Collection[ConsumerId], position: int, now: int
    ) -> SkipRoute | None:
        """Return what a cursor with the consumers `members` may skip from `position` on. None if its stream has no
        index or there are no members, or if there is nothing to skip, or too little.

        `now`: ms since 1970, for UTC() in filters.
        """
        stream, source = partition
        if (index := self.indexes.get(stream)) is None:
            return None
        readers = [self.readers[consumer] for consumer in sorted(members)]
        return plan_route(readers, self.streams[stream], index.of(source), position, now)
