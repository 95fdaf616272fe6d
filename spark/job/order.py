"""The order of a batch's records in a stream of several partitions: that of their stream sequences.

A scan task reads a part of one partition after the other, and a ledger gives sequences to the partitions in turns. So what
the tasks find has to be merged. While a task reads, it notes runs: records of a partition whose sequences
follow each other as their offsets do. The driver merges the runs of all tasks, which says where in the
order each run of a task is. The write tasks get the blocks in the order of their first records, and take
from the blocks that overlap what comes next. So a writer holds no more than one block or so for each
partition and consumer, and no record is looked at in Python.

Where the order of the tasks is that of the sequences already, as where a job gives them out for each batch, nothing
is merged. A record without a sequence keeps its place behind the one before it in its partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from overlay.arrays import Ints

COLUMNS = 3
"""Columns of runs: the place of the first record, and how many deliveries and wanted records a run has."""


class Runs:
    """The runs that a scan task finds for one consumer, in the order in which it reads."""

    def __init__(self) -> None:
        self._parts: list[Ints] = []
        self._shift: int | None = None
        """Place less offset in the last run; None before the first one."""

    def begin(self) -> None:
        """Go on with another range, whose first record begins a run."""
        self._shift = None

    def add(self, places: Ints, offsets: Ints, delivered: Ints) -> None:
        """Add the wanted records of a slice (int64, ascending): their places in the order, as `find_places` returns them,
        and their offsets. `delivered`: indices of those that are delivered, ascending."""
        if not places.size:
            return
        shifts = places - offsets
        is_first = np.concatenate(([shifts[0] != self._shift], shifts[1:] != shifts[:-1]))
        self._shift = int(shifts[-1])
        starts = np.flatnonzero(is_first)
        # what comes before the first run of the slice goes on the last run before
        bounds = starts if is_first[0] else np.concatenate(([0], starts))
        wanted = np.diff(np.append(bounds, places.size))
        ends = np.searchsorted(delivered, np.append(bounds, places.size))
        runs = np.stack((places[bounds], np.diff(ends), wanted))
        if not is_first[0]:
            self._parts[-1][1:, -1] += runs[1:, 0]
            runs = runs[:, 1:]
        if runs.shape[1]:
            self._parts.append(runs)

    def to_bytes(self) -> bytes:
        """Return the runs as `read_runs` reads them."""
        return np.concatenate(self._parts, axis=1).tobytes() if self._parts else b""


def read_runs(data: bytes) -> Ints:
    """Return the runs in bytes: int64 [COLUMNS, runs]."""
    return np.frombuffer(data, np.int64).reshape(COLUMNS, -1)


def find_places(sequences: Ints, before: int) -> Ints:
    """Return the places of a partition's records in the order of a stream (int64, ascending): their sequences; for one
    without a sequence (0) the place of the record before it. `before`: that of the record before the first one."""
    places: Ints = np.maximum(np.maximum.accumulate(sequences), before)
    return places


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """Where the deliveries of one task for one consumer are among all that a batch has for it.

    `ranks`, `passed`: the first rank of each run, and how many wanted records the task has passed before it (int64,
    ascending). `rank_shifts`, `passed_shifts`: what is added to both for the whole batch.
    """

    ranks: Ints = field(repr=False)
    rank_shifts: Ints = field(repr=False)
    passed: Ints = field(repr=False)
    passed_shifts: Ints = field(repr=False)

    def place(self, ranks: Ints, passed: Ints) -> tuple[Ints, Ints]:
        """Return the ranks of deliveries among all of the batch, and how many wanted records the batch has passed with each,
        from what the task says of both."""
        own = np.searchsorted(self.ranks, ranks, side="right") - 1
        of = np.searchsorted(self.passed, passed - 1, side="right") - 1
        return ranks + self.rank_shifts[own], np.where(passed < 0, passed, passed + self.passed_shifts[of])


def merge_runs(tasks: Mapping[int, Ints]) -> dict[int, Merge]:
    """Return the merges of the tasks that find anything for a consumer, by number; none if their order is that of the
    sequences. `tasks`: the runs of each, by number."""
    numbers = sorted(number for number, runs in tasks.items() if runs.size)
    if not numbers:
        return {}
    whole = np.concatenate([tasks[number] for number in numbers], axis=1)
    places, delivered, wanted = whole
    if (places[1:] >= places[:-1]).all():
        return {}
    order = np.argsort(places, kind="stable")
    before = np.empty_like(whole)
    before[:, order] = np.cumsum(whole[:, order], axis=1) - whole[:, order]
    merges, start = {}, 0
    for number in numbers:
        mine = slice(start, start + tasks[number].shape[1])
        start = mine.stop
        ranks = np.cumsum(delivered[mine]) - delivered[mine]
        passed = np.cumsum(wanted[mine]) - wanted[mine]
        # a rank belongs to the last run that begins there: those before it have no deliveries
        merges[number] = Merge(ranks, before[1, mine] - ranks, passed, before[2, mine] - passed)
    return merges


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
