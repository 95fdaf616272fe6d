"""num_pending while a consumer moves: what lies ahead of it in one partition, kept up to date instead of counted anew.

Tokens carry num_pending, so it is wanted after every round, for every consumer. Counting all chunks ahead each time would
cost the chunks; a consumer only ever passes records, and an index only ever grows at its end, so both are added up:

- `learn` takes in the headers that have come since the last time, the one that has grown among them
- `advance` takes off the records that the consumer has passed. It costs those records, and nothing for the others
- `skip` takes off the chunks that it has left out, for what its filter says
- what headers do not count (the rest of the chunk in which the consumer began, chunks of many subjects, holes) is kept as
  gaps, which end when the consumer has passed them

At the tail a consumer is ahead of the index: the records that it reads are not sealed yet. There nothing is pending but what
it has not read, so there the sum begins anew at its position, and no error outlives that.

A round's deliveries have num_pending one after the other: what `pending_at` says after the round, plus the deliveries
that follow in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.index.skip.chunks import Chunks
from overlay.index.skip.plan import Span
from overlay.index.skip.probes import Part
from overlay.index.skip.prune import Flags, Ints
from overlay.subject import Pattern

from .estimate import Teller


@dataclass(frozen=True, slots=True)
class Ahead:
    """`count` of the records that headers tell of."""

    count: int
    is_exact: bool
    """Whether the topic has kept what headers counted."""
    is_whole: bool
    """Whether headers tell of all of it; else there are gaps."""


_NONE: Ints = np.empty(0, np.int64)


class Backlog:
    """What lies ahead of one consumer in one partition, of the subjects of some patterns (pending.simplify).

    `position`: its next offset. One for each partition, whose chunks are always the same object.
    """

    def __init__(self, patterns: Sequence[Pattern], position: int) -> None:
        self._teller = Teller(patterns)
        self._restart(position)

    def _restart(self, position: int) -> None:
        self._position = self._end = position
        """From the one to the other headers were taken in."""
        self._ahead = 0
        self._is_exact = True
        self._gaps: deque[tuple[int, int]] = deque()
        self._last: tuple[int, int | None] = (-1, None)
        """Where the last chunk begins, which may grow, and its records; None for a gap."""

    @property
    def position(self) -> int:
        """The consumer's next offset, as far as it was said."""
        return self._position

    def learn(self, chunks: Chunks) -> None:
        """Take in what has come to the index. O(what has come)."""
        known_to = int(chunks.next_offset[-1]) if len(chunks) else self._end
        if known_to == self._end:
            return
        if known_to < self._end and self._last[0] >= 0:
            self._restart(self._position)  # the log was cut, or its index is made anew
        low = int(np.searchsorted(chunks.next_offset, self._end, side="right"))
        if low == len(chunks):
            return
        first, after = chunks.first_offset[low:], chunks.next_offset[low:]
        if first[0] < self._end and first[0] != self._last[0] and self._last[0] >= 0:
            self._restart(self._position)  # it was merged with others
            return self.learn(chunks)
        counts, known = self._teller.count(chunks, low, len(chunks))
        if first[0] < self._end:
            self._take_grown(
                int(first[0]), int(after[0]), int(counts[0]) if known[0] else None, bool(chunks.exact[low])
            )
            first, after, counts, known, low = first[1:], after[1:], counts[1:], known[1:], low + 1
        if first.size:
            self._take_new(first, after, counts, known)
            self._is_exact &= bool((chunks.exact[low:] | (counts == 0) | ~known).all())

    def _take_grown(self, first: int, after: int, count: int | None, exact: bool) -> None:
        """The chunk that reaches beyond what is known: the last one has grown, or the consumer began in the midst of it."""
        begun, before = self._last
        self._is_exact &= exact or not count
        if before is not None and count is not None:
            self._ahead += count - before
        else:
            if before is not None:
                # nothing lies behind the last chunk, so what is ahead of a consumer inside it is of it alone
                self._ahead -= before if self._position <= first else self._ahead
                self._add_gap(max(first, self._position), self._end)
            self._add_gap(self._end, after)
            count = None
        self._end, self._last = after, (first, count if begun == first else None)

    def _take_new(self, first: Ints, after: Ints, counts: Ints, known: Flags) -> None:
        before = np.append(self._end, after[:-1])
        lows = np.concatenate((before[before < first], first[~known]))
        highs = np.concatenate((first[before < first], after[~known]))
        order = np.argsort(lows)
        lows, highs = lows[order], highs[order]
        if lows.size:
            begins = np.concatenate(([True], lows[1:] > highs[:-1]))
            ends = np.append(begins[1:], True)
            for gap in zip(lows[begins].tolist(), highs[ends].tolist(), strict=True):
                self._add_gap(*gap)
        self._ahead += int(counts[known].sum())
        self._end = int(after[-1])
        self._last = int(first[-1]), int(counts[-1]) if known[-1] else None

    def _add_gap(self, first: int, after: int) -> None:
        if self._gaps and self._gaps[-1][1] == first:
            first = self._gaps.pop()[0]
        if first < after:
            self._gaps.append((first, after))

    def advance(self, position: int, offsets: Ints) -> None:
        """The consumer has passed everything below `position`. `offsets`: of the records of its subjects among that, ascending,
        whether or not its filter let them through. Where it was moved there without reading, begin another Backlog."""
        low, high = np.searchsorted(offsets, (self._position, min(position, self._end))).tolist()
        passed = high - low
        while self._gaps and self._gaps[0][0] < position:
            first, after = self._gaps.popleft()
            low, high = np.searchsorted(offsets, (max(first, self._position), min(after, position))).tolist()
            passed -= high - low
            if after > position:
                self._gaps.appendleft((position, after))
                break
        self._ahead -= passed
        self._position = position
        if position >= self._end:
            self._restart(position)

    def skip(self, chunks: Chunks, position: int, *, was_read: bool) -> None:
        """The consumer has come to `position` without a record of its subjects. `was_read`: because there was none; else its
        filter may have left out chunks that hold some. O(chunks in between)."""
        if not was_read:
            low, high = np.searchsorted(chunks.next_offset, (self._position, min(position, self._end)), side="right")
            counts, known = self._teller.count(chunks, int(low), min(int(high) + 1, len(chunks)))
            first, after = (column[low : low + counts.size] for column in (chunks.first_offset, chunks.next_offset))
            if counts.size and first[0] < self._position and counts[0] and position in after:
                # the rest of a chunk was left out, of which no header tells how many it holds
                self._restart(position)
                return self.learn(chunks)
            counted = known & (first >= self._position) & (first < position) & (after <= self._end)
            for gap in self._gaps:
                counted &= (after <= gap[0]) | (first >= gap[1])
            self._ahead -= int(counts[counted & (after <= position)].sum())
            # how many of a chunk lie in a part of it no header tells
            self._is_exact &= not counts[counted & (after > position)].any()
        self.advance(position, _NONE)

    def pending_at(self, end: int) -> Ahead:
        """What is ahead of the consumer below `end`, the last stable offset. O(1)."""
        return Ahead(
            max(self._ahead, 0),
            self._is_exact and self._ahead >= 0,
            not self._gaps and max(self._end, self._position) >= end,
        )

    def list_gaps(self, end: int) -> tuple[Span, ...]:
        """What would have to be read to make it whole, ascending."""
        tail = (max(self._end, self._position), end)
        return tuple(Span(first, after, Part.SUBJECT) for first, after in (*self._gaps, tail) if first < after)
