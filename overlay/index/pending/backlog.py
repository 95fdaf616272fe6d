"""num_pending of a moving consumer: the records ahead of it in one partition, kept up to date
instead of counted anew.

Ack tokens carry num_pending, so it is needed after every round, for every consumer. Counting all
chunks ahead each time would cost time for every chunk. A consumer only moves forward and an index
only grows at its end, so the count is updated:

- `learn` adds the new headers, and the growth of the last one
- `advance` subtracts the records that the consumer has passed; it costs time for those records only
- `skip` subtracts the chunks that the consumer has left out because of its filter
- records that headers do not count (the rest of the chunk in which the consumer began, chunks of
  many subjects, holes) are kept as gaps, which end when the consumer has passed them

At the tail a consumer is ahead of the index: the records that it reads are not sealed yet. There
nothing is counted by headers, so the sum begins anew at the consumer's position, and no error lasts
longer than that.

The deliveries of one slice have different num_pending: what `pending_at` returns after the slice,
plus the records with the consumer's subjects that follow in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.index.skip.chunks import Chunks
from overlay.subject import Pattern

from .estimate import Teller


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many records are ahead of a consumer. `count`: those that chunk headers count."""

    count: int
    is_exact: bool
    """Whether `count` is exact, as far as headers tell: no offset of the counted chunks was missing
    when they were sealed.
    """
    is_whole: bool
    """Whether headers count all of the range; if not, there are gaps."""


_NONE: Ints = np.empty(0, np.int64)


class Backlog:
    """A running count of the records ahead of one consumer in one partition, by chunk headers.
    Records count if their subject matches one of `patterns` (see estimate.simplify).

    `position`: the consumer's next offset. All calls must pass the same Chunks object.
    """

    def __init__(self, patterns: Sequence[Pattern], position: int) -> None:
        self._teller = Teller(patterns)
        self._restart(position)

    def _restart(self, position: int) -> None:
        self._position = self._end = position
        """Headers are taken in for the offsets from `_position` to `_end`."""
        self._ahead = 0
        self._is_exact = True
        self._gaps: deque[tuple[int, int]] = deque()
        self._last: tuple[int, int | None] = (-1, None)
        """First offset of the last chunk, which may grow, and its count; None as the count if it is
        a gap.
        """

    @property
    def position(self) -> int:
        """Return the consumer's next offset, as last told to this object."""
        return self._position

    def learn(self, chunks: Chunks) -> None:
        """Add the records of the chunks that are new in `chunks` since the last call, and by which
        its last chunk has grown. If the chunks now end below those counted, or the last one was
        merged with others, count anew from the consumer's position. O(new chunks), unless it counts
        anew.
        """
        known_to = int(chunks.next_offset[-1]) if len(chunks) else self._end
        if known_to == self._end:
            return
        if known_to < self._end and self._last[0] >= 0:
            self._restart(self._position)  # the log was cut, or the index was made anew
        low = int(np.searchsorted(chunks.next_offset, self._end, side="right"))
        if low == len(chunks):
            return
        first, after = chunks.first_offset[low:], chunks.next_offset[low:]
        if first[0] < self._end and first[0] != self._last[0] and self._last[0] >= 0:
            self._restart(self._position)  # the last chunk was merged with others
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
        """Count the chunk first <= offset < after, which reaches beyond `_end`: it was the last
        chunk and has grown, or the consumer began inside it. `count`: its matching records, None if
        its header does not tell. `exact`: whether no offset was missing when it was sealed.
        """
        begun, before = self._last
        self._is_exact &= exact or not count
        if before is not None and count is not None:
            self._ahead += count - before
        else:
            if before is not None:
                # No chunk follows the last one. So if the consumer is inside it, the whole count is
                # of this chunk.
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
        """Set the consumer's next offset to `position`, and subtract the records that it has
        passed.

        `offsets`: those of the passed records that match the consumer's subjects, ascending,
        whether or not its filter accepted them. If the consumer was moved over matching records
        that are not in `offsets`, call `skip`, or make a new Backlog.
        """
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
        """Set the consumer's next offset to `position`, which is not below the present one, for a
        range in which it was given no record. O(chunks in between).

        `was_read`: the range was read and has no record of its subjects, so nothing is subtracted.
        If False, chunks were left out because of the consumer's filter: the records that their
        headers count are subtracted. If a part of a chunk was left out, the count may be an
        estimate from then on.
        """
        if not was_read:
            low, high = np.searchsorted(chunks.next_offset, (self._position, min(position, self._end)), side="right")
            counts, known = self._teller.count(chunks, int(low), min(int(high) + 1, len(chunks)))
            first, after = (column[low : low + counts.size] for column in (chunks.first_offset, chunks.next_offset))
            if counts.size and first[0] < self._position and counts[0] and position in after:
                # only the rest of a chunk was left out, and no header tells how many records that
                # has
                self._restart(position)
                return self.learn(chunks)
            counted = known & (first >= self._position) & (first < position) & (after <= self._end)
            for gap in self._gaps:
                counted &= (after <= gap[0]) | (first >= gap[1])
            self._ahead -= int(counts[counted & (after <= position)].sum())
            # no header tells how many records a part of a chunk has
            self._is_exact &= not counts[counted & (after > position)].any()
        self.advance(position, _NONE)

    def pending_at(self, end: int) -> Ahead:
        """Return how many records are ahead of the consumer. `end`: the partition's last stable
        offset; it only decides whether the headers cover everything. O(1).
        """
        return Ahead(
            max(self._ahead, 0),
            self._is_exact and self._ahead >= 0,
            not self._gaps and max(self._end, self._position) >= end,
        )
