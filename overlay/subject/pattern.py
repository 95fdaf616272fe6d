"""Subjects and the patterns that select them, by JetStream's rules.

A subject is a line of tokens separated by dots: `flights.JFK.LAX`. It is case-sensitive, may have
any UTF-8, and has no empty token, no space, tab, CR, LF or FF, and no half of a surrogate pair. A
pattern is a subject in which a whole token may be a wildcard: `*` matches exactly one token, `>`
one or more and only at the end. Inside a longer token both are plain text, so `a*` and `a>b` are
literals.

Two relations between patterns are easily confused. One pattern may be a subset of the other
(is_subset): every subject of the first is a subject of the second. Or some subject may match both
(intersects). JetStream refuses a consumer's filters only in the first case: `a.*.c` beside `a.b.*`
is allowed although `a.b.c` matches both, because a message that matches several filters is still
delivered once. Both tests compare token by token without a search: tokens are compared in place,
and `>` matches the remaining tokens, if there are any.

The rules are in docs/jetstream.md#names; tests/subject/test_against_nats.py compares them with a
real server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from overlay.errors import SubjectError

__all__ = [
    "Pattern",
    "check_subject",
    "find_plain_wildcard",
    "intersects",
    "is_subject",
    "is_subset",
    "overlapping",
]

ONE = "*"
REST = ">"

_BLANKS = {" ": "a space", "\t": "a tab", "\r": "a carriage return", "\n": "a line feed", "\f": "a form feed"}
_LONGEST = 40
"""Characters of a token that an error repeats."""
# a lone surrogate has no UTF-8
_BAD = re.compile(r"[ \t\r\n\f\ud800-\udfff]")
# possessive, so that a long text without a match costs one pass
_PLAIN = re.compile(r"[^ \t\r\n\f.*>\ud800-\udfff]++(?:\.[^ \t\r\n\f.*>\ud800-\udfff]++)*+")


@dataclass(frozen=True, slots=True, order=True)
class Pattern:
    """A legal pattern; a subject without wildcards is one too. Raises SubjectError if the text is
    not legal.
    """

    text: str
    tokens: tuple[str, ...] = field(init=False, compare=False, repr=False)
    is_literal: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        tokens = _split(self.text, "pattern")
        if REST in tokens[:-1]:
            column = _column(tokens, tokens.index(REST))
            raise _error("pattern", self.text, column, "'>' may only be the last token; '*' stands for one token")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "is_literal", ONE not in tokens and REST not in tokens)

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Return the pattern of a text. Raises SubjectError with the column and the reason."""
        return cls(text)

    def matches(self, subject: str) -> bool:
        """Return whether this pattern matches `subject`, which has to be legal and without
        wildcards; that is not checked.
        """
        if self.is_literal:
            return subject == self.text
        tokens = subject.split(".")
        for at, wanted in enumerate(self.tokens):
            if at >= len(tokens):
                return False
            if wanted == REST:
                return True
            if wanted not in (ONE, tokens[at]):
                return False
        return len(tokens) == len(self.tokens)

    def __str__(self) -> str:
        return self.text


def is_subset(a: Pattern, b: Pattern) -> bool:
    """Return whether every subject that `a` matches is matched by `b`. A pattern is a subset of
    itself; `flights` is not a subset of `flights.>`.
    """
    for at, outer in enumerate(b.tokens):
        if at >= len(a.tokens):
            return False
        inner = a.tokens[at]
        if outer == REST:
            return True
        if inner == REST or (outer not in (ONE, inner)):
            return False
    return len(a.tokens) == len(b.tokens)


def intersects(a: Pattern, b: Pattern) -> bool:
    """Return whether there can be a literal subject that both patterns match."""
    for one, other in zip(a.tokens, b.tokens, strict=False):
        if REST in (one, other):
            return True
        if one != other and ONE not in (one, other):
            return False
    return len(a.tokens) == len(b.tokens)


def find_plain_wildcard(pattern: Pattern) -> str:
    """Return the first token that has `*` or `>` beside other characters, where these are plain
    text and no wildcard; "" if there is none. For `orders.paid*` it is `paid*`.
    """
    return next((token for token in pattern.tokens if len(token) > 1 and (ONE in token or REST in token)), "")


def overlapping(patterns: Sequence[Pattern]) -> tuple[Pattern, Pattern] | None:
    """Return the first pair that JetStream refuses together (10138), as (inner, outer); None if all
    are allowed.

    A pair is refused if the inner pattern equals the outer one or is a subset of it. Patterns that
    only intersect are allowed.
    """
    for a, b in combinations(patterns, 2):
        # Most patterns of a long list are literals, and of two literals one is a subset only if
        # they are equal.
        if a.is_literal and b.is_literal:
            if a.text == b.text:
                return a, b
        elif is_subset(a, b):
            return a, b
        elif is_subset(b, a):
            return b, a
    return None


def is_subject(text: str) -> bool:
    """Return whether `text` is a legal subject without wildcards: at least one token, none of them
    empty, `*` or `>`, no space, tab, CR, LF or FF, and no half of a surrogate pair.
    """
    if _PLAIN.fullmatch(text):
        return True
    tokens = text.split(".")
    return not ("" in tokens or ONE in tokens or REST in tokens or _BAD.search(text))


def check_subject(text: str, *, what: str = "subject", shown: str = "") -> None:
    """Raise SubjectError with the column and the reason unless `text` is a legal literal subject.

    The message calls the text `what`, and quotes `shown` instead of it if given.
    """
    tokens = _split(text, what, shown)
    for at, token in enumerate(tokens):
        if token in (ONE, REST):
            reason = f"{token!r} is a wildcard, which only patterns may hold; name the token"
            raise _error(what, shown or text, _column(tokens, at), reason)


def _advise(text: str, bad: str) -> str:
    """Return what to write in place of a blank (overlay/subject/escape.py has the rule), or of half of a surrogate pair."""
    if bad not in _BLANKS:
        return "take it out"
    token = next(each for each in text.split(".") if bad in each)
    written = f"%{ord(bad):02X}"
    example = f" ({token.replace(bad, written)})" if len(token) <= _LONGEST and token.isprintable() else ""
    return f"subject templates write it {written}{example}"


def _split(text: str, what: str, shown: str = "") -> tuple[str, ...]:
    shown = shown or text
    if not text:
        raise SubjectError(f"{what} '' is empty: write at least one token")
    bad = _BAD.search(text)
    if bad is not None:
        found = _BLANKS.get(bad[0], "half of a surrogate pair")
        raise _error(what, shown, bad.start() + 1, f"{found}, which no subject may hold; {_advise(text, bad[0])}")
    tokens = tuple(text.split("."))
    if "" in tokens:
        reason = "empty token; a dot stands only between two tokens"
        raise _error(what, shown, _column(tokens, tokens.index("")), reason)
    return tokens


def _column(tokens: Sequence[str], at: int) -> int:
    return sum(len(token) + 1 for token in tokens[:at]) + 1


def _error(what: str, shown: str, column: int, reason: str) -> SubjectError:
    return SubjectError(f"column {column} of {what} {shown!r}: {reason}")
