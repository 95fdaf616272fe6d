"""The columns of a reading, built for the rows that passed (docs/reading.md#from-python).

A reading has no consumer, so `consumer`, `consumer_sequence`, `num_delivered` and `ack_token` are
null. The columns exist all the same, so that code for the batches of a consumer or of Spark can
handle those of a reading as well.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import pyarrow as pa

from overlay.arrays import Ints
from overlay.field import Field
from overlay.match import Addressed
from overlay.match.envelope import COLUMNS, envelope

SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("stream", pa.string()),
        ("consumer", pa.string()),
        ("sequence", pa.int64()),
        ("consumer_sequence", pa.int64()),
        ("num_delivered", pa.int32()),
        ("timestamp", pa.timestamp("ms")),
        ("ack_token", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", COLUMNS["headers"]),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
"""All columns, in order. `timestamp` is UTC, null for a record without a time."""


class Form(Protocol):
    """A builder of batches from rows that passed.

    `fields`: the fields that slices have to be decoded with for `build`.
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def fields(self) -> tuple[Field, ...]: ...

    def build(self, piece: Addressed, rows: Ints, *, sequenced: bool) -> pa.RecordBatch:
        """Return these rows of a slice (row numbers) as a batch of `schema`. `sequenced`: the stream has one partition, so
        that offsets give sequences; otherwise `sequence` is null.

        The batch keeps no reference to the slice's buffers.
        """


class EnvelopeBuilder:
    """A builder of batches with some of the columns of SCHEMA, in the order of SCHEMA.

    `stream`: the stream's name for the column `stream`, None for a topic that no file describes.
    """

    fields: tuple[Field, ...] = ()

    def __init__(self, columns: Collection[str], stream: str | None) -> None:
        self.schema = choose_schema(columns)
        self._columns, self._stream = columns, stream

    def build(self, piece: Addressed, rows: Ints, *, sequenced: bool) -> pa.RecordBatch:
        """Return these rows of a slice (row numbers) as a batch of `self.schema`, as `build_batch` does."""
        return build_batch(piece, rows, self._columns, stream=self._stream, sequenced=sequenced)


def choose_schema(columns: Collection[str]) -> pa.Schema:
    """Return the schema of batches with these columns, in the order of SCHEMA. Names that are not in SCHEMA are left out."""
    return pa.schema([field for field in SCHEMA if field.name in columns])


def build_batch(
    piece: Addressed, rows: Ints, columns: Collection[str], *, stream: str | None, sequenced: bool
) -> pa.RecordBatch:
    """Return these rows of a slice (row numbers) as a batch of `choose_schema(columns)`; if
    `columns` is empty, as a batch without columns, which has only the number of rows.

    The batch keeps no reference to the slice's buffers.

    `stream`: the stream's name for the column `stream`, None for a topic that no file describes.
    `sequenced`: the stream has one partition, so that offsets give sequences; otherwise `sequence`
    is null.
    """
    known = [name for name in columns if name in COLUMNS]
    found = envelope(piece.records, rows, piece.codes, piece.dictionary, piece.topic, piece.partition, known, sequenced)
    if not columns:
        return found
    schema = choose_schema(columns)
    return pa.RecordBatch.from_arrays([_take(field, found, stream) for field in schema], schema=schema)


def make_empty_rows(count: int) -> pa.RecordBatch:
    """Return a batch of `count` rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))


def _take(field: pa.Field, found: pa.RecordBatch, stream: str | None) -> pa.Array:
    if field.name == "stream":
        return pa.repeat(pa.scalar(stream, pa.string()), found.num_rows)
    if field.name not in found.schema.names:
        return pa.nulls(found.num_rows, field.type)
    column = found[field.name]
    # a dictionary has every subject so far, and would be kept as long as any batch
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
