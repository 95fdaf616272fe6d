"""LIKE patterns: their meaning, and the engine that matches them.

`%` stands for any number of characters, `_` for exactly one. A character is a Unicode code point,
line feeds included. The whole value has to match, and case counts. The character that ESCAPE names
makes the next character literal, whichever it is. It stops being a wildcard itself. A value that is
not UTF-8 has no characters, so the answer is unknown.

A pattern is split into the runs between its `%`. The first run must match at the beginning of the
value, the last one at its end. Each run between them may be matched at the first position after the
previous run: a later position would only leave less room for the rest. So no position is tried
twice, and a pattern with a hundred `%` costs one pass over the value. For a run with `_`, all
possible positions are followed at once as the bits of one number (Shift-And). So no text makes it
slow either.

RabbitMQ has two engines. They differ in line feeds, in a final line feed and in a limit of steps
(docs/filters.md#other-than-in-rabbitmq-on-purpose). Here there is one engine, and no limit changes
an answer.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from .syntax import quote

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_META = re.compile(r"([^A-Za-z0-9_\x80-\U0010ffff])")

Run = tuple[str | None, ...]
"""Consecutive characters of a pattern; None is a `_`."""


class PatternError(ValueError):
    """A LIKE pattern or escape string with a mistake.

    `index`: position of the wrong character in the pattern, or in the escape string if `is_escape`.
    """

    def __init__(self, index: int, message: str, hint: str, *, is_escape: bool = False) -> None:
        self.index, self.message, self.hint, self.is_escape = index, message, hint, is_escape
        super().__init__(message)


class Shape(enum.Enum):
    """Kinds of patterns, for evaluators that have a fast kernel for some of them."""

    EXACT = "exact"
    """The value equals `head`."""
    PREFIX = "prefix"
    """The value begins with `head`, which may be empty."""
    SUFFIX = "suffix"
    """The value ends with `tail`."""
    CONTAINS = "contains"
    """The value contains `inner`."""
    PREFIX_SUFFIX = "prefix and suffix"
    """The value begins with `head` and ends with `tail`, without an overlap."""
    GENERAL = "general"
    """The value matches `regex`."""


@dataclass(frozen=True)
class LikePattern:
    """A valid LIKE pattern; made by compile().

    `runs`: the parts between the `%`; one run means that there is no `%`. `head`, `inner` and
    `tail` are UTF-8 bytes, empty if the shape does not use them.
    """

    runs: tuple[Run, ...]

    @cached_property
    def shape(self) -> Shape:
        first, last = self.runs[0], self.runs[-1]
        if any(None in run for run in self.runs):
            return Shape.GENERAL
        if len(self.runs) == 1:
            return Shape.EXACT
        if len(self.runs) == 2:
            return Shape.PREFIX if not last else Shape.PREFIX_SUFFIX if first else Shape.SUFFIX
        return Shape.CONTAINS if len(self.runs) == 3 and not first and not last else Shape.GENERAL

    @cached_property
    def head(self) -> bytes:
        return _join(self.runs[0]) if self.shape in (Shape.EXACT, Shape.PREFIX, Shape.PREFIX_SUFFIX) else b""

    @cached_property
    def inner(self) -> bytes:
        return _join(self.runs[1]) if self.shape is Shape.CONTAINS else b""

    @cached_property
    def tail(self) -> bytes:
        return _join(self.runs[-1]) if self.shape in (Shape.SUFFIX, Shape.PREFIX_SUFFIX) else b""

    @cached_property
    def regex(self) -> str:
        """The pattern as an RE2 expression, for values that are UTF-8."""
        return r"(?s)\A" + ".*".join(map(_write_regex, self.runs)) + r"\z"

    @cached_property
    def java_regex(self) -> str:
        """The pattern as a regular expression of Java, for values that are UTF-8.

        Java's engine backtracks, so atomic groups keep each run at the first position where it
        matches.
        """
        first, *rest = map(_write_regex, self.runs)
        last = f".*{rest.pop()}" if rest else ""
        return rf"(?s)\A{first}" + "".join(f"(?>.*?{run})" for run in rest) + rf"{last}\z"

    def matches(self, value: bytes) -> bool | None:
        """Return whether the whole value matches; None if it is not UTF-8."""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return None
        first, *inner, last = self.runs if len(self.runs) > 1 else (self.runs[0], ())
        if len(self.runs) == 1:
            return len(text) == len(first) and _stands_at(first, text, 0)
        end = len(text) - len(last)
        if end < len(first) or not _stands_at(first, text, 0) or not _stands_at(last, text, end):
            return False
        at = len(first)
        for run in inner:
            found = _find(run, text, at, end)
            if found < 0:
                return False
            at = found + len(run)
        return True


@lru_cache(maxsize=1024)
def compile(pattern: str, escape: str = "") -> LikePattern:
    """Return the compiled pattern. `escape`: one character, or "" for none. Raises PatternError if
    it is longer, if the pattern has a control character, or if nothing follows an escape character
    for it to make literal.
    """
    if len(escape) > 1:
        raise PatternError(1, "ESCAPE takes exactly one character", "write one: ESCAPE '!'", is_escape=True)
    _check_controls(pattern)
    runs: list[list[str | None]] = [[]]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == escape:
            at += 1
            if at == len(pattern):
                hint = f"to mean {quote(char)} itself, write it twice"
                raise PatternError(at - 1, f"the pattern ends with its escape character {quote(char)}", hint)
            runs[-1].append(pattern[at])
        elif char == "%":
            runs.append([])
        else:
            runs[-1].append(None if char == "_" else char)
        at += 1
    # %% means the same as %
    inner = [tuple(run) for run in runs[1:-1] if run]
    return LikePattern((tuple(runs[0]), *inner, tuple(runs[-1])) if len(runs) > 1 else (tuple(runs[0]),))


def _check_controls(pattern: str) -> None:
    found = _CONTROL.search(pattern)
    if found is not None:
        message = f"the control character U+{ord(found[0]):04X} in a pattern"
        raise PatternError(found.start(), message, "patterns hold none; _ and % match it, and = takes it in a string")


def _join(run: Run) -> bytes:
    return "".join(char or "" for char in run).encode()


def _write_regex(run: Run) -> str:
    return "".join("." if char is None else _META.sub(r"\\\1", char) for char in run)


def _stands_at(run: Run, text: str, at: int) -> bool:
    return all(char is None or char == text[at + i] for i, char in enumerate(run))


def _find(run: Run, text: str, at: int, end: int) -> int:
    """Return the first position of the run within text[at:end], or -1."""
    if None not in run:
        return text.find("".join(char or "" for char in run), at, end)
    anywhere = sum(1 << i for i, char in enumerate(run) if char is None)
    places = {char: anywhere for char in run if char is not None}
    for i, char in enumerate(run):
        if char is not None:
            places[char] |= 1 << i
    # bit i: the run's first i + 1 characters match the text that ends here
    standing, whole = 0, 1 << (len(run) - 1)
    for i in range(at, end):
        standing = (standing << 1 | 1) & places.get(text[i], anywhere)
        if standing & whole:
            return i - len(run) + 1
    return -1
