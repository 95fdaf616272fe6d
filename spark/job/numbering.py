"""The consumer sequences of a batch: who gets which, from how many records the scan tasks have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from overlay.arrays import Flags, Ints
from overlay.state.job_plan import BatchPlan, ConsumerPlan

from .ahead import UNKNOWN
from .blocks import NO_CONSUMER, RUNS, TALLY
from .runs import Merge, merge_runs


class Count(NamedTuple):
    """How many records a scan task has found for a consumer in the output partition of a writer.

    `dead`: whether they are dead letters, which take no consumer sequence. `size`: their bytes. A tally
    (`writer` is blocks.TALLY) has in `rows` what the task has counted. `runs`: those of the task for the consumer, if
    `writer` is blocks.RUNS.
    """

    task: int
    consumer: int
    writer: int
    dead: bool
    rows: int
    size: int
    runs: bytes = b""


@dataclass(frozen=True, slots=True)
class Tables:
    """The counts of a batch's records, as int64 arrays.

    `deliveries`: [tasks, consumers], without dead letters. `letters`: [consumers], the dead letters. `sizes`:
    [consumers], the bytes of the deliveries. `by_writer`: [tasks, writers], deliveries and letters together. `lost`:
    [tasks], the offsets that retention removed before the task read them. `scanned`: [tasks, consumers], the numbers
    of the tasks' tallies (`BlockFilter.tally`).
    """

    deliveries: Ints
    letters: Ints
    sizes: Ints
    by_writer: Ints
    lost: Ints
    scanned: Ints


def tabulate(counts: Iterable[Count], tasks: int, consumers: int, writers: int) -> Tables:
    """Return the tables of a batch with so many scan tasks, consumers and writers."""
    deliveries, by_writer = np.zeros((tasks, consumers), np.int64), np.zeros((tasks, writers), np.int64)
    letters, sizes, lost = (np.zeros(size, np.int64) for size in (consumers, consumers, tasks))
    scanned = np.zeros((tasks, consumers), np.int64)
    for count in counts:
        if count.writer == RUNS:
            continue
        if count.writer == TALLY:
            at = count.task if count.consumer == NO_CONSUMER else (count.task, count.consumer)
            (lost if count.consumer == NO_CONSUMER else scanned)[at] += count.rows
            continue
        by_writer[count.task, count.writer] += count.rows
        if count.dead:
            letters[count.consumer] += count.rows
        else:
            deliveries[count.task, count.consumer] += count.rows
            sizes[count.consumer] += count.size
    return Tables(deliveries, letters, sizes, by_writer, lost, scanned)


def find_merges(counts: Iterable[Count]) -> dict[tuple[int, int], Merge]:
    """Return the merges of a batch (runs.py), by number of the task and of the consumer; none for a consumer whose records the
    tasks find in the order of the stream."""
    runs: dict[int, dict[int, bytes]] = {}
    for count in counts:
        if count.writer == RUNS:
            runs.setdefault(count.consumer, {})[count.task] = count.runs
    return {(task, consumer): each for consumer, of in runs.items() for task, each in merge_runs(of).items()}


def number_merged(
    before: Ints, ahead: Ints, merges: Mapping[tuple[int, int], Merge], first: Sequence[int], has_gaps: Flags
) -> None:
    """Change `before` and `ahead` (int64 [tasks, consumers]) for consumers whose records are merged: to what is before the
    batch, and ahead of it. `first`: of each consumer, the last sequence before the batch. `has_gaps`: bool [consumers],
    whether a task passes records without reading them. How these lie between records of other partitions is not known, so
    what is ahead is not known either.
    """
    for consumer in {consumer for _, consumer in merges}:
        before[:, consumer] = first[consumer]
        ahead[:, consumer] = UNKNOWN if has_gaps[consumer] else ahead[0, consumer]


def number(deliveries: Ints, before: Sequence[int]) -> Ints:
    """Return the consumer sequence before each task's first record of each consumer (int64 [tasks, consumers]).

    `deliveries`: records by task and consumer. `before`: the last sequence of each consumer before the batch.
    """
    ends = np.cumsum(deliveries, axis=0)
    return ends - deliveries + np.array(before, np.int64)


def number_consumers(
    last: BatchPlan | None, batch: int, drafts: Mapping[str, ConsumerPlan], tables: Tables
) -> dict[str, ConsumerPlan]:
    """Return the plans of a batch's consumers with the sequence before the batch, the last one, and how many dead
    letters they have.

    `last`: the last plan of the job, None for a new one. `drafts`: by name, in the order of the consumers' numbers.
    `tables`: the counts of the batch's records.

    A batch that is run again keeps a consumer's sequences if it finds as many deliveries for it as before. If it
    finds another number, since the log has lost records in between, a part of its deliveries may have been committed
    with the former sequences; then it continues after these.
    """
    plans: dict[str, ConsumerPlan] = {}
    found = tables.deliveries.sum(axis=0).tolist()
    for (name, draft), count, letters in zip(drafts.items(), found, tables.letters.tolist(), strict=True):
        known = last.consumers.get(name) if last is not None and last.batch == batch else None
        before = draft.before
        if known is not None and known.last - known.before != count:
            before = known.last
        plans[name] = replace(draft, before=before, last=before + count, letters=letters)
    return plans
