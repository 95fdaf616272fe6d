from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter.nodes import Arithmetic, Calculation, Column, Compare, Comparison, Literal, Node, Now, Section, Sign
from overlay.filter.rows import evaluate
from overlay.index.skip.algebra import find_direction, isolate
from tests.filter import strategies as some

X = Column(Section.APPLICATION, "x", "long")
D = Column(Section.APPLICATION, "d", "double")
numbers = st.integers(-9, 9).map(Literal)
fixed = st.recursive(
    numbers | st.just(Now()) | st.sampled_from((Literal(0.5), Literal(-2.5))),
    lambda below: st.one_of(
        st.builds(Sign, below, st.booleans()), st.builds(Calculation, st.sampled_from(Arithmetic), below, below)
    ),
    max_leaves=4,
)


@st.composite
def sums(draw: st.DrawFn) -> Node:
    """Signs and sums around a column."""
    node: Node = draw(st.sampled_from((X, X, X, D)))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            node = Sign(node, draw(st.booleans()))
            continue
        sides = draw(st.permutations((node, draw(numbers | st.just(Now()) | st.just(Literal(0.5))))))
        node = Calculation(draw(st.sampled_from((Arithmetic.ADD, Arithmetic.SUB))), *sides)
    return node


@given(
    st.sampled_from(Compare),
    sums(),
    fixed,
    st.none() | st.integers(-12, 12) | some.integers,
    some.floats,
    st.integers(0, 99),
)
@settings(max_examples=300, deadline=None)
def test_a_column_alone_answers_alike(
    operator: Compare, left: Node, right: Node, x: int | None, d: float, now: int
) -> None:
    found = isolate(operator, left, right, now)
    if found is not None:
        message = {"application_properties": {"x": x, "d": d}}
        wanted = evaluate(Comparison(operator, left, right), message, now)
        assert evaluate(Comparison(*found), message, now) is wanted


def test_what_stands_alone() -> None:
    five = Literal(5)
    total = Calculation(Arithmetic.ADD, X, five)
    assert isolate(Compare.GT, Sign(X, True), five, 0) == (Compare.LT, X, Sign(five, True))
    assert isolate(Compare.LE, total, five, 0) == (Compare.LE, X, Calculation(Arithmetic.SUB, five, five))
    assert isolate(Compare.LE, Calculation(Arithmetic.ADD, D, five), five, 0) is None
    assert isolate(Compare.LE, total, Literal(0.5), 0) is None
    assert isolate(Compare.LE, Calculation(Arithmetic.MUL, X, five), five, 0) is None


@given(fixed, st.integers(0, 2**40), st.integers(0, 2**40))
@settings(max_examples=300, deadline=None)
def test_values_move_in_their_direction(node: Node, now: int, passed: int) -> None:
    direction = find_direction(node)
    before, after = evaluate(node, {}, now), evaluate(node, {}, now + passed)
    if direction is not None and before is not None and after is not None:
        assert isinstance(before, int | float) and isinstance(after, int | float)
        assert (after - before) * direction >= 0
        assert direction or before == after


@pytest.mark.parametrize(
    ("node", "direction"),
    [
        (Calculation(Arithmetic.SUB, Now(), Literal(5)), 1),
        (Calculation(Arithmetic.SUB, Literal(5), Now()), -1),
        (Calculation(Arithmetic.SUB, Now(), Now()), None),
        (Calculation(Arithmetic.MUL, Literal(-2), Now()), -1),
        (Calculation(Arithmetic.DIV, Now(), Literal(1000)), 1),
        (Calculation(Arithmetic.MUL, Now(), Now()), None),
        (Calculation(Arithmetic.MOD, Now(), Literal(7)), None),
        (Sign(Now(), True), -1),
    ],
)
def test_directions(node: Node, direction: int | None) -> None:
    assert find_direction(node) == direction
