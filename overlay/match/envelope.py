"""The envelope: a record's columns besides its properties, as filters and readers get them
(docs/reading.md).

The walk records where a record's body is, and the fields that the plan asks for. Key, value and
headers of a record that matched are found by walking its body once more. That is cheap, since such
records are few, or the reader wants their bytes anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from overlay.arrays import Bytes, Int, Int32s, Ints
from overlay.kernels import kernel
from overlay.scan.columns import NO_TIMESTAMP, gather, wrap
from overlay.scan.decode import Records
from overlay.scan.kernel import open_bodies
from overlay.scan.varint import read_varint
from overlay.subject.dictionary import Codes, Dictionary

_HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])

COLUMNS: dict[str, pa.DataType] = {
    "subject": pa.dictionary(pa.int32(), pa.string()),
    "sequence": pa.int64(),
    "timestamp": pa.timestamp("ms"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(_HEADER),
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
"""The columns that `envelope` can make, in the order in which it returns them."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The requested records of a slice, and where their parts are in `buf`: one item per record in
    each array. A size is -1 for a null key or value.
    """

    buf: Bytes
    count: int
    offset: Ints
    timestamp: Ints
    end: Ints
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    headers_at: Ints
    codes: Codes
    dictionary: Dictionary
    topic: str
    partition: int
    sequenced: bool


def envelope(
    records: Records,
    rows: Ints,
    codes: Codes,
    dictionary: Dictionary,
    topic: str,
    partition: int,
    columns: Collection[str],
    sequenced: bool,
) -> pa.RecordBatch:
    """Return the columns named in `columns` for the records `rows` (row numbers) of a slice. The
    columns are in the order of COLUMNS, the rows in that of `rows`.

    `codes`: the subject code of each record of the slice, from `dictionary`; the `subject` is null
    if the code is negative. `sequenced`: the stream has one partition, so `sequence` is the offset
    + 1; otherwise it is null, and if the stream has a ledger, the caller puts sequences there. The
    `timestamp` of a record without one is null. Raises ValueError for an unknown column.
    """
    unknown = sorted(set(columns) - COLUMNS.keys())
    if unknown:
        raise ValueError(f"no such envelope column: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    names = [name for name in COLUMNS if name in columns]
    opened = _open(records, rows, codes, dictionary, topic, partition, sequenced)
    arrays = [_BUILDERS[name](opened) for name in names]
    if not names:
        return pa.RecordBatch.from_struct_array(pa.nulls(rows.size, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, COLUMNS[name]) for name in names]))


def _open(
    records: Records,
    rows: Ints,
    codes: Codes,
    dictionary: Dictionary,
    topic: str,
    partition: int,
    sequenced: bool,
) -> _Rows:
    end = records.end[rows]
    key_at, key_size, value_at, value_size, headers_at = (np.empty(rows.size, np.int64) for _ in range(5))
    open_bodies(records.buf, records.body[rows], end, key_at, key_size, value_at, value_size, headers_at)
    return _Rows(
        records.buf, rows.size, records.offset[rows], records.timestamp[rows], end,
        key_at, key_size, value_at, value_size, headers_at, codes[rows], dictionary, topic, partition, sequenced,
    )  # fmt: skip


def _build_subjects(rows: _Rows) -> pa.Array:
    texts = rows.dictionary.texts
    bounds = texts.bounds.astype(np.int32)
    subjects = pa.Array.from_buffers(
        pa.string(), bounds.size - 1, [None, pa.py_buffer(bounds), pa.py_buffer(texts.text)]
    )
    indices = wrap(rows.codes, rows.codes < 0)
    return pa.DictionaryArray.from_arrays(indices, subjects)


def _build_sequences(rows: _Rows) -> pa.Array:
    return wrap(rows.offset + 1) if rows.sequenced else pa.nulls(rows.count, pa.int64())


def _build_timestamps(rows: _Rows) -> pa.Array:
    return wrap(rows.timestamp, rows.timestamp == NO_TIMESTAMP).cast(COLUMNS["timestamp"])


def _build_keys(rows: _Rows) -> pa.Array:
    return gather(rows.buf, rows.key_at, rows.key_size, "binary").array


def _build_values(rows: _Rows) -> pa.Array:
    return gather(rows.buf, rows.value_at, rows.value_size, "binary").array


def _build_headers(rows: _Rows) -> pa.Array:
    bounds = np.empty(rows.count + 1, np.int32)
    total = _count_headers(rows.buf, rows.headers_at, rows.end, bounds)
    name_at, name_size, value_at, value_size = (np.empty(int(total), np.int64) for _ in range(4))
    _find_headers(rows.buf, rows.headers_at, rows.end, name_at, name_size, value_at, value_size)
    values = gather(rows.buf, value_at, value_size, "binary").array
    pairs = pa.StructArray.from_arrays([_name(rows.buf, name_at, name_size), values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(wrap(bounds), pairs, type=COLUMNS["headers"])


def _name(buf: Bytes, at: Ints, size: Ints) -> pa.Array:
    """Return header names as strings: that of number i is buf[at[i]:at[i] + size[i]]. Bytes that are
    not UTF-8 become U+FFFD, as in Kafka's Java client.
    """
    names = gather(buf, at, size, "string").array
    if not names.null_count:
        return names
    texts = [buf[a : a + n].tobytes().decode(errors="replace") for a, n in zip(at.tolist(), size.tolist(), strict=True)]
    return pa.array(texts, pa.string())


def _build_topics(rows: _Rows) -> pa.Array:
    text = rows.topic.encode()
    bounds = np.array([0, len(text)], np.int32)
    topic = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)])
    return pa.DictionaryArray.from_arrays(wrap(np.zeros(rows.count, np.int32)), topic)


def _build_partitions(rows: _Rows) -> pa.Array:
    return wrap(np.full(rows.count, rows.partition, np.int32))


def _build_offsets(rows: _Rows) -> pa.Array:
    return wrap(rows.offset)


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "subject": _build_subjects,
    "sequence": _build_sequences,
    "timestamp": _build_timestamps,
    "key": _build_keys,
    "value": _build_values,
    "headers": _build_headers,
    "topic": _build_topics,
    "partition": _build_partitions,
    "offset": _build_offsets,
}


@kernel
def _count_headers(buf: Bytes, headers_at: Ints, end: Ints, bounds: Int32s) -> Int:
    """Write to bounds[i] how many headers the records before record i have together, and to the last
    item of `bounds`, one more than there are records, how many all have. Return the last number.

    `headers_at`, `end`: where the headers of each record begin in `buf`, and where the record ends.
    """
    total: Int = 0
    for i in range(end.size):
        bounds[i] = total
        total += read_varint(buf, headers_at[i], end[i])[0]
    bounds[end.size] = total
    return total


@kernel
def _find_headers(
    buf: Bytes, headers_at: Ints, end: Ints, name_at: Ints, name_size: Ints, value_at: Ints, value_size: Ints
) -> None:
    """Write position and size in `buf` of the name and the value of each header to `name_at`,
    `name_size`, `value_at` and `value_size`: one item per header, record by record. The size of a
    null value is -1. Nothing is checked here: the scan must have decoded the records before.
    """
    h = 0
    for i in range(end.size):
        count, pos = read_varint(buf, headers_at[i], end[i])
        for _ in range(count):
            name_size[h], name_at[h] = read_varint(buf, pos, end[i])
            value_size[h], value_at[h] = read_varint(buf, name_at[h] + name_size[h], end[i])
            pos = value_at[h] + max(value_size[h], 0)
            h += 1
