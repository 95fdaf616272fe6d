"""Arrow columns from positions: the typed properties that filters name.

Only requested columns are made, and only for requested rows. Everything is copied, since a slice's
bytes and arrays are reused for the next slice.

A property's value comes as text (TEXT: headers, keys) or as the JSON text found in a value (JSON: a
string has its quotes). A value that does not spell its type is null, which SQL treats as unknown,
and is counted:

| type      | TEXT                                      | JSON                                    |
|-----------|-------------------------------------------|-----------------------------------------|
| string    | UTF-8                                     | a string, escapes undone                |
| binary    | any bytes                                 | a string's bytes, escapes undone        |
| long      | a number of integral value in int64 range | the same, but never a string            |
| double    | a finite number                           | the same                                |
| boolean   | true or false in any case                 | true or false                           |
| timestamp | ms since 1970 or RFC 3339 with an offset  | a number of ms, or a string of RFC 3339 |

The grammars are in scan/scalars/numbers.py and scan/scalars/times.py. Missing values and JSON's null are null and not
counted. All other nulls are counted by reason: `unparsable`, `not_utf8`, `malformed` for a document
that could not be read up to the field, `undecoded` for a value in a known format that is not JSON.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from overlay.arrays import AnyArray, Bool, Bytes, Doubles, Flags, Int, Ints
from overlay.kernels import kernel

from .scalars.numbers import read_boolean, read_double, read_long
from .scalars.times import read_timestamp
from .states import ABSENT, BAD, GOOD, HARD, MISSING, REASONS, judge_size
from .texts import is_null, join

States = Bytes

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("ms"),
}
"""The property types of a stream's file, and their Arrow types."""

NO_TIMESTAMP = -1
"""Kafka's timestamp of a record without one."""

_MAX_TEXT = (1 << 31) - 1  # Arrow's string and binary count bytes in int32


