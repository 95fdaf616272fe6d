"""Canonical text: reading it gives the tree back, and no parenthesis could be spared."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import FilterSyntaxError
from overlay.filter.describe import describe, describe_name
from overlay.filter.limits import Limits
from overlay.filter.nodes import And, Column, Literal, Name, Node, Section
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from tests.filter import strategies as some

WIDE = Limits(length=100_000, tokens=10_000)


@settings(deadline=None, max_examples=300)
@given(some.schemas().flatmap(lambda schema: some.expressions(schema, depth=4, undeclared=True)))
def test_reading_the_text_gives_the_tree_back(node: Node) -> None:
    assert parse(describe(node), WIDE) == node


@settings(deadline=None, max_examples=100)
@given(some.schemas().flatmap(some.expressions))
def test_every_parenthesis_is_needed(node: Node) -> None:
    text = describe(node)
    for opening, closing in find_parentheses(text):
        without = text[:opening] + " " + text[opening + 1 : closing] + " " + text[closing + 1 :]
        try:
            assert parse(without, WIDE) != node, without
        except FilterSyntaxError:
            continue


def find_parentheses(text: str) -> list[tuple[int, int]]:
    open_, pairs, is_quoted = [], [], ""
    for at, char in enumerate(text):
        if is_quoted:
            is_quoted = "" if char == is_quoted else is_quoted
        elif char in "'[":
            is_quoted = "]" if char == "[" else char
        elif char == "(":
            open_.append(at)
        elif char == ")":
            pairs.append((open_.pop(), at))
    return pairs


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a='x'AND(b<>1)", "a = 'x' AND b <> 1"),
        ("((a OR b))AND c", "(a OR b) AND c"),
        ("a != 1", "a <> 1"),
        ("NOT(a)", "NOT a"),
        ("NOT (a AND b)", "NOT (a AND b)"),
        ("NOT (a = 1)", "NOT a = 1"),
        ("(a = 1) = (b = 2)", "(a = 1) = (b = 2)"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("(1-2)-3", "1 - 2 - 3"),
        ("(1*2)+3", "1 * 2 + 3"),
        ("a*(-b)", "a * -b"),
        ("a-(b*c)", "a - b * c"),
        ("a*(b/c)", "a * (b / c)"),
        ("-(-5)", "-(-5)"),
        ("6- -5", "6 - -5"),
        ("+a", "+a"),
        ('"it\'s"', "'it''s'"),
        ("'\n'", "0x0A"),
        ("'\u202e'", "0xE280AE"),
        ("0x4142", "'AB'"),
        ("0xFF", "0xFF"),
        ("007", "7"),
        ("1.50", "1.5"),
        ("10000000000000000000000.0", "1.0E+22"),
        ("0.00000000005", "5.0E-11"),
        ("5.0E15", "5000000000000000.0"),
        ("p.subject", "properties.subject"),
        ("h.priority", "header.priority"),
        ("a.x", "x"),
        ("a.not", "[not]"),
        ("a.NULL", "[NULL]"),
        ("[x]", "x"),
        ("[a b]", "[a b]"),
        ("[]", "[]"),
        ("[[[]]]", "[[[]]]"),
        ("x NOT LIKE 'it''s' ESCAPE ''''", "x NOT LIKE 'it''s' ESCAPE ''''"),
        ("x IN(1,(a=b),'c')", "x IN (1, (a = b), 'c')"),
        ("x NOT IN (1)", "x NOT IN (1)"),
        ("x IS NOT NULL", "x IS NOT NULL"),
        ("UTC ( )", "UTC()"),
        ("TRUE", "TRUE"),
    ],
)
def test_texts(text: str, canonical: str) -> None:
    assert describe(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_property_filters_have_words_of_their_own() -> None:
    filters = {
        "properties": {"subject": "&p:fl'", "reply-to": "&s:x"},
        "application_properties": {"a b": None, "n": -5, "t": "&&x"},
    }
    assert describe(parse_properties(filters)) == (
        "properties.subject BEGINS WITH 'fl''' AND properties.reply_to ENDS WITH 'x' "
        "AND [a b] IS PRESENT AND n = -5 AND t = '&x'"
    )


def test_columns_are_written_as_their_names() -> None:
    column = Column(Section.APPLICATION, "two words", "long")
    assert describe(And((column, column))) == "[two words] AND [two words]"
    assert describe_name(Name(Section.PROPERTIES, "message_id")) == "properties.message_id"


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_value(value: float) -> None:
    text = describe(Literal(value))
    node = parse(text.removeprefix("-"))
    assert node == Literal(abs(value))
    assert text.startswith("-") == (str(value)[0] == "-")
