from __future__ import annotations

import sys
from unicodedata import category
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.subject import escape_token, is_subject
from tests.oracle import subjects as oracle
from tests.subject.strategies import values


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"JFK", "JFK"),
        (b"", ""),
        (b"a.b", "a%2Eb"),
        (b"*", "%2A"),
        (b">", "%3E"),
        (b"50%", "50%25"),
        (b"%2E", "%252E"),
        (b"a b\tc", "a%20b%09c"),
        (b"\x00\x7f", "%00%7F"),
        ("Zürich 大阪".encode(), "Zürich%20大阪"),
        ("a\u0085\u00a0\u2003\u3000".encode(), "a%C2%85%C2%A0%E2%80%83%E3%80%80"),
        (b"\xff\xfea", "%FF%FEa"),
        (b"\xc3", "%C3"),
        (b"\xe2\x80.", "%E2%80%2E"),
        (b"\xed\xa0\x80", "%ED%A0%80"),
        (b"$JS", "$JS"),
        (b"{x}", "{x}"),
    ],
)
def test_escape(value: bytes, token: str) -> None:
    assert escape_token(value) == token
    assert oracle.escape(value) == token
    assert unquote_to_bytes(token) == value


@given(values)
def test_every_value_comes_back(value: bytes) -> None:
    assert unquote_to_bytes(escape_token(value)) == value


@given(values)
def test_escape_as_one_character_at_a_time(value: bytes) -> None:
    assert escape_token(value) == oracle.escape(value)


@given(values.filter(bool))
def test_a_token_is_a_legal_subject_of_one_token(value: bytes) -> None:
    token = escape_token(value)
    assert is_subject(token) and "." not in token


@given(st.tuples(values, values))
def test_different_values_have_different_tokens(pair: tuple[bytes, bytes]) -> None:
    assert (escape_token(pair[0]) == escape_token(pair[1])) is (pair[0] == pair[1])


def test_white_space_and_control_characters_are_those_of_unicode() -> None:
    surrogates = range(0xD800, 0xE000)
    text = [chr(code) for code in range(sys.maxunicode + 1) if code not in surrogates]
    escaped = {character for character in text if escape_token(character.encode()) != character}
    assert escaped == {*".*>%"} | {c for c in text if c.isspace() or category(c) == "Cc"}
