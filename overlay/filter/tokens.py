"""The lexer: from text to the words, symbols and constants of a filter expression.

The longest match wins, as in RabbitMQ's lexer. Blanks are needed only where two tokens would read
as one: `5AND b` is three tokens and `5ANDb` is an error. One case is surprising. A section may
contain hyphens, so `a-p.subject` is one name in an unknown section, while `a - p.subject` and
`5-p.group_sequence` subtract. A table of regular expressions in the order of length does this.
lark's own lexers do not compare lengths across terminals, and would take reserved words for names
wherever the grammar expects no such word.

Common near-misses (`==`, `.5`, `5E2`, a string without its end) are found here too, because the
parser would see only their pieces. error_hints.py has the error messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from . import error_hints
from .fields import FIELDS, OPERATORS, RESERVED, SECTIONS
from .limits import Limits
from .nodes import Span
from .syntax import Slip

# possessive quantifiers where backtracking cannot help, so that a token costs one pass
_TOKEN = re.compile(
    r"""
      (?P<BLANK>     [ \t\f\n\r]++ )
    | (?P<SLIP>      == | => | =< | && | \|\| | /\* | // | \.[0-9]++ )
    | (?P<SECTIONED> [A-Za-z][A-Za-z0-9_-]*+ \. [A-Za-z][A-Za-z0-9_]*+ )
    | (?P<WORD>      [A-Za-z][A-Za-z0-9_]*+ )
    | (?P<FLOAT>     [0-9]++ \. [0-9]++ (?: E [+-]? [0-9]++ )? )
    | (?P<BINARY>    0x (?: [0-9A-F]{2} )++ )
    | (?P<INTEGER>   [0-9]++ )
    | (?P<STRING>    ' (?: [^'] | '' )*+ '  |  " (?: [^"] | "" )*+ " )
    | (?P<BRACKETED> \[ (?: [^][\x00-\x1f\x7f] | \[\[ | \]\] )*+ \] )
    | (?P<COMPARE>   <> | != | <= | >= | [=<>] )
    | (?P<SYMBOL>    [-+*/%(),] )
    """,
    re.VERBOSE,
)
_SYMBOLS = {
    "+": "PLUS",
    "-": "MINUS",
    "*": "STAR",
    "/": "SLASH",
    "%": "PERCENT",
    "(": "LPAR",
    ")": "RPAR",
    ",": "COMMA",
}
_NUMBERS = ("INTEGER", "FLOAT", "BINARY")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class FilterToken(NamedTuple):
    """A token; `type` is a terminal of grammar.lark."""

    type: str
    text: str
    at: Span


def read_tokens(text: str, limits: Limits) -> Iterator[FilterToken]:
    """Yield the tokens of an expression.

    Raises Slip for a text that is empty, too long or no Unicode, then at the first mistake that a
    lexer can see, such as a character that begins no token, an unknown section or field, or more
    tokens than `limits` allows.
    """
    _check_characters(text, limits)
    at = count = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise error_hints.explain_character(text, at)
        at = found.end()
        kind = found.lastgroup or ""
        if kind == "BLANK":
            continue
        count += 1
        if count > limits.tokens:
            message = f"the expression has more than {limits.tokens} words, symbols and constants"
            raise Slip(found.span(), message, "make it shorter")
        yield _classify(kind, text, found.span())


def _classify(kind: str, text: str, at: Span) -> FilterToken:
    piece = text[slice(*at)]
    if kind == "SLIP":
        raise error_hints.explain_symbol(piece, at)
    if kind in _NUMBERS:
        error_hints.check_number(text, at)
    elif kind == "WORD":
        if piece not in OPERATORS and piece.lower() in RESERVED:
            raise error_hints.explain_word(piece, at)
        kind = piece if piece in OPERATORS else "NAME"
    elif kind == "SECTIONED":
        _check_name(text, at)
        kind = "NAME"
    elif kind == "BRACKETED":
        kind = "NAME"
    elif kind == "SYMBOL":
        kind = _SYMBOLS[piece]
    return FilterToken(kind, piece, at)


def _check_name(text: str, at: Span) -> None:
    prefix, _, field = text[slice(*at)].partition(".")
    section = SECTIONS.get(prefix)
    if section is None:
        raise error_hints.explain_section(text, at)
    if section in FIELDS and field not in FIELDS[section]:
        raise error_hints.explain_field(text, at, section)


def _check_characters(text: str, limits: Limits) -> None:
    if len(text) > limits.length:
        at = (limits.length, limits.length + 1)
        raise Slip(at, f"the expression has {len(text)} characters, and may have {limits.length}", "make it shorter")
    half = _SURROGATE.search(text)
    if half is not None:
        raise Slip(half.span(), "half of a surrogate pair, which is no character and cannot be written as UTF-8")
    if not text.strip(" \t\f\n\r"):
        raise Slip(
            (0, 0), "the expression is empty", "write a condition such as dep_delay > 60; leave the filter out for all"
        )
