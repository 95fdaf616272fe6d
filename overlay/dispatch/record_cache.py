"""The record cache: recently offered records, so that a delivery need not read them again.

The slices of a stream are kept in the order of their arrival. Small neighbours are joined as they
arrive, whenever the last one is at least half as large as the one before it. So a trickle makes few
slices, and each byte is copied only a few times. If the cache has too many bytes, the oldest slice
of all streams is dropped. Records that are not in the cache have to be refetched; refetched slices
are kept for one step only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlay.arrays import Ints
from overlay.match.record_slice import RecordSlice, join

CACHE_BYTES = 64 << 20
JOINED_BYTES = 1 << 20
"""Slices are joined up to this size in bytes."""
NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the records of some stream sequences are, in the order in which they were asked for.

    `number`: for each the index of its slice in `pieces`, NOWHERE if it is not in the cache. `row`:
    for each its row in that slice.
    """

    pieces: Sequence[RecordSlice]
    number: Ints
    row: Ints

    @property
    def missing(self) -> Ints:
        """Indices, in the order in which they were asked for, of the sequences that are not in the
        cache.
        """
        return np.flatnonzero(self.number == NOWHERE)


class RecordCache:
    """Record slices by stream, for delivery without reading the log again. Not thread-safe.

    `limit`: bytes over all streams; beyond it the oldest slices are dropped, but never the last
    one. `joined`: bytes up to which neighbouring slices are joined.
    """

    def __init__(self, limit: int = CACHE_BYTES, joined: int = JOINED_BYTES) -> None:
        self.size = 0
        self._joined = joined
        self._limit = limit
        self._slices: dict[str, list[RecordSlice]] = {}
        self._counter: dict[str, list[RecordSlice]] = {}
        self._order: deque[str] = deque()
        """The stream of each slice, the oldest slice first. A joined slice has the place of its newest part."""

    def put(self, stream: str, piece: RecordSlice) -> None:
        """Add a slice of newly read records. It may be joined with the slices of the stream before
        it. Drops the oldest slices of all streams if the cache is over its limit.
        """
        slices = self._slices.setdefault(stream, [])
        slices.append(piece)
        self.size += piece.size
        while len(slices) > 1 and _belong_together(slices[-2], slices[-1], self._joined):
            second, first = slices.pop(), slices.pop()
            slices.append(join(first, second))
            self.size += slices[-1].size - first.size - second.size
            _remove_last(self._order, stream)
        self._order.append(stream)
        while self.size > self._limit and len(self._order) > 1:
            self.size -= self._slices[self._order.popleft()].pop(0).size

    def lay_out(self, stream: str, piece: RecordSlice) -> None:
        """Add a refetched slice, which is kept until `clear`."""
        self._counter.setdefault(stream, []).append(piece)

    def clear(self) -> None:
        """Drop the refetched slices."""
        self._counter.clear()

    def find(self, stream: str, sequences: Ints) -> Found:
        """Return where the records of these stream sequences are. `sequences`: in any order.

        A record that is in several slices is found in a refetched one first, else in the newest.
        """
        pieces = [*self._counter.get(stream, ()), *reversed(self._slices.get(stream, ()))]
        number = np.full(sequences.size, NOWHERE, np.int64)
        row = np.zeros(sequences.size, np.int64)
        order = sequences.argsort(kind="stable")
        wanted = sequences[order]
        missing = sequences.size
        for i, piece in enumerate(pieces):
            if not missing:
                break
            own = piece.sequences
            low, high = int(wanted.searchsorted(own[0])), int(wanted.searchsorted(own[-1], side="right"))
            if low == high:
                continue
            at = own.searchsorted(wanted[low:high])
            places = order[low:high]
            hit = (own[at] == wanted[low:high]) & (number[places] == NOWHERE)
            number[places[hit]], row[places[hit]] = i, at[hit]
            missing -= int(hit.sum())
        return Found(pieces, number, row)


def _remove_last(order: deque[str], stream: str) -> None:
    """Remove the last occurrence of `stream`; the deque itself removes the first one."""
    order.reverse()
    order.remove(stream)
    order.reverse()


def _belong_together(first: RecordSlice, second: RecordSlice, most: int) -> bool:
    is_next = first.partition == second.partition and first.sequences[-1] < second.sequences[0]
    return bool(is_next and first.size <= 2 * second.size and first.size + second.size <= most)
