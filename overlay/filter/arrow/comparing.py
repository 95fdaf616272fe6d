"""Comparisons and IN on vectors (docs/filters.md#three-answers).

Values of unlike types are never equal, always unequal, and have no order. The types are known per
batch, so such an answer needs no kernel. Integers and doubles compare exactly. A constant is first
converted to the column's type: `x < 60.5` over integers becomes `x <= 60`. Between two columns, a
comparison puts a row in doubt only if its values are equal as doubles and too large for doubles to
tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter import rows as by_row
from overlay.filter.message import Value as Constant
from overlay.filter.nodes import Compare, Comparison, Literal
from overlay.filter.operators import MIRRORED

from .vectors import INT64_MAX, Kind, Value, Vector, either, fill

_Kernel = Callable[[Any, Any], pa.BooleanArray]
Fitted = tuple[_Kernel, pa.Scalar] | bool

KERNELS: dict[Compare, _Kernel] = {
    Compare.EQ: pc.equal,
    Compare.NE: pc.not_equal,
    Compare.LT: pc.less,
    Compare.LE: pc.less_equal,
    Compare.GT: pc.greater,
    Compare.GE: pc.greater_equal,
}
_ASCENDING = (Compare.LT, Compare.LE)
_EQUALITY = (Compare.EQ, Compare.NE)
_EXACT_DOUBLE = float(1 << 53)


def compare(operator: Compare, left: Value, right: Value) -> Value:
    """Return `left operator right` for each row of a batch, as a BOOLEAN vector. The result is True or False if that
    is known to be the answer for all rows, and None if one side is None.
    """
    if left is None or right is None:
        return None
    if not isinstance(left, Vector):
        if not isinstance(right, Vector):
            return by_row.evaluate(Comparison(operator, Literal(left), Literal(right)), {}, 0)
        return compare(MIRRORED[operator], right, left)
    if isinstance(right, Vector):
        return _compare_vectors(operator, left, right)
    return compare_fitted(left, fit(operator, right, left.kind))


def compare_fitted(vector: Vector, fitted: Fitted) -> Value:
    """Return the comparison of a vector with a constant, for each row. `fitted`: what `fit`
    returned for the operator, the constant and the vector's kind.
    """
    if isinstance(fitted, bool):
        return hold(fitted, vector)
    kernel, scalar = fitted
    return Vector(Kind.BOOLEAN, kernel(vector.array, scalar), vector.doubt)


def hold(answer: bool, *vectors: Vector) -> Value:
    """Return `answer` for all rows, except that rows in which a vector is NULL are unknown, and
    rows in doubt (see Vector) stay in doubt. The result is the bool itself if there are no such
    rows.
    """
    doubt: pa.BooleanArray | None = None
    known: pa.BooleanArray | None = None
    for vector in vectors:
        doubt = either(doubt, vector.doubt)
        if vector.array.null_count:
            valid = vector.array.is_valid()
            known = valid if known is None else pc.and_(known, valid)
    if known is None and doubt is None:
        return answer
    if known is None:
        known = pa.repeat(True, len(vectors[0].array))
    return Vector(Kind.BOOLEAN, pc.if_else(known, answer, None), doubt)


def fit(operator: Compare, constant: bool | int | float | bytes, kind: Kind) -> Fitted:
    """Return a kernel and a scalar of the Arrow type of `kind`: `kernel(array, scalar)` answers `array operator
    constant` exactly, also if the constant itself does not fit that type.

    If no value of that kind can give another answer, by the types or because the constant does not fit, return True
    or False instead.
    """
    unlike = operator is Compare.NE
    if isinstance(constant, bool):
        is_like = kind is Kind.BOOLEAN and operator in _EQUALITY
        return (KERNELS[operator], pa.scalar(constant)) if is_like else unlike
    if isinstance(constant, bytes):
        return (KERNELS[operator], pa.scalar(constant, pa.binary())) if kind is Kind.TEXT else unlike
    if kind is Kind.LONG:
        return _fit_long(operator, constant)
    if kind is Kind.DOUBLE:
        return _fit_double(operator, constant)
    return unlike


def _fit_long(operator: Compare, constant: int | float) -> Fitted:
    below = math.floor(constant)
    if below != constant:
        if operator in _EQUALITY:
            return operator is Compare.NE
        operator = Compare.LE if operator in _ASCENDING else Compare.GT
    if -INT64_MAX - 1 <= below <= INT64_MAX:
        return KERNELS[operator], pa.scalar(below, pa.int64())
    if operator in _EQUALITY:
        return operator is Compare.NE
    return (operator in _ASCENDING) == (below > 0)


def _fit_double(operator: Compare, constant: int | float) -> Fitted:
    nearest = _round(constant)
    if nearest != constant:
        if operator in _EQUALITY:
            return operator is Compare.NE
        # no double is between the constant and the nearest double, so the latter's side decides
        if operator in _ASCENDING:
            operator = Compare.LE if nearest < constant else Compare.LT
        else:
            operator = Compare.GT if nearest < constant else Compare.GE
    return KERNELS[operator], pa.scalar(nearest, pa.float64())


def _round(constant: int | float) -> float:
    try:
        return float(constant)
    except OverflowError:
        return math.inf if constant > 0 else -math.inf


def _compare_vectors(operator: Compare, left: Vector, right: Vector) -> Value:
    if left.kind is right.kind:
        if left.kind is Kind.BOOLEAN and operator not in _EQUALITY:
            return hold(False, left, right)
        return Vector(Kind.BOOLEAN, KERNELS[operator](left.array, right.array), either(left.doubt, right.doubt))
    if {left.kind, right.kind} == {Kind.LONG, Kind.DOUBLE}:
        return _compare_mixed(operator, left, right)
    return hold(operator is Compare.NE, left, right)


def _compare_mixed(operator: Compare, left: Vector, right: Vector) -> Vector:
    a, b = (vector.array.cast(pa.float64(), safe=False) for vector in (left, right))
    # rounding keeps the order, so only rows that it makes equal can be wrong
    blurred = fill(pc.and_(pc.equal(a, b), pc.greater_equal(pc.abs(a), _EXACT_DOUBLE)))
    doubt = either(left.doubt, right.doubt)
    return Vector(Kind.BOOLEAN, KERNELS[operator](a, b), either(blurred, doubt) if blurred.true_count else doubt)


def make_value_sets(constants: Sequence[Constant]) -> dict[Kind, pa.Array]:
    """Return the constants of an IN list as one array for each kind of column that can be equal to
    some of them. NULL is left out, and so is a constant that no value of the kind equals.
    """
    sets = {}
    for kind in Kind:
        fitted = [fit(Compare.EQ, constant, kind) for constant in constants if constant is not None]
        scalars = [one[1] for one in fitted if not isinstance(one, bool)]
        if any(scalar.as_py() == 0 for scalar in scalars) and kind is Kind.DOUBLE:
            scalars += [pa.scalar(0.0), pa.scalar(-0.0)]  # one number, two to Arrow's hash table
        if scalars:
            sets[kind] = pa.array([scalar.as_py() for scalar in scalars], scalars[0].type)
    return sets


def is_in(left: Value, sets: Mapping[Kind, pa.Array], others: Sequence[Value]) -> Value:
    """Return whether `left` equals an item of an IN list, for each row. `sets`: the constant items
    by kind (make_value_sets), which are used only if `left` is a vector. `others`: the values of
    the other items, or of all items if `left` is a constant.

    Items that are NULL are ignored; a row in which `left` is NULL is unknown.
    """
    if left is None:
        return None
    hits: list[pa.BooleanArray] = []
    doubt: pa.BooleanArray | None = None
    if isinstance(left, Vector):
        doubt = left.doubt
        if left.kind in sets:
            hits.append(_look_up(left.array, sets[left.kind]))
    for other in others:
        equal = compare(Compare.EQ, left, other)
        if equal is True:
            return True
        if isinstance(equal, Vector):
            hits.append(fill(equal.array))
            doubt = either(doubt, equal.doubt)
    if not hits:
        return hold(False, left) if isinstance(left, Vector) else False
    found = reduce(pc.or_, hits)
    if isinstance(left, Vector) and left.array.null_count:
        found = pc.if_else(left.array.is_valid(), found, None)
    return Vector(Kind.BOOLEAN, found, doubt)


_FEW = 3


def _look_up(array: pa.Array, values: pa.Array) -> pa.BooleanArray:
    if len(values) >= _FEW:
        return pc.is_in(array, value_set=values)
    # building the kernel's hash table costs more than comparing twice
    return reduce(pc.or_, [fill(pc.equal(array, value)) for value in values])
