"""The grammar: section 5 of the facts, the limits of section 2, and texts that are meant to hurt."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import FilterSyntaxError
from overlay.filter.limits import DEEPEST, Limits
from overlay.filter.nodes import (
    And,
    Arithmetic,
    Calculation,
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
    Section,
    Sign,
    walk,
)
from overlay.filter.parse import parse
from tests.filter.test_tokens import _FRAGMENTS


def name(text: str) -> Name:
    return Name(Section.APPLICATION, text)


A, B, C = name("a"), name("b"), name("c")
ONE, TWO, THREE = Literal(1), Literal(2), Literal(3)


def is_refused(text: str, limits: Limits | None = None) -> bool:
    try:
        parse(text, limits or Limits())
    except FilterSyntaxError as error:
        assert error.line >= 1 and error.column >= 1
        return True
    return False


def equal(left: Node, right: Node) -> Comparison:
    return Comparison(Compare.EQ, left, right)


def plus(left: Node, right: Node) -> Calculation:
    return Calculation(Arithmetic.ADD, left, right)


def minus(left: Node, right: Node) -> Calculation:
    return Calculation(Arithmetic.SUB, left, right)


def times(left: Node, right: Node) -> Calculation:
    return Calculation(Arithmetic.MUL, left, right)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND c", Or((A, And((B, C))))),
        ("a AND b OR c", Or((And((A, B)), C))),
        ("(a OR b) AND c", And((Or((A, B)), C))),
        ("a AND b AND c", And((A, B, C))),
        ("a AND (b AND c)", And((A, And((B, C))))),
        ("NOT a = b", Not(equal(A, B))),
        ("NOT a AND b", And((Not(A), B))),
        ("NOT NOT a", Not(Not(A))),
        ("a = 1 OR a <> 2", Or((equal(A, ONE), Comparison(Compare.NE, A, TWO)))),
        ("a != 2", Comparison(Compare.NE, A, TWO)),
        ("1 + 2 * 3", plus(ONE, times(TWO, THREE))),
        ("(1 + 2) * 3", times(plus(ONE, TWO), THREE)),
        ("1 - 2 - 3", minus(minus(ONE, TWO), THREE)),
        ("1 - (2 - 3)", minus(ONE, minus(TWO, THREE))),
        ("1 / 2 * 3", times(Calculation(Arithmetic.DIV, ONE, TWO), THREE)),
        ("1 % 2", Calculation(Arithmetic.MOD, ONE, TWO)),
        ("6 - -5", minus(Literal(6), Sign(Literal(5), True))),
        ("-(-5)", Sign(Sign(Literal(5), True), True)),
        ("+a", Sign(A, False)),
        ("-a * b", times(Sign(A, True), B)),
        ("a = 5 -- b", equal(A, minus(Literal(5), Sign(B, True)))),
        ("(a = 5) = TRUE", equal(equal(A, Literal(5)), Literal(True))),
        ("(a = 5) + 1", plus(equal(A, Literal(5)), ONE)),
        ("'Hello' LIKE 'H%'", Like(Literal(b"Hello"), "H%")),
        ("a + 1 NOT LIKE 'x' ESCAPE '!'", Like(plus(A, ONE), "x", "!", True)),
        ("1 + 4 IN (a)", In(plus(ONE, Literal(4)), (A,))),
        ("a NOT IN (1, b + c, UTC(), (a = b))", In(A, (ONE, plus(B, C), Now(), equal(A, B)), True)),
        ("a IS NULL", IsNull(A)),
        ("NOT a IS NOT NULL", Not(IsNull(A, True))),
        ("[two words] IS NULL", IsNull(name("two words"))),
        ("UTC ( )", Now()),
        ("UTC(\n)", Now()),
        ("+weight", Sign(name("weight"), False)),
        ("'text'", Literal(b"text")),
        ("TRUE", Literal(True)),
        ("(((a)))", A),
    ],
)
def test_trees(text: str, tree: Node) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    "text",
    [
        *("a = b = c", "a < b < c", "a = b LIKE 'x'", "a IN (1) IN (2)", "a LIKE 'x' LIKE 'y'", "a IS NULL IS NULL"),
        *("- -5", "--5", "+-5", "a = NOT b", "NOT", "a AND", "OR a", "a NOT b", "a NOT = b"),
        *("(a) IS NULL", "1 IS NULL", "UTC() IS NULL", "a + b IS NULL", "-a IS NULL", "a IS", "a IS NOT", "a IS TRUE"),
        *("a = NULL", "NULL", "NULL = a", "a IN (NULL)", "a IN (1, NULL)", "a LIKE NULL"),
        *("a IN ()", "a IN (1,)", "a IN (,1)", "a IN 1", "a IN (1", "a IN (b = c)", "IN (1)", "a NOT (1)"),
        *(
            "a LIKE b",
            "a LIKE ('x')",
            "a LIKE 0x41",
            "a LIKE 5",
            "a LIKE 'x' ESCAPE",
            "a LIKE 'x' ESCAPE 0x21",
            "a ESCAPE '!'",
        ),
        *("a LIKE 'x' ESCAPE ('!')", "a LIKE 'x' + 'y'", "a LIKE"),
        *("UTC", "UTC(1)", "UTC() ()", "a()", "f(1)", "()", "(a", "a)", "a, b", "(a, b)", "a b", "1 2", "'a' 'b'"),
        *("a BETWEEN 1 AND 2", "a = ", "= a", "a + ", "* a", "a ** b", "a = = b", "a < > b", "a < = b"),
    ],
)
def test_refused(text: str) -> None:
    assert is_refused(text)


def test_between_is_a_name() -> None:
    assert parse("between = 1") == equal(name("between"), ONE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("9" * 60, int("9" * 60)),
        ("1.2E3", 1200.0),
        ("5.0E+2", 500.0),
        ("5.0E-2", 0.05),
        ("1.0E-400", 0.0),
        ("1.7976931348623157E308", 1.7976931348623157e308),
        ("'it''s'", b"it's"),
        ('"say ""hi"""', b'say "hi"'),
        ('"it\'s"', b"it's"),
        ("'a\\nb'", rb"a\nb"),
        ("'a\nb'", b"a\nb"),
        ("'é😀'", "é😀".encode()),
        ("0x48656C6C6F", b"Hello"),
        ("0x00", b"\0"),
        ("TRUE", True),
        ("FALSE", False),
    ],
)
def test_constants(text: str, value: bool | int | float | bytes) -> None:
    assert parse(text) == Literal(value)


