"""A scan task of a job: ranges of the log in, blocks for all its consumers out. Runs in an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from overlay.arrays import Ints
from overlay.client.connection import Connection
from overlay.client.read.bounds import ReadBounds
from overlay.client.read.indexes import ReadPlan
from overlay.client.read.question import CheckedQuestion, make_request
from overlay.client.read.reader import Batches, Progress, Scan
from overlay.client.read.reading import Reading
from overlay.kafka.log_position import TopicPartition
from overlay.state.partitions import Sources
from spark.kept import keep_connections, settle
from spark.partitions import TaskPartition
from spark.plan import DataLoss

from .ahead import TaskGaps
from .block_filter import BlockFilter
from .blocks import NO_CONSUMER, SCHEMA, make_tally
from .readers import JobScan


@dataclass(frozen=True, slots=True)
class ScanTask:
    """What one task reads, and for which consumers of the job, by their numbers.

    `fails_on_loss`: whether offsets that retention removes before they are read end the job. If not,
    the task counts them. `only`: the offsets to deliver, by partition (int64, ascending); None for all.
    `gaps`: what the task does not read, by number of range, for num_pending.
    """

    part: TaskPartition
    consumers: tuple[int, ...]
    fails_on_loss: bool = True
    only: Mapping[TopicPartition, Ints] | None = None
    gaps: Mapping[int, TaskGaps] = field(default_factory=dict)


def scan(scan: JobScan, number: int, task: ScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of a task, and at the end a tally for each consumer and one of lost offsets, as far as there
    is anything to tell. `number`: of the task in its batch. Raises DataLoss if retention has removed offsets of the
    task and `task.fails_on_loss` is set, RecordRefused, and what a reading raises.
    """
    progress = Progress()
    request = make_request(scan.stream, is_named=True, now=scan.now, columns=["offset"])
    work = partial(_read, scan=scan, number=number, task=task, request=request, progress=progress)
    connections = keep_connections(scan.kafka, scan.prefix, scan.stream).lines
    with Reading(connections, work, SCHEMA, progress) as batches:
        for batch in batches:
            _check(task, progress)
            yield batch
    _check(task, progress)
    if progress.lost:
        yield make_tally(number, NO_CONSUMER, progress.lost)
    settle()


async def _read(
    line: Connection, scan: JobScan, number: int, task: ScanTask, request: CheckedQuestion, progress: Progress
) -> Batches:
    client = await line.open()
    for topic in scan.stream.topic_names:
        await client.add_topic(topic)
    addressing, part = line.find_addressing(scan.stream), task.part
    block_filter = BlockFilter(
        scan, number, task.consumers, sequenced=part.sequenced, ledger=part.ledger, addressing=addressing,
        only=task.only, gaps=task.gaps,
    )  # fmt: skip
    # one after the other: ranks follow the order of the ranges
    for at, offset_range in enumerate(part.offset_ranges):
        block_filter.begin(at)
        bounds = ReadBounds((offset_range,), Sources((offset_range.source,), {}))
        reading = Scan(client, line.admin, block_filter, request, bounds, ReadPlan((offset_range,)), progress)
        async with aclosing(reading.read()) as batches:
            async for batch in batches:
                yield batch
    for tally in block_filter.tally():
        yield tally


def _check(task: ScanTask, progress: Progress) -> None:
    if progress.lost and task.fails_on_loss:
        raise DataLoss(
            f"retention removed {progress.lost} offsets before they were read. Read faster, or allow it with"
            " failOnDataLoss=false"
        )
