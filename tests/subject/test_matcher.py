from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.subject import Matcher, Pattern
from tests.oracle import subjects as oracle
from tests.subject.strategies import patterns, subjects


def build(*texts: str) -> Matcher:
    return Matcher((Pattern(text), known) for known, text in enumerate(texts))


def test_without_patterns_nothing_matches() -> None:
    assert build().match("a") == ()


def test_literals_and_wildcards_together() -> None:
    matcher = build("a.b", "a.*", "a.>", ">", "*", "a.b.c", "*.b", "x.>")
    assert matcher.match("a.b") == (0, 1, 2, 3, 6)
    assert matcher.match("a") == (3, 4)
    assert matcher.match("a.b.c") == (2, 3, 5)
    assert matcher.match("x.b") == (3, 6, 7)
    assert matcher.match("A.b.d.e") == (3,)


def test_ids_come_ascending_and_once() -> None:
    matcher = Matcher([(Pattern("a.*"), 9), (Pattern("a.b"), 9), (Pattern("*.b"), 9), (Pattern("a.b"), 3)])
    assert matcher.match("a.b") == (3, 9)


def test_wildcards_inside_a_token_are_text() -> None:
    matcher = build("a*.b", "a>.>")
    assert matcher.match("ab.b") == ()
    assert matcher.match("a*.b") == (0,)
    assert matcher.match("a>.b") == (1,)


@given(st.lists(st.tuples(patterns, st.integers(0, 5)), max_size=12), subjects)
def test_match_as_one_pattern_after_the_other(pairs: list[tuple[str, int]], subject: str) -> None:
    matcher = Matcher((Pattern(text), known) for text, known in pairs)
    assert matcher.match(subject) == oracle.match_all(pairs, subject)


def test_every_small_pattern_over_every_small_subject() -> None:
    pairs = list(zip(oracle.EVERY_PATTERN, range(len(oracle.EVERY_PATTERN)), strict=True))
    matcher = Matcher((Pattern(text), known) for text, known in pairs)
    for subject in oracle.EVERY_SUBJECT:
        assert matcher.match(subject) == oracle.match_all(pairs, subject)
