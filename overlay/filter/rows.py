"""The row evaluator: the value of an expression for one message, by the rules of SQL filters.

This evaluator is the reference. It is slow and obvious: values are Python's, types are those of the
message's values, and nothing is prepared or skipped. The column evaluator must agree with it. The
rules are in docs/filters.md#three-answers. These are the surprising ones:

- A condition is true, false or unknown. Unknown is the same as NULL (None here).
- `=` of unlike types is false and `<>` is true. `<` of unlike types, or of booleans, is false and
  not unknown, so its NOT is true.
- In AND, OR and NOT an operand that is not a boolean counts as unknown.
- IN is false, not unknown, if no item is equal and one item is NULL.
- `/` divides as doubles, even whole numbers. `%` takes whole numbers only and has the sign of the
  dividend. Whole numbers never overflow.

Where RabbitMQ raises, on the overflow of a double, the value is NULL. Nothing here raises, whatever
the message contains.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import singledispatch
from typing import Any, NamedTuple, TypeGuard

from . import like
from .describe import describe
from .message import Message, Value, has_property, read_field
from .nodes import (
    Affix,
    And,
    Arithmetic,
    Calculation,
    Column,
    Compare,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Node,
    Not,
    Now,
    Or,
    Present,
    Sign,
    Span,
    children,
)

_ORDERS: dict[Compare, Callable[[Any, Any], bool]] = {
    Compare.LT: operator.lt,
    Compare.LE: operator.le,
    Compare.GT: operator.gt,
    Compare.GE: operator.ge,
}


class Step(NamedTuple):
    """A sub-expression and its value.

    `text`: its canonical text. `at`: its position in the text it was parsed from.
    """

    at: Span
    text: str
    value: Value
    depth: int
    """0 for the whole expression."""


def trace(node: Node, message: Message, now: int) -> Iterator[Step]:
    """Yield every sub-expression with its value, outermost first and from left to right.

    Parts that cannot change the answer are included. `now`: ms since 1970.
    """
    pending = [(node, 0)]
    while pending:
        part, depth = pending.pop()
        yield Step(part.at, describe(part), evaluate(part, message, now), depth)
        pending += [(child, depth + 1) for child in reversed(tuple(children(part)))]


@singledispatch
def evaluate(node: Node, message: Message, now: int) -> Value:
    """Return the value of `node` for a message (see message.py); None is NULL, or unknown for a
    condition. `now`: the value of UTC(), ms since 1970.
    """
    raise TypeError(f"no rule for {type(node).__name__}")


@evaluate.register
def _(node: Literal, message: Message, now: int) -> Value:
    return node.value


@evaluate.register(Name)
@evaluate.register(Column)
def _(node: Name | Column, message: Message, now: int) -> Value:
    return read_field(message, node.section, node.name)


@evaluate.register
def _(node: Now, message: Message, now: int) -> Value:
    return now


@evaluate.register
def _(node: Sign, message: Message, now: int) -> Value:
    value = evaluate(node.operand, message, now)
    if not _is_number(value):
        return None
    return -value if node.negative else value


@evaluate.register
def _(node: Calculation, message: Message, now: int) -> Value:
    left, right = evaluate(node.left, message, now), evaluate(node.right, message, now)
    if not _is_number(left) or not _is_number(right):
        return None
    try:
        value = _calculate(node.operator, left, right)
    except (OverflowError, ZeroDivisionError):
        return None
    return None if isinstance(value, float) and math.isinf(value) else value


def _calculate(operator: Arithmetic, left: int | float, right: int | float) -> int | float | None:
    match operator:
        case Arithmetic.ADD:
            return left + right
        case Arithmetic.SUB:
            return left - right
        case Arithmetic.MUL:
            return left * right
        case Arithmetic.DIV:
            # int / int rounds once, but the rules divide doubles: beyond 2**53 operands round too
            return float(left) / float(right)
        case Arithmetic.MOD:
            if not isinstance(left, int) or not isinstance(right, int):
                return None
            rest = abs(left) % abs(right)
            return -rest if left < 0 else rest


@evaluate.register
def _(node: Comparison, message: Message, now: int) -> Value:
    left, right = evaluate(node.left, message, now), evaluate(node.right, message, now)
    if left is None or right is None:
        return None
    if node.operator in _ORDERS:
        return _order(_ORDERS[node.operator], left, right)
    return _equal(left, right) is (node.operator is Compare.EQ)


def _equal(left: Value, right: Value) -> bool:
    """Return whether two values are equal; neither is None. Values of unlike types are not.

    Python's == is exact between int and float; only booleans must be kept apart from numbers.
    """
    return isinstance(left, bool) is isinstance(right, bool) and left == right


def _order(precedes: Callable[[Any, Any], bool], left: Value, right: Value) -> bool:
    if _is_number(left) and _is_number(right):
        return precedes(left, right)
    return isinstance(left, bytes) and isinstance(right, bytes) and precedes(left, right)


@evaluate.register
def _(node: Like, message: Message, now: int) -> Value:
    value = evaluate(node.operand, message, now)
    if not isinstance(value, bytes):
        return None
    return _negate(like.compile(node.pattern, node.escape).matches(value), node.negated)


@evaluate.register
def _(node: In, message: Message, now: int) -> Value:
    value = evaluate(node.operand, message, now)
    if value is None:
        return None
    found = any(_equal(value, evaluate(item, message, now)) for item in node.items)
    return found is not node.negated


@evaluate.register
def _(node: IsNull, message: Message, now: int) -> Value:
    return (evaluate(node.operand, message, now) is None) is not node.negated


@evaluate.register
def _(node: Affix, message: Message, now: int) -> Value:
    value = evaluate(node.operand, message, now)
    if value is None:
        return None
    if not isinstance(value, bytes):
        return False
    return value.endswith(node.text) if node.is_suffix else value.startswith(node.text)


@evaluate.register
def _(node: Present, message: Message, now: int) -> Value:
    return has_property(message, node.operand.name)


@evaluate.register
def _(node: Not, message: Message, now: int) -> Value:
    return _negate(to_truth(evaluate(node.operand, message, now)), True)


@evaluate.register
def _(node: And, message: Message, now: int) -> Value:
    answers = {to_truth(evaluate(operand, message, now)) for operand in node.operands}
    return False if False in answers else None if None in answers else True


@evaluate.register
def _(node: Or, message: Message, now: int) -> Value:
    answers = {to_truth(evaluate(operand, message, now)) for operand in node.operands}
    return True if True in answers else None if None in answers else False


def to_truth(value: Value) -> bool | None:
    """Return the value itself if it is a boolean, else None (unknown): a number or a string is
    neither true nor false.
    """
    return value if isinstance(value, bool) else None


def _negate(answer: bool | None, negated: bool) -> bool | None:
    return None if answer is None else answer is not negated


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
