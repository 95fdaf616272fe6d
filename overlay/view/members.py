"""Members of a JSON object as the text spells them, so that numbers keep their digits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import NoReturn

_BLANKS = re.compile(r"[ \t\r\n]*")


def split_members(text: str) -> dict[str, str]:
    """Return the members of a JSON object with their values as they are spelled. Of members of one
    name the last counts. Raises ValueError if the text is not such an object.
    """
    return {name: spelled for name, spelled, _ in read_members(text)}


def read_members(text: str) -> Iterator[tuple[str, str, object]]:
    """Yield each member of a JSON object: its name, its value as it is spelled, and its value.

    Raises JSONDecodeError, a ValueError with line and column, where the text is no JSON object, and
    another ValueError for NaN and Infinity.
    """
    decoder = JSONDecoder(parse_constant=_refuse)
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise JSONDecodeError("this is no object", text, at)
    at = _skip(text, at + 1)
    is_first = True
    while text[at : at + 1] != "}":
        if not is_first:
            at = _skip(text, _expect(text, at, ","))
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting the name of a member in double quotes", text, at)
        name, at = decoder.raw_decode(text, at)
        start = _skip(text, _expect(text, _skip(text, at), ":"))
        value, at = decoder.raw_decode(text, start)
        yield name, text[start:at], value
        at, is_first = _skip(text, at), False
    if (end := _skip(text, at + 1)) < len(text):
        raise JSONDecodeError("Extra data", text, end)


def _skip(text: str, at: int) -> int:
    """Return the position after the blanks that begin at `at`."""
    blanks = _BLANKS.match(text, at)
    return at if blanks is None else blanks.end()


def _expect(text: str, at: int, sign: str) -> int:
    """Return the position after a sign at `at`. Raises JSONDecodeError if it is not there."""
    if text[at : at + 1] != sign:
        raise JSONDecodeError(f"Expecting {sign!r}", text, at)
    return at + 1


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON, though some programs write it")
