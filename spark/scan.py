"""A task: ranges of the log in, Arrow batches in Spark's types out.

Runs in the Python workers of the executors.

It works like a reading in process. An event loop in a thread of its own fetches, decodes and tests,
and passes batches to this thread, which passes them to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructType

from overlay.client.connection import Connection
from overlay.client.read.bounds import ReadBounds
from overlay.client.read.indexes import ReadPlan
from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.reader import Batches, Progress, Scan
from overlay.client.read.reading import Reading
from overlay.client.read.row_filter import RowFilter
from overlay.state.partitions import Sources

from .form import SparkForm
from .kept import keep, settle
from .options import Ask
from .partitions import TaskPartition
from .plan import DataLoss

BATCH_ROWS = 1 << 16
"""Rows that Spark gets at once, because the JVM holds a whole batch in memory."""


def read(ask: Ask, schema: StructType, part: TaskPartition) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task that pass, in batches of at most BATCH_ROWS rows. Blocks while it
    waits for Kafka.

    Raises DataLoss if retention has removed records of the task, unless that is allowed, and what a
    reading raises.
    """
    form, progress = SparkForm(schema, ask.request.stream, ask.stream_name), Progress()
    work = partial(_read, ask=ask, part=part, form=form, progress=progress)
    with Reading(keep(ask).lines, work, form.schema, progress) as batches:
        for batch in batches:
            _check(ask, progress)
            for at in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(at, BATCH_ROWS)
    _check(ask, progress)
    settle()


async def _read(line: Connection, ask: Ask, part: TaskPartition, form: SparkForm, progress: Progress) -> Batches:
    client, request = await line.open(), ask.request
    for topic in request.stream.topic_names:
        await client.add_topic(topic)
    addressing = line.find_addressing(request.stream)
    row_filter = RowFilter(request, sequenced=part.sequenced, addressing=addressing, form=form, ledger=part.ledger)
    # one after the other: a task that runs again must return its rows in the same order, because
    # they are numbered by it
    for offset_range in part.offset_ranges:
        scan = Scan(
            client, line.admin, row_filter, request, _make_bounds(offset_range), ReadPlan((offset_range,)), progress
        )
        async with aclosing(scan.read()) as batches:
            async for batch in batches:
                yield batch


def _make_bounds(offset_range: OffsetRange) -> ReadBounds:
    return ReadBounds((offset_range,), Sources((offset_range.source,), {}))


def _check(ask: Ask, progress: Progress) -> None:
    if progress.lost and ask.fails_on_loss:
        raise DataLoss(
            f"retention removed {progress.lost} offsets before they were read. Read faster, or allow it with"
            " failOnDataLoss=false"
        )
