"""LIKE: the facts of section 6, and Python's regular expressions as the oracle."""

from __future__ import annotations

import re
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.filter import like
from overlay.filter.like import PatternError, Shape
from tests.filter import strategies as some


def matches(value: str | bytes, pattern: str, escape: str = "") -> bool | None:
    return like.compile(pattern, escape).matches(value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("", ""),
        ("", "%"),
        ("", "%%%"),
        ("abc", "abc"),
        ("abc", "a%"),
        ("abc", "%c"),
        ("abc", "%b%"),
        ("abc", "a%c"),
        ("abc", "a_c"),
        ("abc", "___"),
        ("abc", "%%%"),
        ("aa", "a%a"),
        ("aXbXc", "a%b%c"),
        ("abab", "%ab"),
        ("aab", "%a_"),
        ("é", "_"),
        ("😀", "_"),
        ("a😀b", "a_b"),
        ("e\u0301", "__"),
        ("a\nb", "a%b"),
        ("a\nb", "a_b"),
        ("xa\ny", "%a%"),
        ("a.c*[x]^$\\", "a.c*[x]^$\\"),
        ("a##b", "a##%"),
        ("a\tb", "a_b"),
        ("\x00", "_"),
        ("a" * 60_000 + "x", "%x%"),
        ("a" * 60_000 + "x", "%x"),
        ("mississippi", "%iss%ip%"),
        ("mississippi", "m%i_s%p_"),
    ],
)
def test_matches(value: str, pattern: str) -> None:
    assert matches(value, pattern) is True


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("a", ""),
        ("", "_"),
        ("abc", "ABC"),
        ("abc", "b%"),
        ("abc", "%b"),
        ("abc", "ab"),
        ("abc", "bc"),
        ("abc", "__"),
        ("abc", "____"),
        ("a", "a%a"),
        ("abc\n", "abc"),
        ("abc\n", "a_c"),
        ("abx", "a%b"),
        ("axc", "a.c"),
        ("a", "%a_%"),
        ("ab", "ab%ab"),
        ("aXb", "a%X%X%b"),
        ("aba", "%ab%ba%"),
        ("ab", "%ab%b%"),
        ("aab", "%a_%_b%"),
        ("é", "__"),
    ],
)
def test_does_not_match(value: str, pattern: str) -> None:
    assert matches(value, pattern) is False


@pytest.mark.parametrize("pattern", ["", "a", "%", "a%", "%a", "%a%", "a%a", "a_", "%a%a%"])
@pytest.mark.parametrize("value", some._BROKEN)
def test_what_is_no_text_is_unknown_in_every_shape(value: bytes, pattern: str) -> None:
    assert matches(value, pattern) is None


@pytest.mark.parametrize(
    ("value", "pattern", "escape"),
    [
        ("100%", "100!%", "!"),
        ("a_b", "a!_b", "!"),
        ("a!b", "a!!b", "!"),
        ("abc", "a!bc", "!"),
        ("a%b", "a%%b", "%"),
        ("a_b", "a__b", "_"),
        ("50%x", "50😀%x", "😀"),
        ("a%b", r"a\%b", "\\"),
        ("axb", "axxb", "x"),
    ],
)
def test_escape(value: str, pattern: str, escape: str) -> None:
    assert matches(value, pattern, escape) is True


def test_the_escape_character_is_no_wildcard_any_more() -> None:
    assert matches("aXXb", "a%%b", "%") is False
    assert matches("a_xb", "a__xb", "_") is True
    assert matches("aaxb", "a__xb", "_") is False


def test_there_is_no_escape_character_by_default() -> None:
    assert matches(r"a\b", r"a\_") is True
    assert matches("a_", r"a\_") is False


@pytest.mark.parametrize(
    ("pattern", "escape", "index"),
    [
        ("abc!", "!", 3),
        ("!!!", "!", 2),
        ("H%", "%", 1),
        ("a_", "_", 1),
        ("a\tb", "", 1),
        ("\x7f", "", 0),
        ("a!\n", "!", 2),
        ("a", "!!", 1),
        ("ab\x00", "", 2),
    ],
)
def test_refused(pattern: str, escape: str, index: int) -> None:
    with pytest.raises(PatternError) as error:
        like.compile(pattern, escape)
    assert error.value.index == index
    assert error.value.hint


