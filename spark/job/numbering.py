"""The consumer sequences of a batch: who gets which, from how many records the scan tasks have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from overlay.arrays import Ints
from overlay.state.job_plan import BatchPlan, ConsumerPlan

Count = tuple[int, int, int, int]
"""Scan task, consumer, writer, and how many records the task found for the consumer in the writer's output partition."""


def tabulate(counts: Iterable[Count], tasks: int, consumers: int, writers: int) -> tuple[Ints, Ints]:
    """Return the records by task and consumer, and by task and writer (int64)."""
    by_consumer, by_writer = np.zeros((tasks, consumers), np.int64), np.zeros((tasks, writers), np.int64)
    for task, consumer, writer, rows in counts:
        by_consumer[task, consumer] += rows
        by_writer[task, writer] += rows
    return by_consumer, by_writer


def number(by_consumer: Ints, before: Sequence[int]) -> Ints:
    """Return the consumer sequence before each task's first record of each consumer (int64 [tasks, consumers]).

    `by_consumer`: records by task and consumer. `before`: the last sequence of each consumer before the batch.
    """
    ends = np.cumsum(by_consumer, axis=0)
    return ends - by_consumer + np.array(before, np.int64)


def number_consumers(
    last: BatchPlan | None, batch: int, drafts: Mapping[str, ConsumerPlan], found: Sequence[int]
) -> dict[str, ConsumerPlan]:
    """Return the plans of a batch's consumers with their last sequence.

    `last`: the last plan of the job. `drafts`: by name, in the order of `found`, which says how many
    records the batch has for each consumer.

    A batch that is run again keeps its sequences if it finds as many records as before. If it finds
    fewer, since the log was compacted in between, a part of its deliveries may have been committed
    with the former sequences; then it goes on behind these.
    """
    plans: dict[str, ConsumerPlan] = {}
    for (name, draft), count in zip(drafts.items(), found, strict=True):
        known = last.consumers.get(name) if last is not None and last.batch == batch else None
        before = draft.before
        if known is not None and known.last - known.before != count:
            before = known.last
        plans[name] = replace(draft, before=before, last=before + count)
    return plans
