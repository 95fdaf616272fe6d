"""Comparisons rearranged until a column stands alone, and how the other side changes as time
passes.

Only steps that keep the answer for every value are taken: signs, which are exact, and sums of whole
numbers, which are exact in this language at any size. Doubles round, so `x + 0.1 > 0.3` cannot be
written as an exact condition on x.
"""

from __future__ import annotations

from overlay.filter import rows
from overlay.filter.families import Family, find_family
from overlay.filter.nodes import Arithmetic, Calculation, Column, Compare, Literal, Name, Node, Now, Sign, walk
from overlay.filter.operators import MIRRORED


def is_fixed(node: Node) -> bool:
    """Return whether an expression names no column, so that its value is the same for all records."""
    return not any(isinstance(each, Name | Column) for each in walk(node))


def isolate(operator: Compare, left: Node, right: Node, now: int) -> tuple[Compare, Column, Node] | None:
    """Rearrange `left operator right` to an equivalent comparison with a column alone on the left,
    and return (operator, column, right side). `right` must not name a column. `now`: UTC() in ms
    since 1970.

    Only signs, and sums and differences of whole numbers, are moved to the right. Return None if
    that does not leave a column alone.
    """
    while not isinstance(left, Column):
        match left:
            # +x and -x: a minus mirrors the operator
            case Sign(operand=operand, negative=negative) if find_family(operand) is Family.NUMBER:
                left = operand
                if negative:
                    operator, right = MIRRORED[operator], Sign(right, True)
            # x + 5 and 5 + x
            case Calculation(operator=Arithmetic.ADD, left=one, right=other) if _is_whole(right, now):
                one, other = (other, one) if is_fixed(one) else (one, other)
                if not _is_whole(other, now) or not _holds_whole(one):
                    return None
                left, right = one, Calculation(Arithmetic.SUB, right, other)
            # x - 5, and 5 - x, which mirrors the operator
            case Calculation(operator=Arithmetic.SUB, left=one, right=other) if _is_whole(right, now):
                if _is_whole(other, now) and _holds_whole(one):
                    left, right = one, Calculation(Arithmetic.ADD, right, other)
                elif _is_whole(one, now) and _holds_whole(other):
                    operator, left, right = MIRRORED[operator], other, Calculation(Arithmetic.SUB, one, right)
                else:
                    return None
            case _:
                return None
    return operator, left, right


def find_direction(node: Node) -> int | None:
    """Return how the value of an expression without columns changes as time passes: 1 it never
    falls, -1 it never grows, 0 it is constant, None if that is unknown.
    """
    match node:
        case Now():
            return 1
        case Literal():
            return 0
        case Sign(operand=operand, negative=negative):
            below = find_direction(operand)
            return below if below is None or not negative else -below
        # a sum has a known direction if its parts do not move in opposite ones
        case Calculation(operator=Arithmetic.ADD | Arithmetic.SUB as operator, left=left, right=right):
            one, other = find_direction(left), find_direction(right)
            if one is None or other is None:
                return None
            other = other if operator is Arithmetic.ADD else -other
            return None if one * other < 0 else one or other
        # a product or quotient with a constant
        case Calculation(operator=Arithmetic.MUL, left=left, right=Literal() as factor):
            return _scale(left, factor)
        case Calculation(operator=Arithmetic.MUL, left=Literal() as factor, right=right):
            return _scale(right, factor)
        case Calculation(operator=Arithmetic.DIV, left=left, right=Literal() as factor):
            return _scale(left, factor)
    return None


def _scale(node: Node, factor: Literal) -> int | None:
    direction = find_direction(node)
    if direction is None or isinstance(factor.value, bool | bytes):
        return None
    return direction if factor.value > 0 else -direction if factor.value < 0 else None


def _is_whole(node: Node, now: int) -> bool:
    value = rows.evaluate(node, {}, now) if is_fixed(node) else None
    return isinstance(value, int) and not isinstance(value, bool)


def _holds_whole(node: Node) -> bool:
    """Return whether an expression has only whole numbers as values: it consists of columns of
    whole numbers, whole constants, UTC(), and their signs, sums and differences.
    """
    match node:
        case Column(type=type):
            return type in ("long", "timestamp")
        case Literal(value=value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Sign(operand=operand):
            return _holds_whole(operand)
        case Calculation(operator=Arithmetic.ADD | Arithmetic.SUB, left=left, right=right):
            return _holds_whole(left) and _holds_whole(right)
        case Now():
            return True
    return False
