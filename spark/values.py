"""What is known of a filter's node before there are rows: its kind, and the expression of Spark
with its value.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

_LONG_MAX = (1 << 63) - 1


class ValueKind(enum.Enum):
    """The kinds of values that a node of a filter can have. Times are LONG, strings and bytes are TEXT."""

    LONG = enum.auto()
    DOUBLE = enum.auto()
    TEXT = enum.auto()
    BOOLEAN = enum.auto()
    NULL = enum.auto()
    """Null in every row."""


KINDS = {
    "string": ValueKind.TEXT,
    "binary": ValueKind.TEXT,
    "long": ValueKind.LONG,
    "timestamp": ValueKind.LONG,
    "double": ValueKind.DOUBLE,
    "boolean": ValueKind.BOOLEAN,
}
NUMBERS = (ValueKind.LONG, ValueKind.DOUBLE)


class NotNative(Exception):
    """Spark has no expression that has exactly the value of a filter's node. The condition around
    it is then evaluated by the overlay.
    """


@dataclass(frozen=True, slots=True)
class Value:
    """The value of one node of a filter's syntax tree, as an expression of Spark.

    `column`: the expression. `constant`: the value itself if it is the same in all rows, None if
    it is not, or if it is NULL. For an integer constant that does not fit a long, `column` is a
    NULL literal, so only `constant` has the value.
    """

    kind: ValueKind
    column: Column
    constant: bool | int | float | bytes | None = None
    is_string: bool = False
    """For TEXT: whether the column has strings, not bytes."""


def unknown() -> Column:
    """Return a column that is unknown (null) in every row."""
    return F.lit(None).cast("boolean")


def make_null() -> Value:
    """Return a value that is null in every row."""
    return Value(ValueKind.NULL, unknown())


def make_constant(value: bool | int | float | bytes) -> Value:
    """Return the Value of a constant in a filter: its kind, a Spark literal, and the constant itself.

    Bytes become TEXT with a binary literal; they need not be UTF-8. For an integer that does not fit a long the literal
    is NULL, and only `constant` has the number.
    """
    match value:
        case bool():
            return Value(ValueKind.BOOLEAN, F.lit(value), value)
        case int():
            return Value(ValueKind.LONG, F.lit(value if fits_long(value) else None).cast("long"), value)
        case float():
            return Value(ValueKind.DOUBLE, F.lit(value), value)
        case bytes():
            return Value(ValueKind.TEXT, write_bytes(value), value)


def fits_long(value: int) -> bool:
    return -_LONG_MAX - 1 <= value <= _LONG_MAX


def write_bytes(value: bytes) -> Column:
    return F.lit(bytearray(value))


def keep_finite(column: Column) -> Column:
    """Return doubles with null in place of NaN and the infinities."""
    return F.when(F.isnan(column) | (F.abs(column) == F.lit(math.inf)), F.lit(None)).otherwise(column)


def to_double(value: Value) -> Column:
    """Return a number's column as doubles, integers rounded to the nearest one.

    Raises NotNative for an integer constant beyond the largest double.
    """
    if isinstance(value.constant, int):
        try:
            return F.lit(float(value.constant))
        except OverflowError:
            raise NotNative from None
    return value.column.cast("double")
