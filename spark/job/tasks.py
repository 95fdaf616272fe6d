"""The scan tasks of a batch: what each reads, for which consumers, and what lies between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import ConsumerPlan
from overlay.state.job_reads import Ends
from spark.options import Ranges
from spark.partitions import TaskPartition

from .ahead import NO_TASK, UNKNOWN, Gap, find_behind, find_gaps, group_gaps, sum_passed
from .consumers import JobConsumers
from .scanning import ScanTask

GAP = 5_000
"""Offsets between two last messages from which on they are fetched apart."""
NO_OFFSETS: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Consumers for which a batch reads the same offsets in one pass, by their numbers.

    `fails`: whether the loss of an offset ends the job. `only`: the offsets of the last messages, if
    the one consumer is given nothing else now; None otherwise.
    """

    reads: Ends
    fails: bool
    only: Mapping[TopicPartition, Ints] | None = None
    numbers: list[int] = field(default_factory=list)

    def find_ranges(self) -> Ranges | None:
        """Return by partition the offsets that have to be read, as spans (first, next): from last message to last
        message, where these are no more than GAP apart. None for all of `reads`.
        """
        if self.only is None:
            return None
        ranges = {}
        for source, (start, stop) in self.reads.items():
            wanted = cut(self.only.get(source, NO_OFFSETS), start, stop)
            apart = np.diff(wanted) > GAP
            begins = wanted[np.concatenate(([True], apart))] if wanted.size else wanted
            ends = wanted[np.concatenate((apart, [True]))] if wanted.size else wanted
            ranges[source] = tuple((begin, end + 1) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        return ranges

    def cut_only(self, part: TaskPartition) -> Mapping[TopicPartition, Ints] | None:
        """Return the offsets to deliver among those that a task reads, None for all."""
        if self.only is None:
            return None
        found: dict[TopicPartition, list[Ints]] = {}
        for each in part.offset_ranges:
            found.setdefault(each.source, []).append(cut(self.only.get(each.source, NO_OFFSETS), each.start, each.stop))
        return {source: np.concatenate(parts) for source, parts in found.items()}


def cut(offsets: Ints, start: int, stop: int) -> Ints:
    """Return the offsets with start <= offset < stop. `offsets`: ascending."""
    low, high = np.searchsorted(offsets, (start, stop)).tolist()
    return offsets[low:high]


def cut_lasts(
    lasts: Mapping[TopicPartition, Ints],
    reads: Mapping[TopicPartition, tuple[int, int]],
    weights: Mapping[TopicPartition, float],
    size: int,
) -> Ends:
    """Return what a batch reads for a consumer that is given its last messages, with each stop lowered so that about `size`
    bytes are fetched at most; but at least one last message of each partition that has any.

    `lasts`: the offsets of the last messages (int64, ascending). `reads`: what is left of them to read. `weights`: bytes of
    each offset, by partition, at least for those with last messages in `reads`.
    """
    costs, total = dict[TopicPartition, Ints](), 0.0
    for source, (start, stop) in reads.items():
        if (wanted := cut(lasts.get(source, NO_OFFSETS), start, stop)).size:
            between = np.diff(wanted, prepend=wanted[0] - 1)
            # what lies between two that are far apart is not fetched (_Group.find_ranges)
            costs[source] = np.cumsum(np.where(between > GAP, 1, between))
            total += int(costs[source][-1]) * weights[source]
    cuts = dict(reads)
    if total <= size:
        return cuts
    for source, cost in costs.items():
        start, stop = reads[source]
        count = max(1, int(np.searchsorted(cost, int(cost[-1]) * size / total, side="right")))
        if count < cost.size:
            cuts[source] = start, int(cut(lasts[source], start, stop)[count])
    return cuts


@dataclass(frozen=True, slots=True, eq=False)
class BatchTasks:
    """The scan tasks of a batch, and how many records each consumer has in parts of the log by the chunk index.

    The arrays are int64 [consumers], UNKNOWN where the index does not tell or was not asked. `before`: from where the
    batch reads up to `log_ends`. `left`: from the batch's end up to `log_ends`. `unread`: within the batch, in
    partitions of which no task reads anything. `behind`: what both of these have together, ahead of every delivery;
    also what the index counts only together with a part of `left` (`_count_gaps`). `log_ends`: the last stable offset
    of each partition, or the batch's own end if the options do not limit a batch.
    """

    tasks: tuple[ScanTask, ...]
    before: Ints
    behind: Ints
    left: Ints
    unread: Ints
    log_ends: Mapping[TopicPartition, int]

    def find_ahead(self, scanned: Ints, carried: Ints) -> tuple[Ints, Ints]:
        """Return how many records are ahead of each consumer before each task (int64 [tasks, consumers]) and after the
        batch (int64 [consumers]); UNKNOWN where nothing tells.

        `scanned`: int64 [tasks, consumers], what each task has counted. `carried`: what the batch before has
        left ahead, UNKNOWN if that is not known.
        """
        passing = sum_passed(scanned, [task.gaps for task in self.tasks], [task.consumers for task in self.tasks])
        sources = self.before, carried
        whole = _sum(np.stack((passing.totals, self.unread), axis=1))
        behind = find_behind(self.behind, sources, passing.totals)
        return passing.sum_ahead(behind), find_behind(self.left, sources, whole)

    def has_gaps(self, consumers: int) -> Flags:
        """Return whether the tasks pass records of a consumer that they do not read, bool [consumers]."""
        found = np.zeros(consumers, np.bool_)
        for task in self.tasks:
            found[list(task.consumers)] |= bool(task.gaps)
        return found

    def keep(self, left: Ints) -> BatchTasks:
        """Return a copy whose `behind` and `left` are taken from the argument where they are UNKNOWN.
        `left`: how many records a first attempt at this batch has left ahead, int64 [consumers],
        UNKNOWN if that is not known.
        """
        behind: Ints = np.where(self.behind < 0, left, self.behind)
        return replace(self, behind=behind, left=np.where(self.left < 0, left, self.left))


@dataclass(slots=True)
class TaskPlanner:
    """A planner of the scan tasks of a job's batches, which keeps the last messages that it has searched for."""

    _lasts: dict[str, tuple[object, Mapping[TopicPartition, Ints]]] = field(default_factory=dict)
    """Last messages of consumers that are given these, by name, each with what they were searched for."""

    def plan(self, consumers: JobConsumers, ends: Ends, plans: Mapping[str, ConsumerPlan], bounds: Ends) -> BatchTasks:
        """Return the scan tasks of a batch: one pass for all consumers that read it, and one for each group of those
        that catch up from the same offsets. `plans`: by name, in the order of the consumers' numbers. `bounds`: of each
        partition's log.

        What retention has removed of the batch's own offsets ends the job, unless failOnDataLoss is off. Consumers with
        offsets of their own go on at the log's start, so that their loss does not end the job for the others.
        """
        tasks = list[ScanTask]()
        before, behind, left, unread = (np.full(len(plans), UNKNOWN, np.int64) for _ in range(4))
        # without a limit a batch ends where the log ended when it was begun
        log_ends = {source: end for source, (_, end) in (bounds if consumers.is_limited else ends).items()}
        every = list(plans.values())
        for group in self._group(consumers, ends, plans, bounds):
            numbers = group.numbers
            if not any(start < stop for start, stop in group.reads.values()):
                unread[numbers] = 0
                continue
            parts = consumers.plan(group.reads, numbers, may_lose=not group.fails, ranges=group.find_ranges())
            gaps = find_gaps([part.offset_ranges for part in parts], group.reads, log_ends)
            counts = _count_gaps(consumers, group, gaps, [every[number] for number in numbers], log_ends)
            grouped = group_gaps(gaps, counts.gaps)
            tasks += (
                ScanTask(part, tuple(numbers), group.fails, group.cut_only(part), grouped.get(at, {}))
                for at, part in enumerate(parts)
            )
            before[numbers], left[numbers], unread[numbers] = counts.whole, counts.left, counts.unread
            behind[numbers] = _sum(counts.gaps[:, [at for at, gap in enumerate(gaps) if gap.task == NO_TASK]])
        return BatchTasks(tuple(tasks), before, behind, left, unread, log_ends)

    def _group(
        self, consumers: JobConsumers, ends: Ends, plans: Mapping[str, ConsumerPlan], bounds: Ends
    ) -> list[_Group]:
        """Return the consumers by what a batch reads for them."""
        log_starts = {source: first for source, (first, _) in bounds.items()}
        groups: dict[str, _Group] = {}
        for at, (name, each) in enumerate(plans.items()):
            fails = consumers.scan.fails_on_loss and not each.reads
            reads = ends if fails else each.find_readable(ends, log_starts)[0]
            key = repr((fails, sorted(reads.items()), name if each.snapshot else ""))
            if key not in groups:
                only = self.find_lasts(consumers, at, name, each) if each.snapshot else None
                groups[key] = _Group(reads, fails, only)
            groups[key].numbers.append(at)
        return list(groups.values())

    def find_lasts(
        self, consumers: JobConsumers, at: int, name: str, plan: ConsumerPlan
    ) -> Mapping[TopicPartition, Ints]:
        """Return the offsets of a consumer's last messages. They are searched for once, from where the first batch
        that asks reads for the consumer, and kept until its claim, its beginning or its snapshot changes. `at`: its
        number.
        """
        key = plan.claim, plan.since, sorted(plan.snapshot.items())
        if name not in self._lasts or self._lasts[name][0] != key:
            offsets = {source: start for source, (start, _) in plan.reads.items()}
            self._lasts[name] = key, consumers.find_lasts(at, offsets, plan.snapshot)
        return self._lasts[name][1]


class _Counts(NamedTuple):
    """How many records a group's consumers have. `gaps`: in each gap, int64 [consumers, gaps]. `whole`, `left`, `unread`:
    int64 [consumers], as `before`, `left` and `unread` of BatchTasks. UNKNOWN where the index does not tell."""

    gaps: Ints
    whole: Ints
    left: Ints
    unread: Ints


def _count_gaps(
    consumers: JobConsumers,
    group: _Group,
    gaps: Sequence[Gap],
    plans: Sequence[ConsumerPlan],
    log_ends: Mapping[TopicPartition, int],
) -> _Counts:
    """Return how many records each consumer of a group has in each gap, and the sums over gaps that _Counts names.
    `plans`: of the group's consumers. Without gaps `whole` is UNKNOWN: nothing has to be asked of the index.

    If the index tells of a gap at the batch's end only together with the gap behind it, the first has 0 and the
    second has both.
    """
    if not gaps:
        none, every = np.zeros(len(plans), np.int64), np.full(len(plans), UNKNOWN, np.int64)
        return _Counts(np.zeros((len(plans), 0), np.int64), every, none, none)
    stops = {source: stop for source, (_, stop) in group.reads.items()}
    beyond = [at for at, gap in enumerate(gaps) if gap.first >= stops[gap.source]]
    inner = [at for at, gap in enumerate(gaps) if gap.task == NO_TASK and at not in beyond]
    # a chunk may lie at the end of the batch and behind it; then both gaps are counted as one, unless deliveries from other
    # partitions come between them
    is_alone = len(group.reads) == 1
    ending = {(gap.source, gap.end): at for at, gap in enumerate(gaps) if is_alone and at not in beyond}
    pairs = [(low, at) for at in beyond if (low := ending.get((gaps[at].source, gaps[at].first))) is not None]
    spans = [gap[2:] for gap in gaps]
    spans += [(gaps[low].source, gaps[low].first, gaps[high].end) for low, high in pairs]
    spans += [(source, start, max(stop, log_ends.get(source, 0))) for source, (start, stop) in group.reads.items()]
    found = _count_spans(consumers, group, spans, plans)
    counts, whole = found[:, : len(gaps)].copy(), _sum(found[:, len(gaps) + len(pairs) :])
    left, unread = _sum(counts[:, beyond]), _sum(counts[:, inner])
    for at, (low, high) in enumerate(pairs, len(gaps)):
        is_one = (found[:, at] >= 0) & ((counts[:, low] < 0) | (counts[:, high] < 0))
        counts[is_one, low], counts[is_one, high] = 0, found[is_one, at]
        # how much of it the batch has passed is not known
        unread[is_one] = UNKNOWN
    return _Counts(counts, whole, left, unread)


def _sum(counts: Ints) -> Ints:
    """Return the sum of each row, UNKNOWN if a part of it is."""
    sums: Ints = np.where((counts < 0).any(axis=1), UNKNOWN, counts.sum(axis=1))
    return sums


def _count_spans(
    consumers: JobConsumers,
    group: _Group,
    spans: Sequence[tuple[TopicPartition, int, int]],
    plans: Sequence[ConsumerPlan],
) -> Ints:
    """Return how many records each consumer of a group has in each span, int64 [consumers, spans]; UNKNOWN where the
    chunk index does not tell, or if the consumer begins within the span. Below the end of a snapshot only the last
    messages count.
    """
    counts = np.zeros((len(plans), len(spans)), np.int64)
    asked = []
    for at, (source, begin, end) in enumerate(spans):
        first = begin
        if group.only is not None:
            # below the end of a snapshot only the last messages are ahead
            first = min(max(begin, plans[0].snapshot.get(source, 0)), end)
            counts[0, at] = cut(group.only.get(source, NO_OFFSETS), begin, first).size
        if first < end:
            asked.append((at, (source, first, end)))
    if not asked:
        return counts
    found = consumers.count_spans(group.numbers, [span for _, span in asked])
    for row, each in enumerate(plans):
        for column, (_, (source, first, end)) in enumerate(asked):
            if first < (floor := each.floors.get(source, 0)):
                # the consumer begins within the span, or behind it
                found[row, column] = 0 if floor >= end else UNKNOWN
    columns = [at for at, _ in asked]
    counts[:, columns] = np.where(found < 0, UNKNOWN, counts[:, columns] + found)
    return counts
