"""Columns as the filter language sees them: four kinds of values, and rows in doubt.

Many Arrow types are one type of the language (docs/filters.md#values): all integers and timestamps
are LONG, floats DOUBLE, strings and binaries TEXT. Values that the language does not have are NULL:
NaN, infinities, decimals, lists.

A kernel cannot always give the exact answer: integers have no limit in the language, but 64 bits
here. Such a row is *in doubt*, and the next predicate above asks the row evaluator about that row
alone. A doubt without need costs time but never changes the answer, so the tests for it may be
coarse.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter.message import Value as Constant

INT64_MAX = (1 << 63) - 1


class Kind(enum.Enum):
    """The four kinds of values of the filter language. A comment names the Arrow type of each one's
    vectors; a member itself does not hold it. Timestamps are LONG, strings and bytes are TEXT.
    """

    BOOLEAN = enum.auto()  # bool
    LONG = enum.auto()  # int64
    DOUBLE = enum.auto()  # float64, finite
    TEXT = enum.auto()  # binary or large_binary


NUMBERS = (Kind.LONG, Kind.DOUBLE)


class Vector(NamedTuple):
    """A value for each row of a batch; null is NULL or unknown. A row is in doubt if Arrow may not
    have computed its value exactly; the row evaluator then decides (Evaluation.settle).

    It is a tuple because one is made for every node and batch, and creating a frozen dataclass
    takes as long as a small kernel.
    """

    kind: Kind
    array: pa.Array
    doubt: pa.BooleanArray | None = None
    """Rows whose value may differ from `array`; booleans without nulls. None if there are none."""
    is_utf8: bool = False
    """For TEXT: whether all values are known to be UTF-8."""


Value = Vector | Constant
"""A node's value for a batch: a vector, or a constant for all rows; None is NULL or unknown."""


def load(array: pa.Array) -> Vector | None:
    """Return a column of any Arrow type as a vector. None for a type that filters do not know, such
    as a list or a decimal: all its values count as NULL.
    """
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
    """Return the doubles with null in place of NaN and the infinities."""
    finite = pc.is_finite(array)
    return pc.if_else(finite, array, None) if finite.false_count else array


def either(left: pa.BooleanArray | None, right: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Return the rows that are in doubt (see Vector) in at least one of two masks, as a mask. None
    as a mask means that no row is in doubt.
    """
    if left is None or right is None:
        return right if left is None else left
    return pc.or_(left, right)


def make_unknown(*values: Value) -> Vector | None:
    """Return unknown for all rows: None, or a vector of nulls if one of the values has rows in
    doubt (see Vector).

    Such rows stay in doubt, because their exact values may be of another kind.
    """
    doubt: pa.BooleanArray | None = None
    for value in values:
        doubt = either(doubt, value.doubt if isinstance(value, Vector) else None)
    return None if doubt is None else Vector(Kind.BOOLEAN, pa.nulls(len(doubt), pa.bool_()), doubt)


def fill(flags: pa.BooleanArray, value: bool = False) -> pa.BooleanArray:
    """Return the flags with `value` in place of null."""
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
    """Return ms since 1970, rounded down.

    The result is null for times beyond int64 milliseconds, which no calendar has.
    """
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
