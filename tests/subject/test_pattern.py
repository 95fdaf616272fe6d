from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import SubjectError
from overlay.subject import Pattern, check_subject, intersects, is_subject, is_subset, overlapping
from tests.oracle import subjects as oracle
from tests.subject.strategies import near_subjects, patterns, subjects


@pytest.mark.parametrize(
    ("pattern", "subject", "answer"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.B", False),
        ("a.b", "a", False),
        ("a.b", "a.b.c", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("*.*", "a.b", True),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a>b.*", "a>b.c", True),
        ("flüge.*", "flüge.大阪", True),
        ("*.x", "$JS.x", True),
    ],
)
def test_matches(pattern: str, subject: str, answer: bool) -> None:
    assert Pattern.parse(pattern).matches(subject) is answer
    assert oracle.matches(pattern, subject) is answer


@given(patterns, subjects)
def test_matches_as_the_regex_does(pattern: str, subject: str) -> None:
    assert Pattern.parse(pattern).matches(subject) is oracle.matches(pattern, subject)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "pattern '' is empty"),
        (".a", "column 1 of pattern '.a': empty token"),
        ("a..b", "column 3 of pattern 'a..b': empty token"),
        ("a.", "column 3 of pattern 'a.': empty token"),
        (
            "ab.c d",
            "column 5 of pattern 'ab.c d': a space, which no subject may hold; subject templates write it %20 (c%20d)",
        ),
        ("a\tb", "column 2 of pattern 'a\\tb': a tab"),
        ("a\r", "a carriage return"),
        ("a\n", "a line feed"),
        ("a\f", "a form feed"),
        ("a.\ud800", "column 3 of pattern 'a.\\ud800': half of a surrogate pair"),
        ("abc.>.d", "column 5 of pattern 'abc.>.d': '>' may only be the last token"),
        (">.>", "column 1 of pattern '>.>': '>' may only be the last token"),
    ],
)
def test_refuses_what_is_no_pattern(text: str, error: str) -> None:
    with pytest.raises(SubjectError, match=re.escape(error)):
        Pattern.parse(text)


@pytest.mark.parametrize(("text", "error"), [("a.*", "column 3 of subject 'a.*'"), (">", "column 1 of subject '>'")])
def test_a_literal_subject_takes_no_wildcards(text: str, error: str) -> None:
    with pytest.raises(SubjectError, match=re.escape(error)):
        check_subject(text)


@given(near_subjects)
def test_legal_texts_are_those_of_the_rules(text: str) -> None:
    assert is_subject(text) is oracle.is_subject(text) is _passes(check_subject, text)
    assert _passes(Pattern.parse, text) is oracle.is_pattern(text)


def _passes(check: object, text: str) -> bool:
    assert callable(check)
    try:
        check(text)
    except SubjectError:
        return False
    return True


def test_a_pattern_is_a_value() -> None:
    pattern = Pattern.parse("a.*.>")
    assert (pattern.tokens, pattern.is_literal, str(pattern)) == (("a", "*", ">"), False, "a.*.>")
    assert pattern == Pattern("a.*.>") != Pattern("a.*.b")
    assert len({pattern, Pattern("a.*.>")}) == 1
    assert pickle.loads(pickle.dumps(pattern)).tokens == pattern.tokens
    assert Pattern("a*.b>").is_literal


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.*", True),
        ("a.*", "a.b", False),
        ("a.b.c", "a.>", True),
        ("a", "a.>", False),
        ("a.*", "a.>", True),
        ("a.>", "a.*", False),
        ("a.>", "a.>", True),
        ("a.>", ">", True),
        (">", "*.>", False),
        ("*.>", ">", True),
        ("*", ">", True),
        ("*.b", "a.*", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.*", False),
        ("a.>", "a.b", False),
    ],
)
def test_subset(a: str, b: str, answer: bool) -> None:
    assert is_subset(Pattern(a), Pattern(b)) is answer


def test_subset_and_intersection_for_every_pair_of_small_patterns() -> None:
    parsed = [(text, Pattern.parse(text)) for text in oracle.EVERY_PATTERN]
    for a, one in parsed:
        for b, other in parsed:
            assert is_subset(one, other) is oracle.is_subset(a, b), (a, b)
            assert intersects(one, other) is oracle.intersects(a, b), (a, b)


@pytest.mark.parametrize(
    ("patterns", "pair"),
    [
        ([], None),
        (["a.>"], None),
        (["a.b", "a.b"], ("a.b", "a.b")),
        (["a.*", "a.b"], ("a.b", "a.*")),
        (["a.b.c", "x", "a.>"], ("a.b.c", "a.>")),
        (["a.*.c", "a.b.*"], None),
        (["a", "a.>"], None),
        (["a.b", "a.c", "A.b"], None),
        ([">", "a*"], ("a*", ">")),
    ],
)
def test_overlapping(patterns: list[str], pair: tuple[str, str] | None) -> None:
    found = overlapping([Pattern(text) for text in patterns])
    assert (found and (str(found[0]), str(found[1]))) == pair


@given(st.lists(patterns, max_size=5))
def test_overlapping_is_some_pair_of_which_one_lies_within_the_other(texts: list[str]) -> None:
    found = overlapping([Pattern(text) for text in texts])
    pairs = [(a, b) for i, a in enumerate(texts) for j, b in enumerate(texts) if i != j and oracle.is_subset(a, b)]
    assert (found is not None) == bool(pairs)
    assert found is None or (str(found[0]), str(found[1])) in pairs
