"""The order of a batch's records in a stream of several partitions: that of their stream sequences.

A scan task reads a part of one partition after the other, and a ledger gives sequences to the partitions in turns. So what
the tasks find has to be merged. While a task reads, it notes runs: records of a partition whose sequences
follow each other as their offsets do. The driver merges the runs of all tasks (runs.py), which says where in the
order each run of a task is. The write tasks get the blocks in the order of their first records, and take
from the blocks that overlap what comes next. So a writer holds no more than one block or so for each
partition and consumer, and no record is looked at in Python.

Where the order of the tasks is that of the sequences already, as where a job gives them out for each batch, nothing
is merged. A record without a sequence keeps its place behind the one before it in its partition.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from overlay.arrays import Ints


def find_places(sequences: Ints, before: int) -> Ints:
    """Return the places of a partition's records in the order of a stream (int64, ascending): their sequences; for one
    without a sequence (0) the place of the record before it. `before`: that of the record before the first one."""
    places: Ints = np.maximum(np.maximum.accumulate(sequences), before)
    return places


Key = TypeVar("Key")


class Part(NamedTuple, Generic[Key]):
    """Deliveries of a block that come next to each other in the order. `rows`: their indices, ascending."""

    key: Key
    rows: Ints


@dataclass(slots=True)
class _Waiting(Generic[Key]):
    """What is left of a block. `places`: of its records."""

    key: Key
    places: Ints
    at: int = 0


class Merging(Generic[Key]):
    """The blocks of one writer, merged. Blocks come in the order of the places of their first records."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Waiting[Key]]] = []
        self._count = 0

    def add(self, key: Key, places: Ints) -> list[Part[Key]]:
        """Add a block, and return what comes before it. `places`: of its records, ascending. `key`: of the caller."""
        parts = self._take(int(places[0]))
        heapq.heappush(self._heap, (int(places[0]), self._count, _Waiting(key, places)))
        self._count += 1
        return parts

    def flush(self) -> list[Part[Key]]:
        """Return what is left."""
        return self._take(None)

    def _take(self, limit: int | None) -> list[Part[Key]]:
        """Return what lies before the place `limit`; all for None."""
        parts = []
        while self._heap and (limit is None or self._heap[0][0] < limit):
            _, number, first = heapq.heappop(self._heap)
            bounds = [bound for bound in (limit, self._heap[0][0] if self._heap else None) if bound is not None]
            end = int(np.searchsorted(first.places, min(bounds))) if bounds else first.places.size
            # of equal places that of the block that came first
            end = max(end, first.at + 1)
            parts.append(Part(first.key, np.arange(first.at, end, dtype=np.int64)))
            first.at = end
            if end < first.places.size:
                heapq.heappush(self._heap, (int(first.places[end]), number, first))
        return parts
