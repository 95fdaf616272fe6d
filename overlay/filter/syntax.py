"""Error messages with the position in the text, what was found, and a hint.

Code that has the text raises `refuse(...)`. The lexer and the tree builder know positions but not
the whole text. They raise a `Slip`, which parse.py turns into the error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

from overlay.errors import FilterSyntaxError

from .nodes import Span

_LINE_END = re.compile(r"\r\n|\r|\n")
_ROOM = 100
"""Characters of a line that an excerpt shows; a longer line is cut around the position."""
_SHOWN = 40
"""Characters of the text that a message quotes at most."""


class Slip(Exception):
    """A mistake at a position of the text. parse.py turns it into a FilterSyntaxError."""

    def __init__(self, at: Span, message: str, hint: str = "") -> None:
        self.at, self.message, self.hint = at, message, hint
        super().__init__(message)


def refuse(text: str, at: Span, message: str, hint: str = "") -> FilterSyntaxError:
    """Return the error for the characters `at` of `text`.

    If the span covers several lines, its first line is marked.
    """
    start, end = at
    line, first, last = _find_line(text, start)
    start = min(start, last)
    return FilterSyntaxError(
        message,
        line=line,
        column=start - first + 1,
        hint=hint,
        excerpt=_draw(text[first:last], start - first, max(min(end, last) - start, 1)),
    )


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the known word most similar to `word`, or "" if none is similar.

    Case, hyphens and underscores do not count.
    """
    by_key = {_fold(name): name for name in known}
    near = get_close_matches(_fold(word), by_key, n=1, cutoff=0.6)
    return by_key[near[0]] if near else ""


def quote(text: str) -> str:
    """Return a piece of the text for a message: cut if long, with control characters visible."""
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return "".join(char if char.isprintable() else f"<U+{ord(char):04X}>" for char in cut)


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def _find_line(text: str, at: int) -> tuple[int, int, int]:
    """Return the number of the line with `at`, and its start and end without the line end."""
    line, first = 1, 0
    for found in _LINE_END.finditer(text):
        if found.end() > at:
            return line, first, found.start()
        line, first = line + 1, found.end()
    return line, first, len(text)


def _draw(line: str, at: int, size: int) -> str:
    """Return two lines, indented: the line, cut around `at` to _ROOM characters, and carets below
    at:at+size. "" for a line without anything but white space.
    """
    if not line.strip():
        return ""
    start = max(0, min(at - _ROOM // 2, len(line) - _ROOM))
    shown = line[start : start + _ROOM]
    head, tail = "..." if start else "", "..." if start + _ROOM < len(line) else ""
    before, marked = shown[: at - start], shown[at - start :][:size]
    blanks = " " * (len(head) + sum(map(_width, before)))
    carets = "^" * max(sum(map(_width, marked)), 1)
    return f"  {head}{''.join(map(_draw_char, shown))}{tail}\n  {blanks}{carets}"


def _draw_char(char: str) -> str:
    """Return the character, or a blank for one that would shift the line or cannot be written."""
    return char if _width(char) != 1 or char.isprintable() else " "


def _width(char: str) -> int:
    """Return the number of terminal cells of a character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
