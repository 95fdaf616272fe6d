"""Arrow arrays as the language sees them: four kinds of value, and rows in doubt.

Many types of Arrow are one type of the language (facts, section 4): all integers and timestamps are LONG, floats
DOUBLE, strings and binaries TEXT. What the language cannot see is NULL: NaN, infinities, decimals, lists.

A kernel cannot always tell: integers have no limit in the language and 64 bits here. Then the row is *in doubt*, and the next
predicate above asks the row evaluator about that row alone. Doubting a row too many costs time, never the answer, so
the tests for it may be coarse.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter.message import Value as Constant

INT64_MAX = (1 << 63) - 1


class Kind(enum.Enum):
    BOOLEAN = enum.auto()  # bool
    LONG = enum.auto()  # int64
    DOUBLE = enum.auto()  # float64, finite
    TEXT = enum.auto()  # binary or large_binary


NUMBERS = (Kind.LONG, Kind.DOUBLE)


class Vector(NamedTuple):
    """A value for each row; null is NULL or unknown.

    A tuple, since one is made for every node and batch, and a frozen dataclass takes as long to make as a small kernel.
    """

    kind: Kind
    array: pa.Array
    doubt: pa.BooleanArray | None = None
    """Rows whose value is another one than `array` says, or may be. Without nulls."""
    is_utf8: bool = False
    """Of TEXT: known to hold UTF-8 only."""


Value = Vector | Constant
"""What a node gives for a batch: a constant stands for the same value in all rows, and None for NULL or unknown."""


def load(array: pa.Array) -> Vector | None:
    """A column of a batch, of whatever type; None when the language sees NULL in all its rows."""
    type = array.type
    if isinstance(array, pa.ExtensionArray):
        return load(array.storage)
    if pa.types.is_dictionary(type):
        return load(array.dictionary_decode())
    if pa.types.is_boolean(type):
        return Vector(Kind.BOOLEAN, array)
    if pa.types.is_integer(type):
        return _load_integers(array)
    if pa.types.is_floating(type):
        return Vector(Kind.DOUBLE, keep_finite(array.cast(pa.float64())))
    if pa.types.is_timestamp(type):
        return Vector(Kind.LONG, _read_milliseconds(array))
    return _load_texts(array)


def keep_finite(array: pa.Array) -> pa.Array:
    """Doubles with null in place of NaN and the infinities."""
    finite = pc.is_finite(array)
    return pc.if_else(finite, array, None) if finite.false_count else array


def either(left: pa.BooleanArray | None, right: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Rows that are in doubt for either of two reasons."""
    if left is None or right is None:
        return right if left is None else left
    return pc.or_(left, right)


def make_unknown(*values: Value) -> Vector | None:
    """What is unknown for the kinds of these values, save in rows whose values may be of another kind."""
    doubt: pa.BooleanArray | None = None
    for value in values:
        doubt = either(doubt, value.doubt if isinstance(value, Vector) else None)
    return None if doubt is None else Vector(Kind.BOOLEAN, pa.nulls(len(doubt), pa.bool_()), doubt)


def fill(flags: pa.BooleanArray, value: bool = False) -> pa.BooleanArray:
    return flags.fill_null(value) if flags.null_count else flags


def _load_integers(array: pa.Array) -> Vector:
    if array.type == pa.int64():
        return Vector(Kind.LONG, array)
    try:
        return Vector(Kind.LONG, array.cast(pa.int64()))
    except pa.ArrowInvalid:  # uint64 above int64
        doubt = fill(pc.greater(array, pa.scalar(INT64_MAX, pa.uint64())))
        return Vector(Kind.LONG, array.cast(pa.int64(), safe=False), doubt)


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _read_milliseconds(array: pa.TimestampArray) -> pa.Int64Array:
    """Whole milliseconds since 1970, rounded down. Times beyond int64 milliseconds, which no calendar has, are null."""
    ticks = array.view(pa.int64())
    per_second = _PER_SECOND[array.type.unit]
    if per_second == 1_000:
        return ticks
    if per_second == 1:
        limit = INT64_MAX // 1_000
        near = pc.and_(pc.greater_equal(ticks, -limit), pc.less_equal(ticks, limit))
        return pc.multiply(pc.if_else(near, ticks, None), 1_000)
    size = per_second // 1_000
    toward_zero = pc.divide(ticks, size)
    is_above = pc.greater(pc.multiply(toward_zero, size), ticks)
    return pc.subtract(toward_zero, is_above.cast(pa.int64()))


_VIEWED = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def _load_texts(array: pa.Array) -> Vector | None:
    type = array.type
    if type in _VIEWED:
        return Vector(Kind.TEXT, array.view(_VIEWED[type]), is_utf8=True)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return Vector(Kind.TEXT, array)
    if pa.types.is_fixed_size_binary(type):
        return Vector(Kind.TEXT, array.cast(pa.binary()))
    if type in (pa.string_view(), pa.binary_view()):
        return Vector(Kind.TEXT, array.cast(pa.large_binary()))
    return None
