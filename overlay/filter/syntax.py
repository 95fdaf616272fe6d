"""Errors for people: where in the text, what was found, what would do.

Modules that see the text raise `refuse(...)`. The lexer and the tree builder know places but work on pieces; they raise
a `Slip`, which parse.py turns into the error once, with the text at hand.
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
"""Characters of a line that an excerpt shows; a longer line is cut around the place."""
_SHOWN = 40
"""Characters of a piece of text that a message quotes."""


class Slip(Exception):
    """A place in the text that cannot be, and why. Becomes a FilterSyntaxError before it leaves this package."""

    def __init__(self, at: Span, message: str, hint: str = "") -> None:
        self.at, self.message, self.hint = at, message, hint
        super().__init__(message)


def refuse(text: str, at: Span, message: str, hint: str = "") -> FilterSyntaxError:
    """The error for the characters `at` of `text`; a span over several lines is marked on its first."""
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
    """The known word that is most like `word`, without regard to case, hyphens and underscores; "" when none is near."""
    by_key = {_fold(name): name for name in known}
    near = get_close_matches(_fold(word), by_key, n=1, cutoff=0.6)
    return by_key[near[0]] if near else ""


def quote(text: str) -> str:
    """A piece of the text as messages show it: cut when long, control characters visible."""
    cut = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
    return "".join(char if char.isprintable() else f"<U+{ord(char):04X}>" for char in cut)


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")


def _find_line(text: str, at: int) -> tuple[int, int, int]:
    """The number of the line that holds `at`, and where it begins and ends without its line end."""
    line, first = 1, 0
    for found in _LINE_END.finditer(text):
        if found.end() > at:
            return line, first, found.start()
        line, first = line + 1, found.end()
    return line, first, len(text)


def _draw(line: str, at: int, size: int) -> str:
    """The line and carets under at:at+size, indented; nothing for an empty line."""
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
    """Tabs, control characters and lone surrogates would shift the line or could not be written at all."""
    return char if _width(char) != 1 or char.isprintable() else " "


def _width(char: str) -> int:
    """Cells that a terminal gives a character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
