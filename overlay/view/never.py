"""Conditions that are true of no record, whatever is in it: a number compared with a text, a whole
number that is to equal 2.5, two demands of which each excludes the other.

Nothing here is certain to be found. What is found is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from overlay.filter.describe import describe
from overlay.filter.families import Family, find_family
from overlay.filter.nodes import And, Column, Compare, Comparison, In, Literal, Node, walk
from overlay.filter.operators import MIRRORED
from overlay.filter.rows import evaluate
from overlay.index.skip.intervals import FULL, Interval, compare_with

_SAMPLES: dict[Family, tuple[Literal, ...]] = {
    Family.NUMBER: (Literal(0), Literal(1.5)),
    Family.TEXT: (Literal(b""), Literal(b"x")),
    Family.BOOLEAN: (Literal(False), Literal(True)),
}
"""Values of each family. A comparison with another family has the same answer for all of them."""
_WORDS = {Family.NUMBER: "a number", Family.TEXT: "a text", Family.BOOLEAN: "true or false"}


@dataclass(frozen=True, slots=True)
class Never:
    """A condition that is true of no record, and why."""

    node: Node
    reason: str

    def __str__(self) -> str:
        return f"{describe(self.node)} is true of no record: {self.reason}"


def find_never(bound: Node) -> list[Never]:
    """Return conditions of a bound filter that are certainly true of no record, each once. Looked at
    are comparisons of a column with a constant, the items of an IN, and pairs of comparisons in an
    AND; a condition of another form is never returned.
    """
    found: list[Never] = []
    for node in walk(bound):
        match node:
            case Comparison():
                found += _judge_comparison(node)
            case In(operand=operand, items=items, negated=False):
                of_items = [_judge_comparison(Comparison(Compare.EQ, operand, item)) for item in items]
                found += [never for nevers in of_items for never in nevers]
            case And(operands=operands):
                found += _judge_pairs(operands)
    return list(dict.fromkeys(found))


def _judge_comparison(node: Comparison) -> Iterator[Never]:
    """Yield the comparison with the reason, if it compares a column with a constant and is true of no record."""
    placed = _place(node)
    if placed is None:
        return
    column, operator, constant = placed
    mine, theirs = find_family(column), find_family(constant)
    assert mine is not None and theirs is not None
    if mine is not theirs:
        if not any(evaluate(Comparison(operator, sample, constant), {}, 0) is True for sample in _SAMPLES[mine]):
            sides = f"{describe(column)} is {_WORDS[mine]}, the other side {_WORDS[theirs]}"
            yield Never(node, sides)
    elif _bound_values(column, operator, constant).is_empty:
        yield Never(node, f"no value of type {column.type} is so")


def _judge_pairs(operands: Sequence[Node]) -> Iterator[Never]:
    """Yield, for each pair of comparisons among the operands of an AND that are of one column and
    exclude each other, their conjunction.
    """
    placed = [(node, _place(node)) for node in operands if isinstance(node, Comparison)]
    for (one, first), (other, second) in combinations(placed, 2):
        if first is None or second is None or first[0] != second[0]:
            continue
        a, b = _bound_values(*first), _bound_values(*second)
        if not a.is_empty and not b.is_empty and _intersect(a, b).is_empty:
            yield Never(And((one, other)), "one excludes the other")


def _place(node: Comparison) -> tuple[Column, Compare, Literal] | None:
    """Return a comparison of a column with a constant as column, operator, constant, with the operator
    mirrored if the constant is on the left; None for any other comparison.
    """
    match node:
        case Comparison(operator=operator, left=Column() as column, right=Literal() as constant):
            return column, operator, constant
        case Comparison(operator=operator, left=Literal() as constant, right=Column() as column):
            return column, MIRRORED[operator], constant
    return None


def _bound_values(column: Column, operator: Compare, constant: Literal) -> Interval:
    """Return an interval that has all values of a column for which a comparison is true."""
    value, family = constant.value, find_family(column)
    if (
        operator is Compare.NE
        or isinstance(value, bool)
        or family is Family.BOOLEAN
        or family is not find_family(constant)
    ):
        return FULL
    return compare_with(operator, value, column.type).possible


def _intersect(a: Interval, b: Interval) -> Interval:
    lows = [bound for bound in (a.low, b.low) if bound is not None]
    highs = [bound for bound in (a.high, b.high) if bound is not None]
    return Interval(max(lows, default=None), min(highs, default=None))
