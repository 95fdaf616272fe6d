"""The same filter said more simply, so that equal parts of different filters look equal and less is evaluated.

Every step keeps the answer for every message, unknown included, in a logic with three values and this language's own rules
for types (facts, section 6). What that allows, and what it does not:

- NOT goes down to the predicates: through AND and OR by De Morgan's laws, which hold for three values, and through
  LIKE, IN and IS NULL, whose negation is a flag. `NOT a = b` is `a <> b`: the one is the opposite of the other for all types.
- `NOT a < b` is `a >= b` only where both sides are numbers or both are texts. Where unlike types meet, and between
  booleans, both of these are false and the NOT is true. So it waits for types that are known; arithmetic always gives numbers.
- `NOT NOT x`, `x AND TRUE` and `x AND x` are `x` only for an x that is a condition: the others make unknown of a number.
- `x IN (c)` is `x = c` for a constant c. For a field it is not: IN is false, not unknown, where the item is NULL.
- Constant parts are computed now, unless the result is unknown (which no constant can say) or needs the time.

Types are those that bind.py found. Data of other types than the stream declares is outside this promise.
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
    """A tree, bound or not, that answers as `node` does. A part that is changed keeps the place of what it came from."""
    simple = map_children(node, rewrite)
    below = tuple(children(simple))
    if below and all(isinstance(child, Literal) for child in below):
        value = rows.evaluate(simple, {}, 0)
        return simple if value is None else Literal(value, at=node.at)
    return _simplify(simple)


@singledispatch
def _simplify(node: Node) -> Node:
    """The node in simpler words, when its children already are."""
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
    # numbers of different types are one item when they are equal; TRUE and 1 are not
    return (find_family(item), item.value) if isinstance(item, Literal) else (type(item), item)


@_simplify.register
def _(node: Not) -> Node:
    return _negate(node.operand, node)


def _negate(node: Node, whole: Node) -> Node:
    """NOT `node`, without the word where that is exact. `whole`: what the result stands for, whose place it keeps."""
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
    """`absorbing`: the constant that decides; the other one says nothing."""
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
