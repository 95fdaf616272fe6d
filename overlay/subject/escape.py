"""Percent-escapes: how any bytes become one token of a subject, and come back.

Escaped, as `%` and two upper-case hex digits for each UTF-8 byte, are `.` `*` `>` `%`, white space and control
characters; everything else, other scripts included, stays readable. Bytes that are not UTF-8 are escaped one by one,
so every value has a token of its own and `unescape_token` gives the value back.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

__all__ = ["escape_token", "unescape_token"]

# written out, so that tokens never depend on the Unicode tables of the Python at hand; the last range is what
# `surrogateescape` makes of bytes that are not UTF-8
_ESCAPED = re.compile("[.*>%\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\udc80-\udcff]")

PLAIN = bytes(code for code in range(0x21, 0x7F) if code not in b".*>%")
"""The bytes that stand for themselves wherever they are; others need a look at their neighbours or an escape."""


def escape_token(value: bytes) -> str:
    """The text that stands for `value` in a token. Empty only for an empty value, which makes no token."""
    return _ESCAPED.sub(_percent, value.decode("utf-8", "surrogateescape"))


def unescape_token(token: str) -> bytes:
    """The bytes that `escape_token` was given. A `%` without two hex digits behind it stands for itself."""
    return unquote_to_bytes(token)


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))
