"""From positions to Arrow columns: the typed properties that filters name.

Only what is asked for is made, and only for the rows asked for. Everything is copied, since a slice's bytes and
arrays are used again for the next slice.

A property's value comes as text (TEXT: headers, keys) or as the JSON text found in a value (JSON: a string has its
quotes). A value that does not spell its type is null, which SQL takes as unknown, and is counted:

| type      | TEXT                                        | JSON                                              |
|-----------|---------------------------------------------|---------------------------------------------------|
| string    | UTF-8                                       | a string, escapes undone                          |
| binary    | any bytes                                   | a string's bytes, escapes undone                  |
| long      | a number of integral value in int64 range   | the same; a string is none, whatever it says      |
| double    | a finite number                             | the same                                          |
| boolean   | true or false in any case                   | true or false                                     |
| timestamp | ms since 1970 or RFC 3339 with an offset    | a number of ms, or a string of RFC 3339           |

The grammars are in numbers.py and times.py. Missing values and JSON's null are null and not counted; a document that
could not be read up to the field is null and counted apart, as `malformed`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from overlay.field import Field, FieldKind

from .decode import Records
from .header import Bytes
from .json import MALFORMED
from .kernel import MISSING
from .numbers import BAD, GOOD, HARD, read_boolean, read_double, read_long
from .plan import Plan
from .texts import is_null, join
from .times import read_timestamp

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("ms"),
}
"""The property types of a stream's file, and what becomes of them."""

NO_TIMESTAMP = -1
"""What Kafka's record format says for a record without a timestamp."""

_MAX_TEXT = (1 << 31) - 1  # Arrow's string and binary count bytes in int32


class Origin(enum.Enum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Column:
    """A column and how many of its nulls are values that could not be read as its type."""

    array: pa.Array
    unparsable: int = 0
    malformed: int = 0
    """Of JSON fields: documents that could not be read up to the field."""


def gather(buf: Bytes, at: Ints, size: Ints, type: str, origin: Origin = Origin.TEXT) -> Column:
    """Read the slices at[i]:at[i]+size[i] of `buf` as `type`, one of TYPES; a size below 0 is null.

    Raises KeyError for another type, and ValueError for more than 2 GiB of strings.
    """
    arrow = TYPES[type]
    at, size = np.ascontiguousarray(at), np.ascontiguousarray(size)
    malformed = int(np.count_nonzero(size == MALFORMED))
    if type in ("string", "binary"):
        array, bad = _join(buf, at, size, arrow, origin)
    else:
        array, bad = _read(buf, at, size, arrow, origin)
    return Column(array, bad, malformed)


@dataclass(frozen=True, slots=True)
class Property:
    """A typed field that filters name."""

    field: Field
    type: str
    """One of TYPES."""


def read_properties(
    records: Records,
    plan: Plan,
    wanted: Mapping[str, Property],
    *,
    topic: str,
    partition: int,
    rows: Ints | None = None,
) -> dict[str, Column]:
    """The columns of the wanted properties by name, for the records `rows` of the slice or for all of them.

    Header, key and value fields must be fields of `plan`, the one that the slice was decoded by; ValueError otherwise.
    """
    return {name: _read_property(records, plan, one, topic, partition, rows) for name, one in wanted.items()}


def _read_property(
    records: Records, plan: Plan, wanted: Property, topic: str, partition: int, rows: Ints | None
) -> Column:
    field = wanted.field
    if field.kind is FieldKind.TOPIC or field.kind is FieldKind.PARTITION:
        text = topic if field.kind is FieldKind.TOPIC else str(partition)
        return _repeat(text.encode(), wanted.type, len(records) if rows is None else rows.size)
    if field.kind is FieldKind.TIMESTAMP:
        return _read_times(_pick(records.timestamp, rows), wanted.type)
    if field not in plan.fields:
        raise ValueError(f"property from {field}: the slice was decoded without it; add it to the fields of make_plan")
    slot = plan.slot(field)
    origin = Origin.JSON if field.kind is FieldKind.VALUE else Origin.TEXT
    return gather(records.buf, _pick(records.at[slot], rows), _pick(records.size[slot], rows), wanted.type, origin)


def _pick(values: Ints, rows: Ints | None) -> Ints:
    return values if rows is None else values[rows]


def _repeat(text: bytes, type: str, count: int) -> Column:
    """The same text for each record, read once."""
    one = gather(np.frombuffer(text, np.uint8), np.zeros(1, np.int64), np.array([len(text)]), type)
    return Column(pa.repeat(one.array[0], count), one.unparsable * count)


def _read_times(times: Ints, type: str) -> Column:
    """Kafka's timestamps as a property. A record without one (-1) has null."""
    column = pa.array(times.copy(), mask=times == NO_TIMESTAMP)  # Arrow would go on using the slice's memory
    if type in ("timestamp", "long"):
        return Column(column.cast(TYPES[type]))
    text = column.cast(pa.string())
    bounds = np.frombuffer(text.buffers()[1], np.int32, times.size + 1).astype(np.int64)
    size = np.where(times == NO_TIMESTAMP, MISSING, np.diff(bounds))
    return gather(np.frombuffer(text.buffers()[2] or b"", np.uint8), bounds[:-1], size, type)


def _join(buf: Bytes, at: Ints, size: Ints, type: pa.DataType, origin: Origin) -> tuple[pa.Array, int]:
    room = int(size.clip(0).sum())
    if room > _MAX_TEXT:
        raise ValueError(f"{room} bytes of {type} in one column: Arrow holds {_MAX_TEXT}; ask for fewer rows at a time")
    offsets, data, valid = np.empty(size.size + 1, np.int32), np.empty(room, np.uint8), np.empty(size.size, np.bool_)
    bad = join(buf, at, size, origin is Origin.JSON, type == pa.string(), offsets, data, valid)
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data[: offsets[-1]])]
    return pa.Array.from_buffers(type, size.size, buffers), int(bad)