@pytest.mark.parametrize(
    ("pattern", "shape", "texts"),
    [
        ("", Shape.EXACT, (b"", b"", b"")),
        ("abc", Shape.EXACT, (b"abc", b"", b"")),
        ("%", Shape.PREFIX, (b"", b"", b"")),
        ("%%%", Shape.PREFIX, (b"", b"", b"")),
        ("é%", Shape.PREFIX, ("é".encode(), b"", b"")),
        ("%ab", Shape.SUFFIX, (b"", b"", b"ab")),
        ("%%ab%%", Shape.CONTAINS, (b"", b"ab", b"")),
        ("a%b", Shape.PREFIX_SUFFIX, (b"a", b"", b"b")),
        ("a%%b", Shape.PREFIX_SUFFIX, (b"a", b"", b"b")),
        ("a%b%", Shape.GENERAL, (b"", b"", b"")),
        ("_", Shape.GENERAL, (b"", b"", b"")),
        ("a_%", Shape.GENERAL, (b"", b"", b"")),
    ],
)
def test_shapes(pattern: str, shape: Shape, texts: tuple[bytes, bytes, bytes]) -> None:
    found = like.compile(pattern)
    assert found.shape is shape
    assert (found.head, found.inner, found.tail) == texts


def to_regex(pattern: str, escape: str) -> str:
    """The same question for Python's re, written another way."""
    parts, is_literal = [], False
    for char in pattern:
        if is_literal or char not in ("%", "_", escape):
            parts.append(re.escape(char))
            is_literal = False
        elif char == escape:
            is_literal = True
        else:
            parts.append({"%": ".*", "_": "."}[char])
    return "".join(parts)


def is_legal(pattern: str, escape: str) -> bool:
    return not escape or re.sub(re.escape(escape) + ".", "", pattern, flags=re.DOTALL).find(escape) < 0


_pairs = st.tuples(some.patterns, st.sampled_from(("", "", *some._ESCAPES))).filter(lambda pair: is_legal(*pair))


@settings(deadline=None)
@given(_pairs, st.lists(some.binaries, max_size=6))
def test_agrees_with_pythons_expressions(pair: tuple[str, str], values: list[bytes]) -> None:
    pattern, escape = pair
    expression = re.compile(to_regex(pattern, escape), re.DOTALL)
    for value in values:
        try:
            expected = expression.fullmatch(value.decode()) is not None
        except UnicodeDecodeError:
            expected = None
        assert matches(value, pattern, escape) is expected


@settings(deadline=None)
@given(_pairs, st.lists(some.texts, min_size=1, max_size=6))
def test_the_expression_for_re2_says_the_same(pair: tuple[str, str], values: list[str]) -> None:
    found = like.compile(*pair)
    answers = pc.match_substring_regex(pa.array(values), found.regex).to_pylist()
    assert answers == [found.matches(value.encode()) for value in values]


@settings(deadline=None)
@given(_pairs, some.texts)
def test_shapes_say_the_same(pair: tuple[str, str], text: str) -> None:
    found, value = like.compile(*pair), text.encode()
    answer = {
        Shape.EXACT: value == found.head,
        Shape.PREFIX: value.startswith(found.head),
        Shape.SUFFIX: value.endswith(found.tail),
        Shape.CONTAINS: found.inner in value,
        Shape.PREFIX_SUFFIX: value.startswith(found.head)
        and value.endswith(found.tail)
        and len(value) >= len(found.head) + len(found.tail),
    }
    if found.shape is not Shape.GENERAL:
        assert found.matches(value) is answer[found.shape]


@pytest.mark.parametrize("count", [2, 10, 50, 100])
def test_many_wildcards_on_a_text_that_lacks_the_letter(count: int) -> None:
    value = b"a" * 500
    begun = time.thread_time()
    assert matches(value, "%" * count + "x") is False
    assert matches(value, "%a" * count + "%x") is False
    assert matches(value, "%a_" * count + "%x") is False
    assert matches(value, "%_a" * count + "%") is True
    assert time.thread_time() - begun < 0.1


def test_long_values_and_long_runs_cost_one_pass() -> None:
    begun = time.thread_time()
    assert matches(b"a" * 200_000, "%" + "a" * 2000 + "_" + "a" * 2000 + "b%") is False
    assert matches(b"a" * 200_000, "%" + "a" * 4000 + "b%") is False
    assert time.thread_time() - begun < 2
