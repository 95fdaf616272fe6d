"""Simplification of filters, so that equal parts of different filters become equal nodes.

Every rewrite keeps the answer for every message, unknown included. The logic has three values and
its own rules for types (docs/filters.md#three-answers). This allows and forbids the following:

- NOT moves down to the predicates. It passes AND and OR by De Morgan's laws, which hold for three
  values. LIKE, IN and IS NULL have a flag for their negation. `NOT a = b` becomes `a <> b`,
  because they are opposites for all types.
- `NOT a < b` becomes `a >= b` only if both sides are numbers or both are strings. For unlike
  types, and for booleans, both comparisons are false and the NOT is true. So this rewrite needs
  known types; arithmetic always has numbers.
- `NOT NOT x`, `x AND TRUE` and `x AND x` become `x` only if x is a condition. For a number they
  are unknown, while x is a number.
- `x IN (c)` becomes `x = c` for a constant c, but not for a field: IN is false, not unknown, if
  the item is NULL.
- Constant parts are computed now. Exceptions are parts whose value is unknown, which no constant
  can express, and parts that need the time.

Types are those that bind.py found. For data with other types than the stream declares, answers may
change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import singledispatch
from typing import Any

from . import rows
from .families import Family, find_family
from .nodes import And, Column, Compare, Comparison, In, IsNull, Like, Literal, Name, Node, Not, Or, children, walk
from .operators import MIRRORED, OPPOSITE
from .trees import map_children

_EQUALITY = (Compare.EQ, Compare.NE)


def rewrite(node: Node) -> Node:
    """Return a simplified tree with the same answers. The tree may be bound or not.

    A node made anew has the position of the node it replaces. An operand that takes the place of its NOT NOT, AND or
    OR keeps its own.
    """
    simple = map_children(node, rewrite)
    below = tuple(children(simple))
    if below and all(isinstance(child, Literal) for child in below):
        value = rows.evaluate(simple, {}, 0)
        return simple if value is None else Literal(value, at=node.at)
    return _simplify(simple)


@singledispatch
def _simplify(node: Node) -> Node:
    """Return a simpler equivalent of a node whose children are already simplified."""
    return node


@_simplify.register
def _(node: Comparison) -> Node:
    if _is_fixed(node.left) and not _is_fixed(node.right):
        return replace(node, operator=MIRRORED[node.operator], left=node.right, right=node.left)
    return node


@_simplify.register
def _(node: In) -> Node:
    found: dict[tuple[Any, Any], Node] = {}
    for item in node.items:
        found.setdefault(_key_item(item), item)
    items = tuple(found.values())
    if len(items) == 1 and isinstance(items[0], Literal):
        operator = Compare.NE if node.negated else Compare.EQ
        return _simplify(Comparison(operator, node.operand, items[0], at=node.at))
    return node if len(items) == len(node.items) else replace(node, items=items)


def _key_item(item: Node) -> tuple[Any, Any]:
    """Return a key that is equal for two items of an IN list exactly if they are the same item: 1
    and 1.0 are, TRUE and 1 are not.
    """
    return (find_family(item), item.value) if isinstance(item, Literal) else (type(item), item)


@_simplify.register
def _(node: Not) -> Node:
    return _negate(node.operand, node)


def _negate(node: Node, whole: Node) -> Node:
    """Return NOT `node`, without a Not node if that is exact.

    `whole`: the node that the result replaces. The result has its position; only for NOT NOT x, the
    result is x with its own.
    """
    match node:
        case And(operands=operands) | Or(operands=operands):
            other = Or if isinstance(node, And) else And
            return _simplify(other(tuple(_negate(operand, operand) for operand in operands), at=whole.at))
        case Comparison(operator=operator, left=left, right=right) if operator in _EQUALITY or _have_order(left, right):
            return replace(node, operator=OPPOSITE[operator], at=whole.at)
        case Like() | In() | IsNull():
            return replace(node, negated=not node.negated, at=whole.at)
        case Literal(value=bool(value)):
            return Literal(not value, at=whole.at)
        case Not(operand=operand) if find_family(operand) is Family.BOOLEAN:
            return operand
        case _:
            return whole if isinstance(whole, Not) and whole.operand is node else Not(node, at=whole.at)


def _have_order(left: Node, right: Node) -> bool:
    return find_family(left) is find_family(right) and find_family(left) in (Family.NUMBER, Family.TEXT)


@_simplify.register
def _(node: And) -> Node:
    return _join(node, node.operands, absorbing=False)


@_simplify.register
def _(node: Or) -> Node:
    return _join(node, node.operands, absorbing=True)


def _join(node: And | Or, operands: Iterable[Node], absorbing: bool) -> Node:
    """Return a simplified AND or OR. `absorbing`: the constant that decides the answer, False for
    AND and True for OR.
    """
    flat: dict[Node, None] = {}
    for operand in operands:
        flat |= dict.fromkeys(operand.operands if type(operand) is type(node) else (operand,))
    if Literal(absorbing) in flat:
        return Literal(absorbing, at=node.at)
    flat.pop(Literal(not absorbing), None)
    left = tuple(flat)
    if not left:
        return Literal(not absorbing, at=node.at)
    if len(left) == 1:
        if find_family(left[0]) is Family.BOOLEAN:
            return left[0]
        left = (*left, Literal(not absorbing))
    return node if left == node.operands else replace(node, operands=left)


def _is_fixed(node: Node) -> bool:
    return not any(isinstance(each, Name | Column) for each in walk(node))
