"""Errors as people see them."""

from __future__ import annotations

import pickle
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.errors import FilterSyntaxError, OverlayError
from overlay.filter.parse import parse
from overlay.filter.syntax import quote, refuse, suggest


def fail(text: str) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as error:
        parse(text)
    return error.value


def test_an_error_shows_the_place_and_what_to_write() -> None:
    error = fail("origin = 'JFK'\n  AND dep_delay => 60")
    assert str(error).splitlines() == [
        "line 2, column 17: => is no operator",
        "    AND dep_delay => 60",
        "                  ^^",
        "hint: write >=",
    ]
    assert (error.line, error.column, error.hint) == (2, 17, "write >=")
    assert isinstance(error, OverlayError) and isinstance(error, ValueError)


def draw(text: str, start: int, end: int) -> list[str]:
    return refuse(text, (start, end), "message").excerpt.splitlines()


@pytest.mark.parametrize(
    ("text", "at", "excerpt"),
    [
        ("abc", (1, 2), ["  abc", "   ^"]),
        ("abc", (3, 4), ["  abc", "     ^"]),
        ("abc", (0, 3), ["  abc", "  ^^^"]),
        ("a\tbc", (2, 3), ["  a bc", "    ^"]),
        ("a\x00b\x1bc", (4, 5), ["  a b c", "      ^"]),
        ("航班 b", (3, 4), ["  航班 b", "       ^"]),
        ("航班 b", (0, 2), ["  航班 b", "  ^^^^"]),
        ("e\u0301 b", (3, 4), ["  e\u0301 b", "    ^"]),
        ("ab\ncd\nef", (3, 8), ["  cd", "  ^^"]),
        ("ab\r\ncd", (4, 5), ["  cd", "  ^"]),
        ("ab\rcd", (3, 4), ["  cd", "  ^"]),
        ("a\n\nb", (2, 2), []),
        ("", (0, 0), []),
    ],
)
def test_carets(text: str, at: tuple[int, int], excerpt: list[str]) -> None:
    assert draw(text, *at) == excerpt


def test_long_lines_are_cut_around_the_place() -> None:
    text = "a" * 500 + "X" + "b" * 500
    line, carets = draw(text, 500, 501)
    assert len(line) < 120 and line.startswith("  ...aaa") and line.endswith("bbb...")
    assert line[carets.index("^")] == "X"
    for at in (0, 10, 990, 1000):
        line, carets = draw(text, at, at + 1)
        assert line[carets.index("^")] == text[at]


@settings(deadline=None)
@given(st.text(alphabet="aé航😀\t\n\r\x00\ud800 e\u0301", max_size=150), st.data())
def test_the_caret_stands_under_its_character(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    error = refuse(text, (at, at + 1), "message")
    lines = text.replace("\r\n", "\r").replace("\n", "\r").split("\r")
    assert 1 <= error.line <= len(lines)
    str(error).encode()
    if error.excerpt:
        line, carets = error.excerpt.splitlines()
        assert set(carets) <= {" ", "^"} and len(lines[error.line - 1]) >= error.column - 1
        before = carets.index("^")
        widths = [0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line]
        assert any(sum(widths[:i]) == before for i in range(len(line) + 1))


def test_words_that_are_near() -> None:
    known = ("dep_delay", "carrier", "Origin")
    assert suggest("dep-delay", known) == "dep_delay"
    assert suggest("DEP_DELAY", known) == "dep_delay"
    assert suggest("carier", known) == "carrier"
    assert suggest("origin", known) == "Origin"
    assert suggest("xyz", known) == ""
    assert suggest("xyz", ()) == ""


def test_quoted_pieces_are_short_and_printable() -> None:
    assert quote("abc") == "abc"
    assert quote("a\nb") == "a<U+000A>b"
    assert len(quote("a" * 1000)) == 40
    assert "\u202e" not in quote("\u202e")


def test_errors_of_property_filters_name_the_entry() -> None:
    error = FilterSyntaxError("found 5, expected a text", path=("properties", "subject"), hint="put it in quotes")
    assert str(error) == "properties: subject: found 5, expected a text\nhint: put it in quotes"
    assert error.line == error.column == 0


def test_errors_travel_between_processes() -> None:
    error = fail("a = 1 and b")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert (copy.line, copy.column, copy.hint, copy.path) == (error.line, error.column, error.hint, error.path)