class Origin(enum.Enum):
    """The form of a value: plain text, or JSON text."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """An Arrow array of one property, and one state (uint8, see states.py) for each of its values.
    A value is null exactly if its state is not GOOD; the state says why.
    """

    array: pa.Array
    states: States

    def count_nulls(self, rows: Ints | None = None) -> dict[str, int]:
        """Return how many values are null, by reason (REASONS in states.py); a reason without a
        null is left out. Values that are missing or JSON null in the record are not counted.
        `rows`: indexes of the rows to count, all if None.
        """
        states = self.states if rows is None else self.states[rows]
        if not states.any():
            return {}
        counts = np.bincount(states, minlength=max(REASONS) + 1)
        return {reason: int(counts[state]) for state, reason in REASONS.items() if counts[state]}


def gather(buf: Bytes, at: Ints, size: Ints, type: str, origin: Origin = Origin.TEXT) -> Column:
    """Return a column of `type`, one of TYPES, read from the slices at[i]:at[i]+size[i] of `buf`. A value is null if
    its size is below 0 or if its bytes do not spell the type; its state says which.

    Raises KeyError for another type, and ValueError for a column of strings or binary values whose slices have 2 GiB
    or more together.
    """
    at, size = np.ascontiguousarray(at), np.ascontiguousarray(size)
    states = np.empty(size.size, np.uint8)
    is_json = origin is Origin.JSON
    make = _join if type in ("string", "binary") else _read
    return _assemble(type, states, *make(buf, at, size, type, is_json, states))


def wrap(numbers: AnyArray, absent: Flags | None = None) -> pa.Array:
    """Return int32 or int64 numbers as an Arrow array that uses their memory; null where `absent`. `pa.array` does the same,
    and imports pandas for it where that is installed, which takes longer than most commands.
    """
    nulls = 0 if absent is None else int(np.count_nonzero(absent))
    bitmap = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent is not None and nulls else None
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), numbers.size, [bitmap, data], nulls)


def read_times(times: Ints, type: str) -> Column:
    """Return Kafka's timestamps (ms since 1970) as a column of `type`, one of TYPES; for a type
    other than timestamp and long, their digits are read as text. A record without a timestamp (-1)
    has null.
    """
    missing = times == NO_TIMESTAMP
    if type in ("timestamp", "long"):
        # a copy, since Arrow would keep using the slice's memory
        return _assemble(type, np.where(missing, ABSENT, GOOD).astype(np.uint8), pa.py_buffer(times.copy()))
    texts = pa.array(times).cast(pa.string())
    bounds = np.frombuffer(texts.buffers()[1], np.int32, times.size + 1).astype(np.int64)
    size = np.where(missing, MISSING, np.diff(bounds))
    return gather(np.frombuffer(texts.buffers()[2] or b"", np.uint8), bounds[:-1], size, type)


def coalesce(first: Column, second: Column) -> Column:
    """Return the first column, with the values of the second where the first is missing or JSON
    null. A value of the first that is there but could not be read stays null.
    """
    # it takes long to import, and most readers call none of its functions
    import pyarrow.compute as pc

    absent = first.states == ABSENT
    other = second.array.dictionary_decode() if pa.types.is_dictionary(second.array.type) else second.array
    return Column(pc.if_else(pa.array(absent), other, first.array), np.where(absent, second.states, first.states))


def _assemble(type: str, states: States, *buffers: pa.Buffer) -> Column:
    valid = states == GOOD
    nulls = valid.size - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    return Column(pa.Array.from_buffers(TYPES[type], valid.size, [bitmap, *buffers], nulls), states)


def _join(buf: Bytes, at: Ints, size: Ints, type: str, is_json: bool, states: States) -> tuple[pa.Buffer, ...]:
    room = int(size.clip(0).sum())
    if room > _MAX_TEXT:
        raise ValueError(f"{room} bytes of {type} in one column: Arrow holds {_MAX_TEXT}; ask for fewer rows at a time")
    offsets, data = np.empty(size.size + 1, np.int32), np.empty(room, np.uint8)
    join(buf, at, size, is_json, type == "string", offsets, data, states)
    return pa.py_buffer(offsets), pa.py_buffer(data[: offsets[-1]])


def _read(buf: Bytes, at: Ints, size: Ints, type: str, is_json: bool, states: States) -> tuple[pa.Buffer, ...]:
    reader, storage = _READERS[type]
    values = np.empty(size.size, storage)
    _fill(buf, at, size, is_json, reader, values, states)
    _read_hard(buf, at, size, values, states)
    return (pa.py_buffer(np.packbits(values, bitorder="little") if type == "boolean" else values),)


def _read_hard(buf: Bytes, at: Ints, size: Ints, values: AnyArray, states: States) -> None:
    """Read with Python's float each double that has the state HARD, and write its value and its new
    state: GOOD, or BAD if it is beyond the largest double. Their grammar is checked already.
    """
    for i in np.flatnonzero(states == HARD).tolist():
        values[i] = float(buf[at[i] : at[i] + size[i]].tobytes())
        states[i] = GOOD if np.isfinite(values[i]) else BAD


_LONG, _DOUBLE, _BOOLEAN, _TIMESTAMP = range(4)

_READERS: dict[str, tuple[int, type[np.generic]]] = {
    "long": (_LONG, np.int64),
    "double": (_DOUBLE, np.float64),
    "boolean": (_BOOLEAN, np.uint8),
    "timestamp": (_TIMESTAMP, np.int64),
}


@kernel
def _fill(
    buf: Bytes, at: Ints, size: Ints, is_json: Bool, reader: Int, values: Ints | Doubles | Bytes, states: States
) -> None:
    """Read slice i, buf[at[i]:at[i]+size[i]], and write its value to values[i] and its state
    (states.py) to states[i].

    A size below 0 is a value that is not there. `is_json`: whether the slices are JSON text, else
    plain text. `reader`: how to read all of them, a number from _READERS. A double that is left to
    `_read_hard` gets the state HARD.
    """
    # compiled for each storage type; in one call the branch on `reader` always goes the same way
    for i in range(size.size):
        values[i] = 0
        if size[i] < 0:
            states[i] = judge_size(size[i])
            continue
        first, last = at[i], at[i] + size[i]
        if reader == _LONG:
            values[i], states[i] = read_long(buf, first, last, is_json)
        elif reader == _DOUBLE:
            values[i], states[i] = read_double(buf, first, last, is_json)
        elif reader == _BOOLEAN:
            values[i], states[i] = read_boolean(buf, first, last, is_json)
        else:
            values[i], states[i] = read_timestamp(buf, first, last, is_json)
        if states[i] == BAD and is_json and is_null(buf, first, last):
            states[i] = ABSENT
