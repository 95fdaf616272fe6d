"""Percent-escapes that turn any bytes into one token of a subject.

Escaped, as `%` and two upper-case hex digits per UTF-8 byte, are `.` `*` `>` `%`, white space and
control characters. Everything else, other scripts included, stays readable. Bytes that are not
UTF-8 are escaped one by one, so every value has a token of its own. Percent-decoding returns the
value.
"""

from __future__ import annotations

import re

# Written out, so that tokens do not depend on the Unicode tables of the Python version. The last
# range is what `surrogateescape` makes of bytes that are not UTF-8.
_ESCAPED = re.compile("[.*>%\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\udc80-\udcff]")

PLAIN = bytes(code for code in range(0x21, 0x7F) if code not in b".*>%")
"""Bytes that are never escaped, whatever is next to them. Others need decoding or an escape."""


def escape_token(value: bytes) -> str:
    """Return one token of a subject for `value`: its text in UTF-8, with `.` `*` `>` `%`, white
    space, control characters and bytes that are not UTF-8 as `%XX`. Percent-decoding gives `value`
    back. An empty value gives "", which is no token.
    """
    return _ESCAPED.sub(_percent, value.decode("utf-8", "surrogateescape"))


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))
