"""LIKE: what a pattern means, and the one engine that answers it.

`%` stands for any number of characters, `_` for exactly one; a character is a Unicode code point, line feeds included.
The whole value has to match, and case counts. The character that ESCAPE names makes the one behind it literal, whatever
that is, and stops being a wildcard itself. A value that is no UTF-8 has no characters, so the answer is unknown.

A pattern is the runs between its `%`. The first run is tied to the beginning of the value and the last to its end; each
of the others may be taken at the first place behind the one before it, because a later place would leave less room for
the rest. So nothing is ever tried twice, and a pattern of a hundred `%` costs one pass over the value. Within a run
with `_` the places are followed all at once, as bits of one number (Shift-And), so that no text makes it slow either.

RabbitMQ has two engines that differ in line feeds, in a final line feed and in a limit of steps (facts on SQL filters,
section 6); here there is one, and no limit changes an answer.
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
"""Characters in a row; None is a `_`."""


class PatternError(ValueError):
    """`index`: which character of the pattern, or of the escape string, is wrong."""

    def __init__(self, index: int, message: str, hint: str, *, is_escape: bool = False) -> None:
        self.index, self.message, self.hint, self.is_escape = index, message, hint, is_escape
        super().__init__(message)


class Shape(enum.Enum):
    """What a pattern asks, for evaluators that have a fast way to ask it."""

    EXACT = "exact"
    """The value is `head`."""
    PREFIX = "prefix"
    """It begins with `head`, which may be empty."""
    SUFFIX = "suffix"
    """It ends with `tail`."""
    CONTAINS = "contains"
    """It holds `inner`."""
    PREFIX_SUFFIX = "prefix and suffix"
    """It begins with `head` and ends with `tail`, which do not overlap."""
    GENERAL = "general"
    """Whatever `regex` says."""


@dataclass(frozen=True)
class LikePattern:
    """A pattern that has passed compile().

    `runs`: what stands between the `%`; one run means that there is no `%`. Texts are UTF-8 bytes, and those that a
    shape does not use are empty.
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
        """The same question for RE2, of a value that is UTF-8."""
        return r"(?s)\A" + ".*".join(map(_write_regex, self.runs)) + r"\z"

    @cached_property
    def java_regex(self) -> str:
        """The same question for Java's engine, which tries other places where it fails: a run keeps the first one it finds."""
        first, *rest = map(_write_regex, self.runs)
        last = f".*{rest.pop()}" if rest else ""
        return rf"(?s)\A{first}" + "".join(f"(?>.*?{run})" for run in rest) + rf"{last}\z"

    def matches(self, value: bytes) -> bool | None:
        """Whether the whole value matches; None when it is not UTF-8."""
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
    """Read a pattern; `escape` is one character, or "" for none. Raises PatternError."""
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
    # %% asks no more than %
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
    """Where the run first stands within text[at:end], or -1."""
    if None not in run:
        return text.find("".join(char or "" for char in run), at, end)
    anywhere = sum(1 << i for i, char in enumerate(run) if char is None)
    places = {char: anywhere for char in run if char is not None}
    for i, char in enumerate(run):
        if char is not None:
            places[char] |= 1 << i
    # bit i: the run's first i + 1 characters stand right before here
    standing, whole = 0, 1 << (len(run) - 1)
    for i in range(at, end):
        standing = (standing << 1 | 1) & places.get(text[i], anywhere)
        if standing & whole:
            return i - len(run) + 1
    return -1
