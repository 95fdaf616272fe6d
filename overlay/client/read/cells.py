"""Columns of records as texts for people: times, headers, and any other type."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from overlay.client.html import write_line, write_table
from overlay.client.texts import show_content

from .columns import SCHEMA

MOST_ROWS = 20
"""Most rows of a table in HTML."""


def show_times(column: pa.Array) -> list[str | None]:
    """Return the timestamps of a column as texts in UTC, like `2026-01-31T12:00:00.000Z`, cut to ms; None for null."""
    # neither to_numpy nor a scalar of Arrow: both import pandas where it is installed, which takes longer than most commands
    times = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
    numbers = np.array([time or 0 for time in times], np.int64).astype("datetime64[ms]")
    texts = np.datetime_as_string(numbers, unit="ms", timezone="UTC").tolist()
    return [None if time is None else text for time, text in zip(times, texts, strict=True)]


def list_headers(column: pa.Array) -> list[list[tuple[str, bytes | None]]]:
    """Return, for each record, the (name, value) pairs of its headers in order. `column`: `headers` of SCHEMA, without
    nulls.
    """
    pairs = column.flatten()
    names, values = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    bounds = column.offsets.to_pylist()
    flat = list(zip(names, values, strict=True))
    return [flat[first - bounds[0] : end - bounds[0]] for first, end in itertools.pairwise(bounds)]


def show_column(column: pa.Array) -> list[str | None]:
    """Return the value of each row as text for people; None for null. Bytes are escaped onto one line
    (`show_content`), texts stay as they are. Headers and structs are written as `name=value` with spaces between.
    """
    type = column.type
    if pa.types.is_dictionary(type):
        return show_column(column.dictionary_decode())
    if pa.types.is_timestamp(type):
        return show_times(column)
    if pa.types.is_struct(type):
        fields = [show_column(field) for field in column.flatten()]
        rows: Iterable[tuple[str | None, ...]] = zip(*fields, strict=True) if fields else [()] * len(column)
        texts = [_show_fields(zip((field.name for field in type), row, strict=True)) for row in rows]
        return [text if there else None for there, text in zip(column.is_valid().to_pylist(), texts, strict=True)]
    if type == SCHEMA.field("headers").type:
        return [_show_fields((name, _show_value(value)) for name, value in pairs) for pairs in list_headers(column)]
    return [_show_value(value) for value in column.to_pylist()]


def _show_value(value: object) -> str | None:
    if value is None:
        return None
    return show_content(value) if isinstance(value, bytes) else str(value)


def _show_fields(fields: Iterable[tuple[str, str | None]]) -> str:
    """Return, joined by spaces, `name=value` for each field, and the name alone for one whose value is None."""
    return " ".join(name if value is None else f"{name}={value}" for name, value in fields)


def write_records(data: pa.RecordBatch | pa.Table) -> str:
    """Return the first rows of a batch or a table as an HTML table, at most MOST_ROWS. Columns that are null in all of
    these rows are left out and named below it, beside the number of records.
    """
    shown = data.slice(0, MOST_ROWS)
    arrays = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in shown.columns]
    columns = {name: array for name, array in zip(shown.schema.names, arrays, strict=True) if len(array)}
    empty = [name for name, array in columns.items() if array.null_count == len(array)]
    seen = {name: array for name, array in columns.items() if name not in empty}
    numbers = [
        name for name, array in seen.items() if pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ]
    table = write_table(list(seen), zip(*map(show_column, seen.values()), strict=True), numbers) if seen else ""
    count = f"{data.num_rows:,} record{'' if data.num_rows == 1 else 's'}"
    notes = [f"the first {shown.num_rows} of {count}" if shown.num_rows < data.num_rows else count]
    notes += [f"null: {', '.join(empty)}"] if empty else []
    return table + write_line("; ".join(notes))
