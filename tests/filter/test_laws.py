"""What holds of all filters and messages, by rows.py: nothing raises, the laws of three-valued logic, deep trees."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter.describe import describe
from overlay.filter.limits import Limits
from overlay.filter.nodes import And, Node, Not, Or, Present, walk
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from overlay.filter.rows import evaluate, to_truth, trace
from tests.filter import strategies as some


@st.composite
def _loose(draw: st.DrawFn) -> tuple[Node, dict[str, Any]]:
    schema = draw(some.schemas())
    return draw(some.expressions(schema, undeclared=True)), draw(some.loose_messages(schema))


@settings(deadline=None, max_examples=200)
@given(_loose())
def test_nothing_raises_whatever_the_message_holds(case: tuple[Node, dict[str, Any]]) -> None:
    node, message = case
    for part in walk(node):
        value = evaluate(part, message, some.NOW)
        assert value is None or type(value) in (bool, int, float, bytes)
        assert value not in (float("inf"), float("-inf")) and value == value


@settings(deadline=None, max_examples=200)
@given(some.cases(rows=2))
def test_laws_of_three_valued_logic(case: tuple[some.Schema, Node, list[dict[str, dict[str, Any]]]]) -> None:
    _, node, messages = case
    for message in messages:
        plain = to_truth(evaluate(node, message, 0))
        assert evaluate(Not(Not(node)), message, 0) is plain
        assert evaluate(And((node, node)), message, 0) is plain
        assert evaluate(Or((node, node)), message, 0) is plain
        assert evaluate(And((node, Not(node))), message, 0) is (None if plain is None else False)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_property_filter_is_an_and_of_its_entries(data: st.DataObject) -> None:
    schema = data.draw(some.schemas())
    mapping = data.draw(some.property_filters(schema))
    message = data.draw(some.messages(schema))
    node = parse_properties(mapping)
    single = [
        parse_properties({section: {name: value}}) for section, part in mapping.items() for name, value in part.items()
    ]
    answers = [evaluate(each, message, 0) for each in single]
    assert (evaluate(node, message, 0) is True) == all(answer is True for answer in answers)
    assert all(answer is not None for answer, each in zip(answers, single, strict=True) if isinstance(each, Present))
    assert describe(node)


def test_deep_trees_are_no_trouble() -> None:
    deep = parse("NOT " * 199 + "a", Limits())
    assert evaluate(deep, {"application_properties": {"a": True}}, 0) is False
    assert len(list(trace(deep, {}, 0))) == 200
    assert hash(deep) == hash(parse("NOT " * 199 + "a"))
    assert describe(deep) == "NOT " * 199 + "a"
    sums = parse("1" + "+1" * 99)
    assert evaluate(sums, {}, 0) == 100
