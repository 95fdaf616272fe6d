"""Arithmetic on vectors: exact integers, and doubles that stay finite (docs/filters.md#values).

Integers are computed in 64 bits. If that overflows, the rows with a large result are in doubt, or
all rows if a constant does not fit; the row evaluator computes their exact values. A double that
overflows, and every division by zero, is an infinity or NaN in Arrow and becomes null here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter import rows as by_row
from overlay.filter.message import Value as Constant
from overlay.filter.nodes import Arithmetic, Calculation, Literal

from .vectors import INT64_MAX, NUMBERS, Kind, Value, Vector, either, fill, keep_finite, make_unknown

_Kernel = Callable[[Any, Any], pa.Array]
_Operand = Any  # a pa.Array or a pa.Scalar

_WRAPPING: dict[Arithmetic, _Kernel] = {
    Arithmetic.ADD: pc.add,
    Arithmetic.SUB: pc.subtract,
    Arithmetic.MUL: pc.multiply,
    Arithmetic.DIV: pc.divide,
}
_CHECKED: dict[Arithmetic, _Kernel] = {
    Arithmetic.ADD: pc.add_checked,
    Arithmetic.SUB: pc.subtract_checked,
    Arithmetic.MUL: pc.multiply_checked,
}
_SURE = float(1 << 62)  # half of int64's range, which leaves room for the rounding of doubles


def calculate(operator: Arithmetic, left: Value, right: Value) -> Value:
    """Return `left operator right`, row by row.

    A row is NULL if an operand is not a number, if the divisor is 0, or if a double result is not
    finite. MOD is NULL unless both operands are integers. Rows whose integer result may not fit
    int64 are marked in the result's `doubt`.
    """
    if not is_number(left) or not is_number(right):
        return make_unknown(left, right)
    if not isinstance(left, Vector) and not isinstance(right, Vector):
        return by_row.evaluate(Calculation(operator, Literal(left), Literal(right)), {}, 0)
    # integers stay integers, except in a division
    both_integers = _is_integer(left) and _is_integer(right)
    if operator is Arithmetic.MOD:
        return _take_remainder(left, right) if both_integers else make_unknown(left, right)
    if both_integers and operator is not Arithmetic.DIV:
        return _calculate_integers(operator, left, right)
    a, b = to_doubles(left), to_doubles(right)
    if a is None or b is None:
        return make_unknown(left, right)
    return Vector(Kind.DOUBLE, keep_finite(_WRAPPING[operator](a, b)), _doubt(left, right))


def is_number(value: Value) -> TypeGuard[Vector | int | float]:
    """Return whether a value is a number: a numeric vector or constant; booleans are not."""
    if isinstance(value, Vector):
        return value.kind in NUMBERS
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_doubles(value: Value) -> _Operand:
    """Return a number as Arrow doubles, integers rounded; None for a constant that is too large."""
    if isinstance(value, Vector):
        return value.array.cast(pa.float64(), safe=False)
    try:
        return pa.scalar(float(value or 0), pa.float64())
    except OverflowError:
        return None


def _is_integer(value: Value) -> bool:
    return value.kind is Kind.LONG if isinstance(value, Vector) else isinstance(value, int)


def _doubt(left: Value, right: Value) -> pa.BooleanArray | None:
    of_left = left.doubt if isinstance(left, Vector) else None
    return either(of_left, right.doubt if isinstance(right, Vector) else None)


def _to_longs(value: Value) -> _Operand:
    """Return an integer vector's array, or a constant as an int64 scalar; None for a constant that
    int64 cannot hold.
    """
    if isinstance(value, Vector):
        return value.array
    return pa.scalar(value, pa.int64()) if _fits(value) else None


def _fits(value: Constant) -> bool:
    return isinstance(value, int) and -INT64_MAX - 1 <= value <= INT64_MAX


def _calculate_integers(operator: Arithmetic, left: Value, right: Value) -> Vector:
    a, b = _to_longs(left), _to_longs(right)
    if a is None or b is None:
        return _doubt_all(left, right)
    try:
        return Vector(Kind.LONG, _CHECKED[operator](a, b), _doubt(left, right))
    except pa.ArrowInvalid:
        rough = pc.abs(_WRAPPING[operator](to_doubles(left), to_doubles(right)))
        large = fill(pc.greater(rough, _SURE))
        return Vector(Kind.LONG, _WRAPPING[operator](a, b), either(large, _doubt(left, right)))


def _doubt_all(left: Value, right: Value) -> Vector:
    rows = len(left.array if isinstance(left, Vector) else right.array)  # type: ignore[union-attr]
    return Vector(Kind.LONG, pa.nulls(rows, pa.int64()), pa.repeat(True, rows))


def _take_remainder(left: Value, right: Value) -> Vector | None:
    """Return the remainder of truncated division; a row is NULL if its divisor is 0, and None is
    returned if the divisor is the constant 0.

    It has the sign of the dividend, so the sign of the divisor does not matter.
    """
    if right == 0:
        return None
    divisor = right if isinstance(right, Vector) else abs(int(right or 0))
    a, b = _to_longs(left), _to_longs(divisor)
    if a is None or b is None:
        return _doubt_all(left, right)
    if isinstance(right, Vector):
        # the absolute value also avoids -2**63 / -1, whose result int64 cannot hold
        b = pc.if_else(pc.equal(b, 0), None, pc.abs(b))
    remainder = pc.subtract(a, pc.multiply(pc.divide(a, b), b))
    return Vector(Kind.LONG, remainder, _doubt(left, right))
