"""Comparisons, IN and LIKE of a filter as expressions of Spark.

Integers and doubles compare exactly, where Spark would round the integer first. A constant is
adapted to the column's own type: `x < 60.5` over longs is `x <= 60`. Of two columns, only values
that are equal as doubles leave a doubt, and those are whole numbers. Values of unlike kinds are
never equal, always unequal and in no order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column
from pyspark.sql import functions as F

from overlay.filter.like import LikePattern, Shape
from overlay.filter.nodes import Compare
from overlay.filter.operators import MIRRORED

from .values import NUMBERS, NotNative, Value, ValueKind, fits_long, make_null

_OPERATORS: dict[Compare, Callable[[Column, Column], Column]] = {
    Compare.EQ: lambda a, b: a == b,
    Compare.NE: lambda a, b: a != b,
    Compare.LT: lambda a, b: a < b,
    Compare.LE: lambda a, b: a <= b,
    Compare.GT: lambda a, b: a > b,
    Compare.GE: lambda a, b: a >= b,
}
_HOLDS: dict[Compare, tuple[int, ...]] = {
    Compare.EQ: (0,),
    Compare.NE: (-1, 1),
    Compare.LT: (-1,),
    Compare.LE: (-1, 0),
    Compare.GT: (1,),
    Compare.GE: (0, 1),
}
"""The orders (-1, 0, 1) of left to right for which an operator is true."""
_EQUALITY = (Compare.EQ, Compare.NE)
_LONG_END = 2.0**63


def where_known(values: Sequence[Value], column: Column) -> Column:
    """Return `column` where none of the values is null, null elsewhere."""
    known = [value.column.isNotNull() for value in values if value.constant is None]
    return F.when(reduce(and_, known), column) if known else column


def compare(operator: Compare, left: Value, right: Value) -> Value:
    """Return `left operator right` as a BOOLEAN value, null in the rows where one of them is null; a NULL value if
    one of them is of kind NULL. Values of different kinds are unequal and in no order, but LONG and DOUBLE compare as
    numbers. Booleans are in no order either. Raises NotNative if Spark has no exact expression.
    """
    if ValueKind.NULL in (left.kind, right.kind):
        return make_null()
    if left.kind in NUMBERS and right.kind in NUMBERS:
        return Value(ValueKind.BOOLEAN, _compare_numbers(operator, left, right))
    is_unordered = left.kind is ValueKind.BOOLEAN and operator not in _EQUALITY
    if left.kind is not right.kind or is_unordered:
        return Value(ValueKind.BOOLEAN, where_known((left, right), F.lit(operator is Compare.NE)))
    return Value(ValueKind.BOOLEAN, _OPERATORS[operator](*_level(left, right)))


def find_equal(operand: Value, items: Sequence[Value]) -> Column:
    """Return a boolean column that says whether the operand equals one of the items. An item that
    is null is not equal. Where the operand is null, the answer is null or false: the caller has to
    tell these rows apart. Raises NotNative as `compare` does.
    """
    plain = [item.constant for item in items]
    if operand.is_string and all(isinstance(each, bytes) for each in plain):
        texts = [_decode(each) for each in plain if isinstance(each, bytes)]
        if all(text is not None for text in texts):
            return operand.column.isin(texts)
    equal = (compare(Compare.EQ, operand, item) for item in items)
    hits = [F.coalesce(each.column, F.lit(False)) for each in equal if each.kind is ValueKind.BOOLEAN]
    return reduce(or_, hits, F.lit(False))


def _level(left: Value, right: Value) -> tuple[Column, Column]:
    """Return the columns of two values of one kind in a form to compare. Texts are strings if both
    can be, which Spark can optimise, otherwise bytes; other kinds are returned as they are.
    """
    if left.kind is not ValueKind.TEXT:
        return left.column, right.column
    a, b = _read_text(left), _read_text(right)
    if a is not None and b is not None:
        return a, b
    return left.column.cast("binary"), right.column.cast("binary")


def _read_text(value: Value) -> Column | None:
    if value.is_string:
        return value.column
    text = _decode(value.constant) if isinstance(value.constant, bytes) else None
    return None if text is None else F.lit(text)


def _decode(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _compare_numbers(operator: Compare, left: Value, right: Value) -> Column:
    a, b = left.constant, right.constant
    if isinstance(a, int | float) and isinstance(b, int | float):
        return F.lit(((a > b) - (a < b)) in _HOLDS[operator])
    if isinstance(a, int | float):
        return _compare_constant(MIRRORED[operator], right, a)
    if isinstance(b, int | float):
        return _compare_constant(operator, left, b)
    if left.kind is right.kind:
        return _OPERATORS[operator](left.column, right.column)
    if left.kind is ValueKind.DOUBLE:
        return _compare_mixed(MIRRORED[operator], right, left)
    return _compare_mixed(operator, left, right)


def _compare_constant(operator: Compare, value: Value, constant: int | float) -> Column:
    if isinstance(constant, float) and not math.isfinite(constant):
        raise NotNative
    fitted = _fit_long(operator, constant) if value.kind is ValueKind.LONG else _fit_double(operator, constant)
    if isinstance(fitted, bool):
        return where_known((value,), F.lit(fitted))
    kernel, limit = fitted
    return _OPERATORS[kernel](value.column, F.lit(limit))


Fitted = tuple[Compare, int | float] | bool


def _fit_long(operator: Compare, constant: int | float) -> Fitted:
    """Return an operator and a long, with which a column of longs compares as with `operator` and
    `constant`; or the answer, if it is the same for all longs.
    """
    low = math.floor(constant)
    if low != constant:
        if operator in _EQUALITY:
            return operator is Compare.NE
        operator = Compare.LE if operator in (Compare.LT, Compare.LE) else Compare.GT
    if not fits_long(low):
        return (-1 if low > 0 else 1) in _HOLDS[operator]
    return operator, low


def _fit_double(operator: Compare, constant: int | float) -> Fitted:
    """Return an operator and a double, with which a column of finite doubles compares as with
    `operator` and `constant`; or the answer, if it is the same for all of them.
    """
    try:
        near = float(constant)
    except OverflowError:
        return (-1 if constant > 0 else 1) in _HOLDS[operator]
    if near == constant:
        return operator, near
    if math.isinf(near):
        return (-1 if constant > 0 else 1) in _HOLDS[operator]
    if operator in _EQUALITY:
        return operator is Compare.NE
    is_below = operator in (Compare.LT, Compare.LE)
    if near > constant:
        return (Compare.LT if is_below else Compare.GE), near
    return (Compare.LE if is_below else Compare.GT), near


def _compare_mixed(operator: Compare, long: Value, double: Value) -> Column:
    """Return `long operator double`, compared exactly, for a column of longs and one of finite
    doubles; null where one of them is null.

    Rounding keeps the order, so it can hide a difference only where both are equal as doubles.
    """
    rounded, other = long.column.cast("double"), double.column
    whole = other.try_cast("long")
    order = (
        F.when((rounded < other) | (other >= _LONG_END), -1)
        .when(rounded > other, 1)
        .when(long.column < whole, -1)
        .when(long.column > whole, 1)
        .otherwise(0)
    )
    return where_known((long, double), order.isin(*_HOLDS[operator]))


def match_text(pattern: LikePattern, text: Column) -> Column:
    """Return a boolean column that says whether the whole text matches a LIKE pattern; null where the
    text is null. `text`: strings of valid UTF-8.
    """
    head, inner, tail = (F.lit(part.decode()) for part in (pattern.head, pattern.inner, pattern.tail))
    match pattern.shape:
        case Shape.EXACT:
            return text == head
        case Shape.PREFIX:
            return F.startswith(text, head)
        case Shape.SUFFIX:
            return F.endswith(text, tail)
        case Shape.CONTAINS:
            return F.contains(text, inner)
        case Shape.PREFIX_SUFFIX:
            has_room = F.octet_length(text) >= len(pattern.head) + len(pattern.tail)
            return F.startswith(text, head) & F.endswith(text, tail) & has_room
        case Shape.GENERAL:
            return text.rlike(pattern.java_regex)
