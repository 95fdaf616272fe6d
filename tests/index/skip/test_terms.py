"""Terms: what patterns and values ask for is what subjects and values put in."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from overlay.index.skip.terms import (
    DEPTH,
    UNFILTERED,
    Term,
    canonical_doubles,
    hash_subjects,
    hash_texts,
    null_term,
    pattern_terms,
    property_term,
    value_term,
)
from overlay.subject import Pattern
from overlay.subject.dictionary import Texts
from tests.oracle.chunks import subject_terms

tokens = st.sampled_from(["a", "b", "ab", "größe", "1", "%2E"])
subjects = st.lists(tokens, min_size=1, max_size=20).map(".".join)
patterns = st.builds(
    lambda head, rest: Pattern(".".join([*head, *rest])),
    st.lists(tokens | st.just("*"), min_size=1, max_size=18),
    st.sampled_from([[], [">"]]),
)


def make_texts(texts: list[str]) -> Texts:
    raw = [text.encode() for text in texts]
    return Texts(np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)]))


@settings(deadline=None)
@given(subjects, patterns, st.data())
def test_a_subject_has_what_its_patterns_ask_for(subject: str, pattern: Pattern, data: st.DataObject) -> None:
    if not pattern.matches(subject):
        wild = [data.draw(st.sampled_from([token, "*"])) for token in subject.split(".")]
        cut = data.draw(st.integers(1, len(wild)))
        pattern = Pattern(".".join(wild if cut == len(wild) else [*wild[:cut], ">"]))
    assert pattern.matches(subject)
    assert set(pattern_terms(pattern)) <= set(subject_terms(subject))


@settings(deadline=None)
@given(subjects, patterns)
def test_a_pattern_asks_for_what_tells_it_apart(subject: str, pattern: Pattern) -> None:
    """Terms decide on one subject, but for `>` behind wildcards, whose length no term says, and for what lies too deep."""
    assume(not pattern.matches(subject) and len(pattern.tokens) <= DEPTH)
    assume(not (pattern.tokens[-1] == ">" and "*" in pattern.tokens))
    assert not set(pattern_terms(pattern)) <= set(subject_terms(subject))


def test_what_a_subject_puts_in() -> None:
    texts = {term.text for term in subject_terms("orders.eu.c7")}
    assert texts == {"orders.eu.c7", "3 tokens", "orders.>", "*.eu.>", "*.*.c7.>", "orders.eu.>"}
    assert len(set(subject_terms("orders.eu.c7"))) == 7  # the first token and the first prefix read alike
    assert len(subject_terms(".".join("a" * 1000))) == 2 + 2 * DEPTH


def test_what_patterns_ask_for() -> None:
    def ask(text: str) -> list[str]:
        return [term.text for term in pattern_terms(Pattern(text))]

    assert ask(">") == []
    assert ask("a.b") == ["a.b"]
    assert ask("a.b.>") == ["a.b.>"]
    assert ask("*.b.*") == ["*.b.>", "3 tokens"]
    assert ask("a.*.c7") == ["a.>", "*.*.c7.>", "3 tokens"]
    assert ask("*.>") == []
    assert set(pattern_terms(Pattern("a.b"))) == {value_term(b"a.b")}


@settings(deadline=None)
@given(st.lists(subjects, max_size=5), st.data())
def test_the_kernels_hash_the_same_terms(found: list[str], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(found)))
    for hashed, terms_of in (
        (hash_subjects, subject_terms),
        (hash_texts, lambda text: [value_term(text.encode())]),
    ):
        hashes, counts = hashed(make_texts(found), first)
        assert counts.tolist() == [len(terms_of(subject)) for subject in found[first:]]
        parts = np.split(hashes, np.cumsum(counts)[:-1]) if counts.size else []
        for subject, part in zip(found[first:], parts, strict=True):
            assert {(int(h1), int(h2)) for h1, h2 in part} == {(term.h1, term.h2) for term in terms_of(subject)}


@settings(deadline=None)
@given(st.integers(-(1 << 70), 1 << 70) | st.integers(1 << 1000, 1 << 1100))
@example((1 << 63) - 1)
@example(-(1 << 63))
@example(1 << 63)
@example(1 << 1023)
def test_numbers_that_are_equal_are_one_term(number: int) -> None:
    term = property_term("x", number)
    try:
        double = float(number)
    except OverflowError:
        return
    if math.isfinite(double):
        assert (property_term("x", double) == term) == (double == number)


def test_what_is_equal_to_sql() -> None:
    assert property_term("x", 0.0) == property_term("x", -0.0) == property_term("x", 0)
    assert property_term("x", "é") == property_term("x", "é".encode())
    assert property_term("x", True) == property_term("x", True)
    distinct = [
        *(property_term("x", value) for value in (1, 2, 0.5, "1", "", b"\1\0", True, False)),
        property_term("y", 1),
        null_term("x"),
        null_term("y"),
        value_term(b""),
        UNFILTERED,
    ]
    assert len(set(distinct)) == len(distinct)
    assert {term.property for term in distinct} == {"x", "y", ""}


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
@example([2.0**63, -(2.0**63), 9007199254740993.0, -0.0, 1e300])
def test_columns_of_doubles_are_canonical(values: list[float]) -> None:
    words = canonical_doubles(np.array(values, np.float64))
    for value, word in zip(values, words, strict=True):
        from overlay.index.skip.terms import _canonical

        assert _canonical(value) == word.tobytes()


def test_terms_compare_by_their_hash() -> None:
    assert Term(1, 2, "a") == Term(1, 2, "b", "p")
    assert Term(1, 2, "a") != Term(2, 1, "a")


@pytest.mark.parametrize("text", ["*", "*.*", "a.*.>"])
def test_patterns_of_wildcards_ask_for_little(text: str) -> None:
    assert len(pattern_terms(Pattern(text))) <= 1
