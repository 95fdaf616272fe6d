"""What is known of a filter's node before there are rows: its kind, and the expression of Spark that has its value."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

_LONG_MAX = (1 << 63) - 1


class Kind(enum.Enum):
    LONG = enum.auto()
    DOUBLE = enum.auto()
    TEXT = enum.auto()
    BOOLEAN = enum.auto()
    NULL = enum.auto()
    """Null in every row."""


KINDS = {
    "string": Kind.TEXT,
    "binary": Kind.TEXT,
    "long": Kind.LONG,
    "timestamp": Kind.LONG,
    "double": Kind.DOUBLE,
    "boolean": Kind.BOOLEAN,
}
NUMBERS = (Kind.LONG, Kind.DOUBLE)


class NotNative(Exception):
    """Spark has no expression of its own that is sure to have the same value."""


@dataclass(frozen=True, slots=True)
class Value:
    """What a node is worth. `constant`: its value, where it is the same in all rows; a large one is not in `column`."""

    kind: Kind
    column: Column
    constant: bool | int | float | bytes | None = None
    is_string: bool = False
    """Of TEXT: a column of strings, not of bytes."""


def unknown() -> Column:
    return F.lit(None).cast("boolean")


def make_null() -> Value:
    return Value(Kind.NULL, unknown())


def make_constant(value: bool | int | float | bytes) -> Value:
    match value:
        case bool():
            return Value(Kind.BOOLEAN, F.lit(value), value)
        case int():
            return Value(Kind.LONG, F.lit(value if fits_long(value) else None).cast("long"), value)
        case float():
            return Value(Kind.DOUBLE, F.lit(value), value)
        case bytes():
            return Value(Kind.TEXT, write_bytes(value), value)


def fits_long(value: int) -> bool:
    return -_LONG_MAX - 1 <= value <= _LONG_MAX


def write_bytes(value: bytes) -> Column:
    return F.lit(bytearray(value))


def keep_finite(column: Column) -> Column:
    """Doubles with null in place of NaN and the infinities."""
    return F.when(F.isnan(column) | (F.abs(column) == F.lit(math.inf)), F.lit(None)).otherwise(column)


def to_double(value: Value) -> Column:
    """A number as a double, a whole one rounded to the nearest. Raises NotNative for one that is too large."""
    if isinstance(value.constant, int):
        try:
            return F.lit(float(value.constant))
        except OverflowError:
            raise NotNative from None
    return value.column.cast("double")
