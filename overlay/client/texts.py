"""Foreign data as text on one line, for terminals and pages, which would obey control characters."""

from __future__ import annotations


def show_content(content: bytes) -> str:
    """Return bytes as text; what is not UTF-8, and control characters, as escapes."""
    return make_printable(content.decode(errors="backslashreplace"))


def make_printable(text: str) -> str:
    """Return a text with control characters, line ends and marks of direction as escapes."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
