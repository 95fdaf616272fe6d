"""num_pending in a job: how many records of a consumer's subjects follow each delivery. No IO.

The order is that of the scan tasks, which is the order of consumer sequences. What a task reads it
counts itself, whether or not a filter accepts it, and numbers its deliveries by what it has passed.
What no task reads are gaps: chunks that the index rules out, what lies between the last messages of a
consumer that is given only these, and the log behind the batch. How many records a gap has is asked of
the chunk index, by the driver. A gap within the batch, in a partition of which some task reads, belongs
to the range of a task, and the task counts it as passed with the first record that it reads after it.
So the records ahead of a delivery are those from its task on, less those that it has passed, and those
behind the batch.

A batch may end in the midst of a chunk, and no header tells how many records the rest of it has. Then the
number behind the batch follows from the one before it, which the index tells, or else the plan of the
batch before.

Where the number of a gap, or that behind the batch, stays unknown, it is unknown for all deliveries
before. The token then says 0, as the service's does (overlay/worker/round/pending_estimate.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.client.read.offset_ranges import OffsetRange
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_reads import Ends

UNKNOWN = -1
NO_TASK = -1
"""The task of a gap after the batch, or in a partition of which no task reads anything: it is ahead of every delivery."""


class Gap(NamedTuple):
    """Offsets that no task reads, first <= offset < end, and the task and the number of its range that they belong
    to; NO_TASK and 0 if they belong to none.
    """

    task: int
    range: int
    source: TopicPartition
    first: int
    end: int


def find_gaps(tasks: Sequence[Sequence[OffsetRange]], reads: Ends, log_ends: Mapping[TopicPartition, int]) -> list[Gap]:
    """Return the offsets that the tasks do not read: those within `reads`, and those from its end to the log's end.

    A gap within `reads` belongs to the range that is read next after it in its partition, which may lie on both sides
    of it, or to the last range that is read if none follows. A gap after `reads`, or in a partition of which no task
    reads anything, has NO_TASK and range 0. `tasks`: the ranges of each task; those of a partition are in the order
    of offsets. `reads`: first and next offset of the batch by partition. `log_ends`: by partition.
    """
    places: dict[TopicPartition, list[tuple[int, int, int, int]]] = {source: [] for source in reads}
    for task, ranges in enumerate(tasks):
        for at, each in enumerate(ranges):
            places[each.source] += ((part.start, part.stop, task, at) for part in each.fetch_ranges())
    gaps = []
    for source, parts in places.items():
        reached, last = reads[source][0], (NO_TASK, 0)
        for start, stop, *place in parts:
            last = place[0], place[1]
            if reached < start:
                gaps.append(Gap(*last, source, reached, start))
            reached = max(reached, stop)
        stop = reads[source][1]
        if reached < stop:
            gaps.append(Gap(*last, source, reached, stop))
        if stop < (end := log_ends.get(source, 0)):
            gaps.append(Gap(NO_TASK, 0, source, stop, end))
    return gaps


@dataclass(frozen=True, slots=True, eq=False)
class TaskGaps:
    """The gaps of one range of a task. `ends`: the next offset after each, ascending (int64). `counts`: the records
    in each with a subject that a consumer wants, int64 [consumers of the task, gaps]; UNKNOWN where the index does
    not tell.
    """

    ends: Ints
    counts: Ints


def group_gaps(gaps: Sequence[Gap], counts: Ints) -> dict[int, dict[int, TaskGaps]]:
    """Return the gaps by task and the number of its range; those without a task are together under NO_TASK and 0,
    though of several partitions. `counts`: the records in each gap, int64 [consumers, gaps], UNKNOWN where the index
    does not tell.
    """
    rows: dict[tuple[int, int], list[int]] = {}
    for row, gap in enumerate(gaps):
        rows.setdefault((gap.task, gap.range), []).append(row)
    grouped: dict[int, dict[int, TaskGaps]] = {}
    for (task, at), some in rows.items():
        ends = np.array([gaps[row].end for row in some], np.int64)
        grouped.setdefault(task, {})[at] = TaskGaps(ends, counts[:, some])
    return grouped


class Passed:
    """How many of a consumer's records a scan task has passed, counted while it reads.

    `consumer`: its place among the task's consumers. `gaps`: those of the task, by number of range.
    """

    def __init__(self, consumer: int, gaps: Mapping[int, TaskGaps]) -> None:
        self._gaps = {at: (found.ends, found.counts[consumer]) for at, found in sorted(gaps.items())}
        self._range = self._before = 0
        self.scanned = 0
        """Records that were read and have a wanted subject."""

    def begin(self, at: int) -> None:
        """Count the gaps of the ranges before range `at` as passed, and go on with that range. The numbers rise from call
        to call."""
        for _, counts in (self._gaps[number] for number in range(self._range, at) if number in self._gaps):
            self._before += int(np.maximum(counts, 0).sum())
        self._range = at

    def number(self, wanted: Ints, rows: Ints, offsets: Ints) -> Ints:
        """Return, for each of `rows`, how many records with a wanted subject the task has passed up to
        it, itself and the gaps before it included (int64). UNKNOWN for a row after which the task
        has a gap of unknown count; such a gap before the row counts as 0. Call it before `pass_by`
        counts the same rows.

        `rows`, `wanted`: ascending row numbers of one slice: those to number, and all with a wanted
        subject, among which `rows` are. `offsets`: of `rows`.
        """
        passed = self.scanned + self._before + 1 + np.searchsorted(wanted, rows)
        if self._range in self._gaps:
            ends, counts = self._gaps[self._range]
            behind = np.searchsorted(ends, offsets, side="right")
            passed += np.concatenate(([0], np.cumsum(np.maximum(counts, 0))))[behind]
            unknown = np.flatnonzero(counts < 0)
            if unknown.size:
                passed[behind <= unknown[-1]] = UNKNOWN
        if any((counts < 0).any() for at, (_, counts) in self._gaps.items() if at > self._range):
            return np.full(rows.size, UNKNOWN, np.int64)
        return passed

    def pass_by(self, count: int) -> None:
        """Count records that were read and have a wanted subject."""
        self.scanned += count


@dataclass(frozen=True, slots=True, eq=False)
class Passing:
    """What the tasks of a batch pass. `counts`: int64 [tasks, consumers], the records with a subject that a consumer wants,
    in what the task reads and in its gaps. `blind`: bool [tasks, consumers], whether the task has a gap of which the index
    does not tell; such a gap adds nothing to `counts`."""

    counts: Ints
    blind: Flags

    @property
    def totals(self) -> Ints:
        """The sum over the tasks, int64 [consumers]; UNKNOWN for a consumer with a gap of which the index does not tell."""
        totals: Ints = np.where(self.blind.any(axis=0), UNKNOWN, self.counts.sum(axis=0))
        return totals

    def sum_ahead(self, behind: Ints) -> Ints:
        """Return how many records are ahead of each consumer before each task, int64 [tasks, consumers]: what this task
        and those after it pass, and what follows the batch. UNKNOWN if a task after it has a gap of which the index does
        not tell, or if `behind` is. `behind`: what follows the batch, int64 [consumers]."""
        ahead: Ints = np.cumsum(self.counts[::-1], axis=0)[::-1] + behind
        # the task itself tells which of its deliveries lie before an unknown gap of its own
        ahead[(np.cumsum(self.blind[::-1], axis=0)[::-1] > self.blind) | (behind < 0)] = UNKNOWN
        return ahead


def sum_passed(scanned: Ints, gaps: Sequence[Mapping[int, TaskGaps]], consumers: Sequence[Sequence[int]]) -> Passing:
    """Return what the tasks of a batch pass.

    `scanned`: int64 [tasks, consumers], what each task has counted in what it reads; not changed. `gaps`: of each task,
    by number of range. `consumers`: of each task, the numbers of its consumers.
    """
    counts, blind = scanned.copy(), np.zeros(scanned.shape, np.bool_)
    for task, numbers in enumerate(consumers):
        for found in gaps[task].values():
            counts[task, list(numbers)] += np.maximum(found.counts, 0).sum(axis=1)
            blind[task, list(numbers)] |= (found.counts < 0).any(axis=1)
    return Passing(counts, blind)


def find_behind(known: Ints, before: Sequence[Ints], passed: Ints) -> Ints:
    """Return how many records of each consumer follow the batch, int64 [consumers]; UNKNOWN where nothing tells, or
    where the numbers contradict each other.

    All arguments are int64 [consumers], UNKNOWN where a number is not known. `known`: the result as the index tells
    it. Where it does not: `before`, less `passed`, from the first source with which this is known and not negative.
    `before`: how many records follow the begin of the batch, from several sources, the best one first. `passed`: how
    many the batch has of them.
    """
    behind = known.copy()
    for each in before:
        rest = np.where((each >= 0) & (passed >= 0), each - passed, UNKNOWN)
        behind = np.where(behind < 0, rest, behind)
    # records that compaction has removed since the index counted them
    return np.maximum(behind, UNKNOWN)


def count_pending(ahead: int, passed: Ints) -> Ints:
    """Return num_pending of a consumer's deliveries in one task (int64), 0 where it is not known.

    `ahead`: of the consumer before the task, from `Passing.sum_ahead`. `passed`: with each delivery, from
    `Passed.number`.
    """
    if ahead < 0:
        return np.zeros(passed.size, np.int64)
    return np.where(passed < 0, 0, np.maximum(ahead - passed, 0))
