"""Blocks: what the scan tasks of a job hand to its write tasks.

A block has records of one source partition for one consumer and one output partition, as the bytes
of the source log with the arrays that say where each record is. They are deliveries, or dead letters:
records that the output can never take. The dead letters are written by the task that writes the output
partition to which the records belong. So a record is delivered or given up by one transaction, and
never both, even if the output's limits change before a batch is run again. Spark carries it as one binary
value. So neither Python nor the JVM makes an object for a record, and a write task gives the
records their consumer sequences, their tokens and their compression through the service's own code
(overlay/output/assemble.py). The value is compressed here: it crosses a socket twice, and Spark
copies it several times between them.

A tally is a row of the same form without records (`writer` is TALLY): it tells the driver what a scan
task has counted.

The cut into blocks follows from how the fetches came, so it differs from one run of a task to the next.
What a task finds does not, unless the log loses records in between (writing.BatchChanged). So a block
names its records by their rank among all deliveries that its task found for the consumer, and the
consumer sequence of a record is the sequence before the task, plus the rank, plus 1. Dead letters take
no consumer sequence and have no rank.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.match.record_slice import RecordSlice
from overlay.scan.decode import Records
from overlay.scan.plan import make_plan
from overlay.subject.dictionary import Texts

SCHEMA = pa.schema(
    [
        pa.field(name, type, nullable=False)
        for name, type in (
            ("writer", pa.int32()),
            ("task", pa.int32()),
            ("number", pa.int32()),
            ("consumer", pa.int32()),
            ("rows", pa.int64()),
            ("dead", pa.bool_()),
            ("size", pa.int64()),
            ("place", pa.int64()),
            ("data", pa.binary()),
        )
    ]
)
"""`writer`: number of the output partition. `task`, `number`: of the scan task, and of the block within it; blocks of a
writer are written in this order, or in that of `place` if they have to be merged (order.py). `consumer`: number of the
consumer. `rows`: records in the block. `dead`: whether they are dead letters. `size`: their bytes, as rate limits count
them. `place`: of the first record in the order of the stream, 0 if the stream has one partition or no ledger."""
DDL = (
    "writer int, task int, number int, consumer int, rows bigint, dead boolean, size bigint, place bigint, data binary"
)
"""The same schema as Spark writes it."""

TALLY = -1
"""The number of the writer in a tally."""
RUNS = -2
"""The number of the writer in a row with the runs of a task for a consumer (runs.Runs) as its data."""
NO_CONSUMER = -1
"""The number of the consumer in a tally of offsets that retention removed before the task read them."""

_HEAD = struct.Struct("<qqqqq")
_CODEC = "lz4_raw"
_NO_FIELDS: Ints = np.empty((0, 0), np.int64)


def pack(records: RecordSlice, ranks: Ints, passed: Ints) -> bytes:
    """Return a block's data. `ranks`: of each record (int64). `passed`: with each record, as ahead.Passed numbers
    them (int64). Both are 0 for dead letters.
    """
    source, texts = records.records, records.texts
    head = _HEAD.pack(len(records), texts.bounds.size, texts.text.size, source.buf.size, records.partition)
    columns = (
        source.offset, source.timestamp, source.body, source.end, records.sequences, ranks, passed, texts.bounds, records.codes,
        texts.text, source.buf,
    )  # fmt: skip
    # the widest come first, so that each is aligned
    whole = b"".join(np.ascontiguousarray(column).data for column in columns)
    compressed: bytes = pa.compress(whole, codec=_CODEC, asbytes=True)
    return head + compressed


def make_tally(task: int, consumer: int, count: int) -> pa.RecordBatch:
    """Return a tally of a scan task as a batch of one row: of the records with a subject that a consumer wants, or, with
    NO_CONSUMER, of lost offsets."""
    return _make_row((TALLY, task, 0, consumer, count, False, 0, 0, b""))


def make_runs(task: int, consumer: int, runs: bytes) -> pa.RecordBatch:
    """Return the runs of a scan task for a consumer as a batch of one row."""
    return _make_row((RUNS, task, 0, consumer, 0, False, 0, 0, runs))


def _make_row(row: tuple[object, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(row, SCHEMA, strict=True)], schema=SCHEMA
    )


def unpack(data: bytes) -> tuple[RecordSlice, Ints, Ints]:
    """Return the records of a block, their ranks, and what is passed with each (`pack`). They do not
    refer to `data`.
    """
    rows, bounds_size, text_size, size, partition = _HEAD.unpack_from(data)
    types: tuple[type[np.generic], ...] = (*(np.int64,) * 8, np.int32, np.uint8, np.uint8)
    counts = (*(rows,) * 7, bounds_size, rows, text_size, size)
    whole = sum(np.dtype(type).itemsize * count for type, count in zip(types, counts, strict=True))
    # kernels are compiled for arrays that may be written: so is this buffer, and a view of bytes is not
    buffer = pa.decompress(memoryview(data)[_HEAD.size :], whole, codec=_CODEC)
    at = 0

    def read(type: type[np.generic], count: int) -> Any:
        nonlocal at
        column: Any = np.frombuffer(buffer, type, count, at)
        at += column.nbytes
        return column

    offset, timestamp, body, end, sequences, ranks, passed, bounds, codes, text, buf = map(read, types, counts)
    next_offset = int(offset[-1]) + 1 if rows else 0
    records = Records(buf, offset, timestamp, body, end, _NO_FIELDS, _NO_FIELDS, next_offset, make_plan())
    return RecordSlice(records, codes, Texts(text, bounds), partition, sequences), ranks, passed
