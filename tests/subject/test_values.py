from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.subject import Unaddressed
from overlay.subject.values import read_json, read_timestamp


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'"JFK"', b"JFK"),
        (b'""', b""),
        (b'"a\\"b\\\\c\\/"', b'a"b\\c/'),
        (b'"\\u00fc"', "ü".encode()),
        (b'"a\\ud83d\\ude00b"', "a\U0001f600b".encode()),
        (b'"\\ud83dx"', b"\xed\xa0\xbdx"),
        (b'"\\ud83d\\n\\ude00"', b"\xed\xa0\xbd\n\xed\xb8\x80"),
        (b'"\xff\\t\xfe"', b"\xff\t\xfe"),
        (b"12", b"12"),
        (b"-0.50E+3", b"-0.50E+3"),
        (b"true", b"true"),
        (b"false", b"false"),
        (b"null", None),
        (b'{"a": 1}', Unaddressed.ILLEGAL),
        (b"[1]", Unaddressed.ILLEGAL),
        (b"", Unaddressed.ILLEGAL),
        (b"tru", Unaddressed.ILLEGAL),
        (b"01", Unaddressed.ILLEGAL),
        (b"1-2", Unaddressed.ILLEGAL),
        (b'"', Unaddressed.ILLEGAL),
        (b'"a"b"', Unaddressed.ILLEGAL),
        (b'"a\\"', Unaddressed.ILLEGAL),
        (b'"\\x41"', Unaddressed.ILLEGAL),
        (b'"\\u12"', Unaddressed.ILLEGAL),
        (b'"a" ', Unaddressed.ILLEGAL),
    ],
)
def test_read_json(raw: bytes, value: bytes | Unaddressed | None) -> None:
    assert read_json(raw) == value


@given(st.text(), st.booleans())
def test_strings_are_those_of_json(text: str, ascii_only: bool) -> None:
    assert read_json(json.dumps(text, ensure_ascii=ascii_only).encode()) == text.encode()


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_numbers_and_booleans_keep_their_text(value: float) -> None:
    raw = json.dumps(value).encode()
    assert read_json(raw) == raw


@given(st.text(alphabet='"\\u0aD8bn{}[]1.-e ', max_size=12))
def test_only_what_json_reads_makes_a_value(text: str) -> None:
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    # surrounding blanks are no part of a value as it stands in a document
    legal = isinstance(found, str | int | float) and text == text.strip()
    assert (read_json(text.encode()) is Unaddressed.ILLEGAL) is not legal


def test_a_record_without_timestamp_has_none() -> None:
    assert read_timestamp(b"-1") is None
    assert read_timestamp(b"1700000000000") == b"1700000000000"