def test_constants_of_different_types_differ() -> None:
    assert len({parse(text) for text in ("1", "1.0", "TRUE", "'1'", "0x31", "01")}) == 4


@pytest.mark.parametrize("text", ["1.8E308", "1.0E400", "x = 1.0E309"])
def test_floats_out_of_range_are_refused(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("h.priority", Name(Section.HEADER, "priority")),
        ("header.priority", Name(Section.HEADER, "priority")),
        ("p.message_id", Name(Section.PROPERTIES, "message_id")),
        ("properties.reply_to_group_id", Name(Section.PROPERTIES, "reply_to_group_id")),
        ("a.not", name("not")),
        ("application_properties.x", name("x")),
        ("x", name("x")),
        ("[p.to]", name("p.to")),
        ("[]", name("")),
        ("[a[[b]]c]", name("a[b]c")),
        ("[größe]", name("größe")),
        ("[x]", name("x")),
    ],
)
def test_names(text: str, named: Name) -> None:
    assert parse(text) == named


def test_names_are_case_sensitive() -> None:
    assert parse("Carrier") != parse("carrier")


@pytest.mark.parametrize(
    "text",
    [
        *("x LIKE 'a!' ESCAPE '!'", "x LIKE 'H%' ESCAPE '%'", "x LIKE '_' ESCAPE '_'", "x LIKE 'a' ESCAPE ''"),
        *("x LIKE 'a' ESCAPE '!!'", "x LIKE 'a' ESCAPE '\N{GRINNING FACE}x'", "x LIKE 'a\t'", "x LIKE 'a\x7f'"),
        *("x LIKE '!\n' ESCAPE '!'", "x NOT LIKE '\x00'"),
    ],
)
def test_patterns_that_are_refused(text: str) -> None:
    assert is_refused(text)


@pytest.mark.parametrize("text", ["x LIKE 'a' ESCAPE '😀'", "x LIKE '!a!!' ESCAPE '!'", r"x LIKE 'a\'", "x LIKE ''"])
def test_patterns_that_are_legal(text: str) -> None:
    assert isinstance(parse(text), Like)


