"""Raw values of fields, as the scan finds them, and the bytes of a token made from them.

Headers and keys are used as they are. A VALUE field is the JSON text of the value as it is in the
document, a TIMESTAMP decimal ms since 1970. The result is the bytes of the token before any
percent-escape, None if there is nothing to make a token of, or ILLEGAL.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Literal

from overlay.field import FieldKind

__all__ = ["READERS", "Reader", "Unaddressed", "read_json", "read_timestamp"]


class Unaddressed(enum.Enum):
    """Why a record has no subject in its stream. Such records are counted by reason and left out;
    this is never an error.
    """

    MISSING = "missing"  # a value is absent, null or empty
    ILLEGAL = "illegal"  # the values make no legal subject
    OUTSIDE = "outside"  # a legal subject, but not one of the stream's


_JSON = re.compile(
    rb'"([^"\\]*+)"'  # 1: a string as it is
    rb"|(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false)"  # 2: kept as text
    rb"|(null)"  # 3
    rb'|"((?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+)"'  # 4: a string with escapes
)
# neighbours together, because two \u escapes may be the halves of one character
_ESCAPES = re.compile(rb'(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))++')

NO_TIMESTAMP = b"-1"  # Kafka's timestamp of a record without one


def read_json(raw: bytes) -> bytes | Literal[Unaddressed.ILLEGAL] | None:
    """Return the bytes of a token, before percent-escapes, for `raw`, one JSON value without white
    space around it: strings unescaped, numbers and booleans as they are written, None for null.

    Returns ILLEGAL for objects, arrays, and text that is no JSON value.
    """
    found = _JSON.fullmatch(raw)
    if found is None:
        return Unaddressed.ILLEGAL
    group = found.lastindex
    if group == 1 or group == 2:
        return found[group]
    return _ESCAPES.sub(_unescape, found[4]) if group == 4 else None


def read_timestamp(raw: bytes) -> bytes | None:
    """Return `raw`, decimal ms since 1970, unchanged; None if it is `-1`, Kafka's timestamp of a
    record without one.
    """
    return None if raw == NO_TIMESTAMP else raw


Reader = Callable[[bytes], bytes | Literal[Unaddressed.ILLEGAL] | None]

READERS: dict[FieldKind, Reader] = {
    FieldKind.VALUE: read_json,
    FieldKind.TIMESTAMP: read_timestamp,
}
"""How to read the raw bytes of a kind of field. Kinds that are not listed are used as they are."""


def _unescape(found: re.Match[bytes]) -> bytes:
    text: str = json.loads(b'"' + found[0] + b'"')
    # JSON may have half of a surrogate pair; its bytes are not UTF-8 and will be percent-escaped.
    return text.encode("utf-8", "surrogatepass")
