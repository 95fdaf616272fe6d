"""Conditions on values and the intervals they become: asked of the values themselves, and of the keys of texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter import like
from overlay.filter.nodes import Affix, Compare, Comparison, Like, Literal, Name, Node, Section
from overlay.filter.rows import evaluate
from overlay.index.skip.intervals import FULL, Interval, Meant, begin_with, compare_with, is_like
from overlay.index.skip.zones import text_key
from tests.filter import strategies as some

many = settings(max_examples=150, deadline=None, database=None)
FIELD = Name(Section.APPLICATION, "x")

long_texts = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from((b"", b"a", b"exactly 15 byte", b"exactly 15 bytes", b"exactly 15 bytes and more", b"\0" * 15)),
    st.sampled_from((b"", b"\0", b"\0\0", b"a", b"\xff")),
)
texts = some.binaries | long_texts
doubles = some.floats.filter(lambda value: abs(value) < float("inf"))


def holds(interval: Interval, value: Any) -> bool:
    return (interval.low is None or interval.low <= value) and (interval.high is None or value <= interval.high)


def ask(node: Node, value: Any) -> Any:
    return evaluate(node, {"application_properties": {"x": value}}, 0)


def check_text(node: Node, meant: Meant, value: bytes) -> None:
    """What is sure is meant, and what is meant is possible."""
    answer = ask(node, value)
    if holds(meant.sure, text_key(value)):
        assert answer is True
    if answer is True:
        assert holds(meant.possible, text_key(value))


ORDERS = st.sampled_from([operator for operator in Compare if operator is not Compare.NE])


@many
@given(ORDERS, some.integers | doubles | st.sampled_from(some._WIDE_INTEGERS), some.integers)
def test_whole_numbers_compare_exactly(operator: Compare, constant: float, value: int) -> None:
    possible, sure = compare_with(operator, constant, "long")
    assert possible == sure
    assert holds(possible, value) is ask(Comparison(operator, FIELD, Literal(constant)), value)


@many
@given(ORDERS, some.integers | doubles | st.sampled_from(some._WIDE_INTEGERS), doubles)
def test_doubles_compare_exactly(operator: Compare, constant: float, value: float) -> None:
    possible, sure = compare_with(operator, constant, "double")
    assert possible == sure
    assert holds(possible, value) is ask(Comparison(operator, FIELD, Literal(constant)), value)


@many
@given(ORDERS, texts, texts)
def test_texts_compare_by_their_keys(operator: Compare, constant: bytes, value: bytes) -> None:
    check_text(Comparison(operator, FIELD, Literal(constant)), compare_with(operator, constant, "string"), value)


@many
@given(texts, texts)
def test_texts_that_begin_with_others(head: bytes, value: bytes) -> None:
    check_text(Affix(FIELD, head, is_suffix=False), begin_with(head), value)
    check_text(Affix(FIELD, head, is_suffix=False), begin_with(head), head + value)


@many
@given(some.patterns | st.sampled_from(("exactly 15 byte%", "exactly 15 bytes%", "exactly 15 bytes", "ex%byte")), texts)
def test_texts_that_are_like_a_pattern(pattern: str, value: bytes) -> None:
    if ask(Like(FIELD, pattern), value) is not None:
        check_text(Like(FIELD, pattern), is_like(like.compile(pattern)), value)


@pytest.mark.parametrize("text", ["", "a", "exactly 15 byte", "é"])
def test_short_texts_are_told_apart(text: str) -> None:
    key = text_key(text.encode())
    assert compare_with(Compare.EQ, text.encode(), "string") == Meant(Interval(key, key), Interval(key, key))


def test_what_no_value_can_be() -> None:
    assert compare_with(Compare.EQ, 2.5, "long").possible.is_empty
    assert compare_with(Compare.GT, 2**63, "long").possible.is_empty
    assert compare_with(Compare.EQ, 2**53 + 1, "double").possible.is_empty
    assert compare_with(Compare.LT, -(10**400), "double").possible.is_empty
    assert compare_with(Compare.LT, b"", "string").possible.is_empty


def test_what_every_value_is() -> None:
    assert compare_with(Compare.LE, 2**63, "long") == Meant(FULL, FULL)
    assert compare_with(Compare.GT, -(10**30), "timestamp") == Meant(FULL, FULL)
    assert begin_with(b"") == Meant(FULL, FULL)
    assert is_like(like.compile("%")) == Meant(FULL, FULL)


def test_bounds_go_to_the_next_number() -> None:
    assert compare_with(Compare.LT, 60.5, "long").sure == Interval(None, 60)
    assert compare_with(Compare.GT, 60, "long").sure == Interval(61, None)
    assert compare_with(Compare.GT, 2**53 + 1, "double").sure == Interval(2.0**53 + 2, None)
    assert compare_with(Compare.LT, 1.0, "double").sure == Interval(None, 0.9999999999999999)