def test_places() -> None:
    text = "a = 1 AND NOT (b + -c) * 2 IN ('x', UTC())"
    places = {text[slice(*node.at)] for node in walk(parse(text))}
    assert places == {
        text,
        *("a = 1", "a", "1", "NOT (b + -c) * 2 IN ('x', UTC())", "(b + -c) * 2 IN ('x', UTC())", "(b + -c) * 2"),
        *("(b + -c)", "b", "-c", "c", "2", "'x'", "UTC()"),
    }


def find_place(text: str) -> tuple[int, int]:
    with pytest.raises(FilterSyntaxError) as error:
        parse(text)
    return error.value.line, error.value.column


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a AND\n  b and c", (2, 5)),
        ("a =\r\n\r\n= b", (3, 1)),
        ("a\rb", (2, 1)),
        ("(a = 1", (1, 7)),
        ("a = 'é😀' 5", (1, 10)),
        ("x LIKE 'it''s\t'", (1, 14)),
        ("x LIKE 'ab!' ESCAPE '!'", (1, 11)),
        ("x LIKE 'a' ESCAPE ''", (1, 19)),
        ("", (1, 1)),
        ("p.sbject = 'a'", (1, 3)),
        ("x = 1 AND foo.bar = 2", (1, 11)),
        ("a = 1 AND b c AND d ==", (1, 13)),
    ],
)
def test_the_first_mistake_is_told_by_line_and_column(text: str, place: tuple[int, int]) -> None:
    assert find_place(text) == place


def test_two_hundred_tokens() -> None:
    assert parse("(" * 99 + "a" + ")" * 99) == A
    assert parse("NOT " * 199 + "a") == parse("NOT " * 199 + "a")
    assert not is_refused("a IN (" + "1," * 97 + "1)")
    assert is_refused("NOT " * 200 + "a")
    assert is_refused("(" * 100 + "a" + ")" * 100)


def test_the_limit_of_depth() -> None:
    limits = Limits(depth=3)
    assert not is_refused("(((a = 1)) AND b = 2) OR c = 3", Limits(depth=4))
    assert is_refused("(((a = 1)) AND b = 2) OR c = 3", limits)
    with pytest.raises(FilterSyntaxError, match="more than 3 levels") as error:
        parse("a = 1 + (2 + 3)", limits)
    assert error.value.column == 10
    assert is_refused("NOT " * 250 + "a", Limits(tokens=1000))


def test_limits_have_to_make_sense() -> None:
    for wrong in ({"length": 0}, {"tokens": -1}, {"depth": 0}, {"depth": DEEPEST + 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


WIDE = Limits(length=100_000, tokens=20_000)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000,
        "(" * 5_000 + "a" + ")" * 5_000,
        "NOT " * 10_000 + "a",
        "a IN (" + "1," * 5_000 + "1)",
        "1" + "+1" * 5_000,
        "-(" * 5_000 + "1" + ")" * 5_000,
        "9" * 10_000,
        "a-" * 3_000,
        "[" * 10_000,
        "'" * 10_001,
        "a LIKE '" + "%a" * 5_000 + "'",
        "0x" + "A" * 10_001,
        "a.b" * 3_000,
        "x AND " * 4_000 + "x =",
    ],
    ids=lambda text: text[:8],
)
def test_hostile_texts_cost_bounded_time(text: str) -> None:
    begun = time.thread_time()
    is_refused(text, WIDE)
    assert time.thread_time() - begun < 2
    begun = time.thread_time()
    is_refused(text)
    assert time.thread_time() - begun < 0.5


def test_numbers_beyond_pythons_digits_are_refused() -> None:
    assert is_refused("x = " + "9" * 5000, WIDE)
    assert parse("9" * 4096) == Literal(int("9" * 4096))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*_FRAGMENTS, " ", "NULL", "IN", "(", ")", "LIKE"]), max_size=12).map("".join) | st.text()
)
def test_any_text_is_a_tree_or_an_error_with_its_place(text: str) -> None:
    try:
        node = parse(text)
    except FilterSyntaxError as error:
        assert error.line >= 1 and 1 <= error.column <= len(text) + 1
        assert error.message and str(error).startswith(f"line {error.line}, column {error.column}: ")
        str(error).encode()
        return
    for part in walk(node):
        start, end = part.at
        assert parse(text[start:end]) == part
