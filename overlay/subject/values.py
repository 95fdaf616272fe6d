"""Raw values of fields: what the scan hands over, and the bytes that a token is made of.

Headers and keys are taken as they are. A VALUE field comes as the JSON text of the value as it stands in the document,
a TIMESTAMP as decimal milliseconds. Answers are the bytes of the token before any percent-escape, None when there is
nothing to make a token of, or ILLEGAL.
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
    """Why a record has no subject in its stream. Such records are counted by reason and left out, never an error."""

    MISSING = "missing"  # a value is absent, null or empty
    ILLEGAL = "illegal"  # the values make no legal subject
    OUTSIDE = "outside"  # a legal subject, but none of the stream's


_JSON = re.compile(
    rb'"([^"\\]*+)"'  # 1: a string as it is
    rb"|(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false)"  # 2: what keeps its text
    rb"|(null)"  # 3
    rb'|"((?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+)"'  # 4: a string with escapes
)
# neighbours together, because two \u escapes may be the halves of one character
_ESCAPES = re.compile(rb'(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))++')

NO_TIMESTAMP = b"-1"  # what Kafka's record format says for none


def read_json(raw: bytes) -> bytes | Literal[Unaddressed.ILLEGAL] | None:
    """Strings are unescaped, numbers and booleans keep their text, null is None. Objects and arrays are ILLEGAL."""
    found = _JSON.fullmatch(raw)
    if found is None:
        return Unaddressed.ILLEGAL
    group = found.lastindex
    if group == 1 or group == 2:
        return found[group]
    return _ESCAPES.sub(_unescape, found[4]) if group == 4 else None


def read_timestamp(raw: bytes) -> bytes | None:
    """Decimal milliseconds as they are; None for a record that carries no timestamp."""
    return None if raw == NO_TIMESTAMP else raw


Reader = Callable[[bytes], bytes | Literal[Unaddressed.ILLEGAL] | None]

READERS: dict[FieldKind, Reader] = {
    FieldKind.VALUE: read_json,
    FieldKind.TIMESTAMP: read_timestamp,
}
"""What has to be done to the raw bytes of a kind; kinds that are not here are taken as they are."""


def _unescape(found: re.Match[bytes]) -> bytes:
    text: str = json.loads(b'"' + found[0] + b'"')
    # JSON may spell half of a surrogate pair; its bytes are not UTF-8 and end up percent-escaped
    return text.encode("utf-8", "surrogatepass")