def _read(buf: Bytes, at: Ints, size: Ints, type: pa.DataType, origin: Origin) -> tuple[pa.Array, int]:
    kernel, storage = _READERS[type]
    is_json = origin is Origin.JSON
    values, states = np.empty(size.size, storage), np.empty(size.size, np.uint8)
    kernel(buf, at, size, is_json, values, states)
    _read_hard(buf, at, size, values, states)
    valid = states == GOOD
    bad = _count_bad(buf, at, size, is_json, states)
    data = pa.py_buffer(np.packbits(values, bitorder="little") if storage is np.bool_ else values)
    return pa.Array.from_buffers(type, size.size, [_bitmap(valid), data]), int(bad)


def _read_hard(buf: Bytes, at: Ints, size: Ints, values: npt.NDArray[Any], states: npt.NDArray[np.uint8]) -> None:
    """Doubles that the kernel leaves to Python, whose grammar they have already passed; some are out of range."""
    for i in np.flatnonzero(states == HARD).tolist():
        values[i] = float(buf[at[i] : at[i] + size[i]].tobytes())
        states[i] = GOOD if np.isfinite(values[i]) else BAD


def _bitmap(valid: Flags) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


_NULL = 3


@nb.njit(cache=True, nogil=True)
def _read_longs(buf, at, size, is_json, values, states):  # type: ignore[no-untyped-def]
    for i in range(size.size):
        values[i], states[i] = 0, _NULL
        if size[i] >= 0:
            values[i], states[i] = read_long(buf, at[i], at[i] + size[i], is_json)


@nb.njit(cache=True, nogil=True)
def _read_doubles(buf, at, size, is_json, values, states):  # type: ignore[no-untyped-def]
    for i in range(size.size):
        values[i], states[i] = 0, _NULL
        if size[i] >= 0:
            values[i], states[i] = read_double(buf, at[i], at[i] + size[i], is_json)


@nb.njit(cache=True, nogil=True)
def _read_booleans(buf, at, size, is_json, values, states):  # type: ignore[no-untyped-def]
    for i in range(size.size):
        values[i], states[i] = 0, _NULL
        if size[i] >= 0:
            values[i], states[i] = read_boolean(buf, at[i], at[i] + size[i], is_json)


@nb.njit(cache=True, nogil=True)
def _read_timestamps(buf, at, size, is_json, values, states):  # type: ignore[no-untyped-def]
    for i in range(size.size):
        values[i], states[i] = 0, _NULL
        if size[i] >= 0:
            values[i], states[i] = read_timestamp(buf, at[i], at[i] + size[i], is_json)


@nb.njit(cache=True, nogil=True)
def _count_bad(buf, at, size, is_json, states):  # type: ignore[no-untyped-def]
    bad = 0
    for i in range(size.size):
        if states[i] == BAD and not (is_json and is_null(buf, at[i], at[i] + size[i])):
            bad += 1
    return bad


_READERS: dict[pa.DataType, tuple[Callable[..., None], type[np.generic]]] = {
    TYPES["long"]: (_read_longs, np.int64),
    TYPES["double"]: (_read_doubles, np.float64),
    TYPES["boolean"]: (_read_booleans, np.bool_),
    TYPES["timestamp"]: (_read_timestamps, np.int64),
}
