"""Messages for an unexpected token: what it is, what could follow, and the likely cause."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise

from .nodes import Span
from .syntax import Slip, quote
from .tokens import FilterToken

END = FilterToken("$END", "", (0, 0))
"""The token for the end of the text."""

_VALUE = "a field, a number, a string in quotes, TRUE, FALSE, UTC() or a parenthesis"
_WORDS = {
    "STRING": "a string in quotes",
    "LPAR": "(",
    "NULL": "NULL",
    "COMMA": "a comma",
    "RPAR": ")",
    "$END": "the end",
}
_OPERATORS = {"AND", "OR", "COMPARE", "PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "LIKE", "IN", "IS", "ESCAPE"}
_FOREIGN = {
    "BETWEEN": "write x >= 1 AND x <= 2",
    "ILIKE": "LIKE is case-sensitive, and there is no ILIKE",
    "RLIKE": "there are no regular expressions; LIKE has the wildcards % and _",
    "REGEXP": "there are no regular expressions; LIKE has the wildcards % and _",
    "MATCHES": "there are no regular expressions; LIKE has the wildcards % and _",
    "SIMILAR": "there are no regular expressions; LIKE has the wildcards % and _",
    "CONTAINS": "write x LIKE '%abc%'",
    "STARTSWITH": "write x LIKE 'abc%'",
    "ENDSWITH": "write x LIKE '%abc'",
    "XOR": "write (a AND NOT b) OR (b AND NOT a)",
    "DIV": "write /, which always divides as real numbers",
    "MOD": "write %",
    "EQ": "write =",
    "EQUALS": "write =",
    "NE": "write <>",
    "GT": "write >",
    "GE": "write >=",
    "LT": "write <",
    "LE": "write <=",
    "COLLATE": "strings compare by their bytes, and there are no collations",
    "ANY": "write x IN (1, 2)",
    "ALL": "write each comparison, with AND between them",
}


def explain(before: Sequence[FilterToken], found: FilterToken, accepted: Set[str]) -> Slip:
    """Return the error for the token `found` (or END) after the tokens `before`.

    `accepted`: the terminals that the parser would have accepted there.
    """
    end = before[-1].at[1] if before else 0
    at: Span = (end, end + 1) if found.type == END.type else found.at
    shown = "the end of the expression" if found.type == END.type else quote(found.text)
    return Slip(at, f"found {shown}, expected {_word(before, accepted)}", _hint(before, found, accepted))


def _word(before: Sequence[FilterToken], accepted: Set[str]) -> str:
    if "NAME" in accepted:
        return f"a value: {_VALUE}"
    last = before[-1].type if before else ""
    if last == "IS":
        return "NULL or NOT NULL"
    if last == "NOT" and {"LIKE", "IN"} <= accepted:
        return "LIKE or IN"
    words = ["an operator"] if accepted & _OPERATORS else []
    words += [word for terminal, word in _WORDS.items() if terminal in accepted]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _hint(before: Sequence[FilterToken], found: FilterToken, accepted: Set[str]) -> str:
    last = before[-1] if before else END
    return (
        _hint_dialect(before, found)
        or _hint_null(before, found)
        or (_hint_value(last, found) if "NAME" in accepted else _hint_operator(before, found, accepted))
    )


def _hint_dialect(before: Sequence[FilterToken], found: FilterToken) -> str:
    """Return the hint for an expression that begins with SELECT, WHERE or FILTER, wherever it fails;
    for a word of another SQL dialect that is `found` or the token before it; or for a name before a
    parenthesis, as of a function. Otherwise "".

    All these words are legal names here, so the parser fails after some of them, not at the first.
    """
    if before and before[0].text.upper() in ("SELECT", "WHERE", "FILTER"):
        return f"write the condition alone, without {before[0].text}"
    for token in (found, *before[-1:]):
        if token.type == "NAME" and token.text.upper() in _FOREIGN:
            return f"there is no {token.text.upper()}: {_FOREIGN[token.text.upper()]}"
    if found.type == "LPAR" and before and before[-1].type == "NAME":
        return f"there is no function {quote(before[-1].text)}; the only one is UTC()"
    return ""


def _hint_null(before: Sequence[FilterToken], found: FilterToken) -> str:
    last = before[-1] if before else END
    if last.type == "IS" and found.type in ("TRUE", "FALSE"):
        return f"write = {found.text}"
    if found.type == "IS":
        return "IS NULL asks about a bare field: no parentheses, no arithmetic, no constants"
    if found.type != "NULL":
        return ""
    if last.type == "COMPARE":
        name = before[-2].text if len(before) > 1 and before[-2].type == "NAME" else "x"
        return f"nothing equals NULL; write {quote(name)} IS {'NULL' if last.text == '=' else 'NOT NULL'}"
    return "NULL is no value; x IS NULL asks whether a field is missing"


def _hint_value(last: FilterToken, found: FilterToken) -> str:
    """Return the hint for a position where a value is expected, or ""."""
    if found.type in ("PLUS", "MINUS"):
        return "one sign only; -(-5) and 6 - -5 are legal"
    if found.type == "COMPARE" and last.type == "COMPARE":
        return "an operator is one symbol without blanks: = <> < > <= >="
    if found.type == "RPAR" and last.type in ("COMMA", "LPAR"):
        return "a list has at least one item and no comma at its end; the only function without arguments is UTC()"
    if found.type == "NOT":
        return "put the condition in parentheses: (NOT x)"
    return ""


def _hint_operator(before: Sequence[FilterToken], found: FilterToken, accepted: Set[str]) -> str:
    """Return the hint for a position after a value or an incomplete operator, or ""."""
    last = before[-1] if before else END
    touching = found.at[0] == last.at[1]
    if last.type in ("LIKE", "ESCAPE"):
        return "a pattern is a constant: a string in quotes, without parentheses"
    if last.type == "UTC":
        return "write UTC()"
    if last.type == "IN":
        return "a list stands in parentheses: x IN ('a', 'b')"
    if last.type == "STRING" and touching and found.type in ("NAME", "INTEGER", "STRING"):
        return "a quote inside a string is written twice: 'O''Hare'"
    if found.type == "COMPARE":
        return "comparisons do not chain; write a < b AND b < c, or (a = b) = TRUE"
    if found.type == "RPAR":
        return "a ) without its ("
    if found.type == "COMMA":
        return "lists stand behind IN, in parentheses"
    return _hint_neighbours(before, found, accepted)


def _hint_neighbours(before: Sequence[FilterToken], found: FilterToken, accepted: Set[str]) -> str:
    last = before[-1] if before else END
    if found.type == END.type:
        return "a ( without its )" if "RPAR" in accepted else ""
    if any(one.type == other.type == "MINUS" and one.at[1] == other.at[0] for one, other in pairwise(before)):
        return "there are no comments: -- is minus and a sign"
    if last.type == "STRING" and found.type == "STRING":
        return "strings cannot be joined; name both in IN ('a', 'b'), or write one"
    if last.type == "NAME" and found.type == "NAME":
        return (
            f"an operator is missing; a name with a blank stands in brackets: [{quote(last.text)} {quote(found.text)}]"
        )
    return ""
