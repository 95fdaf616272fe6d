"""Foreign data as text on one line, for terminals and pages, which would obey control characters."""

from __future__ import annotations


def show_content(content: bytes) -> str:
    """Return bytes as text on one line: decoded as UTF-8, with bytes that are not UTF-8, and
    characters that are not printable (`str.isprintable`), as backslash escapes.
    """
    return make_printable(content.decode(errors="backslashreplace"))


def make_printable(text: str) -> str:
    """Return a text with the characters that are not printable (`str.isprintable`: control
    characters, line ends, marks of direction, spaces other than the ASCII space) as backslash
    escapes, such as `\\n`; the same text if it has none.
    """
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
