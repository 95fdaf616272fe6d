"""Error messages and hints for common mistakes in filter expressions.

The mistakes come from other SQL dialects, programming languages and word processors. Each function
gets a position that is already known to be wrong. Nothing here decides what is legal, with one
exception: check_number keeps `5E2` and `0xab` from being read as a number followed by a name.
"""

from __future__ import annotations

import re

from .fields import CLOSED_HEADER_FIELDS, CLOSED_SECTIONS, FIELDS, OPERATORS, RESERVED, SECTIONS
from .nodes import Section, Span
from .syntax import Slip, quote, suggest

_SYMBOL_HINTS = {
    "==": "equality is written =",
    "=>": "write >=",
    "=<": "write <=",
    "&&": "write AND",
    "||": "write OR; strings cannot be joined",
    "/*": "there are no comments",
    "//": "there are no comments; division is one /",
}
_CHARACTER_HINTS = {
    "!": "write NOT, or <> for unequal",
    "&": "write AND; there are no bit operations",
    "|": "write OR; there are no bit operations",
    "^": "there are no powers and no bit operations",
    "~": "there are no bit operations and no regular expressions; LIKE has the wildcards % and _",
    ";": "leave the semicolon out",
    "`": "strings stand in ' or \", names with unusual characters in brackets: [my name]",
    "{": "name the property alone, without braces",
    "}": "name the property alone, without braces",
    "?": "there are no parameters: write the value",
    ":": "there are no parameters: write the value",
    "≠": "write <>",
    "≤": "write <=",
    "≥": "write >=",
    "\u2212": "this is not the minus of the keyboard: write -",
    "\u2013": "this is a dash: write -",
    "\u00d7": "write *",
    "\u00f7": "write /",
}
_SMART_QUOTES = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb\u00b4\u2032\u2033"
_FUNCTION_HINTS = {
    "EXISTS": "x IS NOT NULL asks whether a field is there",
    "LOWER": "comparisons are case-sensitive; list the spellings: x IN ('abc', 'ABC')",
    "UPPER": "comparisons are case-sensitive; list the spellings: x IN ('abc', 'ABC')",
    "LEFT": "x LIKE 'abc%' asks how a string begins",
    "RIGHT": "x LIKE '%abc' asks how a string ends",
    "SUBSTRING": "x LIKE '__abc%' asks what stands at a place, one _ for each character before it",
    "DATE": "times are whole milliseconds since 1970: p.creation_time > 1700000000000, or UTC() for now",
    "INF": "there are no infinite numbers",
    "NAN": "what is no number is NULL: x IS NULL",
}
_AFTER_NUMBER = re.compile(r"[A-Za-z0-9_.]++(?:(?<=[eE])[+-][0-9]++)?")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*+")
_UNCLOSED = re.compile(r"\[(?:[^][\x00-\x1f\x7f]|\[\[|\]\])*+")
_LETTERS = re.compile(r"\w*+")
_NUMBER_HINT = "numbers are written 5, 5.0 or 5.0E2; a name that begins with a digit stands in brackets: [1st]"


def explain_symbol(piece: str, at: Span) -> Slip:
    """Return the error for a symbol that only other languages have, or for a number that begins with
    a point. `piece`: it, at `at` in the text.
    """
    if piece[0] == ".":
        return Slip(at, f"{piece} is no number", f"write 0{piece}")
    return Slip(at, f"{piece} is no operator", _SYMBOL_HINTS[piece])


def explain_word(word: str, at: Span) -> Slip:
    """Return the error for a reserved word that is not in upper case, or for one that is not implemented."""
    upper = word.upper()
    named = f"a property of that name is written [{word}]"
    if upper in OPERATORS:
        right = "UTC()" if upper == "UTC" else upper
        return Slip(at, f"{word} is a reserved word", f"operators are upper case: write {right}; {named}")
    return Slip(at, f"{upper} is reserved and not implemented", f"{_FUNCTION_HINTS[upper]}; {named}")


def check_number(text: str, at: Span) -> None:
    """Raise Slip if letters, digits, underscores or a point directly follow the number at `at`.

    A reserved word, such as an operator, may follow directly.
    """
    start, end = at
    tail = _AFTER_NUMBER.match(text, end)
    word = _WORD.match(text, end)
    if tail is None or (word is not None and word[0].lower() in RESERVED):
        return
    whole = text[start : tail.end()]
    raise Slip((start, tail.end()), f"{quote(whole)} is no number", _hint_number(whole))


def _hint_number(text: str) -> str:
    if text[:2] in ("0x", "0X"):
        return "binary constants are 0x and pairs of the digits 0-9 A-F: 0x4142"
    if re.fullmatch(r"[0-9]+\.", text):
        return f"write {text}0"
    whole = re.fullmatch(r"([0-9]+)(\.[0-9]+)?\.?[eE]([+-]?[0-9]+)", text)
    if whole is not None:
        return f"write {whole[1]}{whole[2] or '.0'}E{whole[3]}"
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[LlFfDd]", text):
        return f"numbers have no suffix: write {text[:-1]}"
    if re.fullmatch(r"[0-9_]+(\.[0-9_]+)?", text):
        return f"write {text.replace('_', '')}"
    return _NUMBER_HINT


def explain_character(text: str, at: int) -> Slip:
    """Return the error for a character that begins no token."""
    char, span = text[at], (at, at + 1)
    # quotes and brackets that are not closed, and points without a name
    if char in "'\"":
        return _explain_quote(text, at)
    if char == "[":
        return _explain_bracket(text, at)
    if char == "]":
        return Slip(span, "a ] without its [", "inside a name in brackets it is written twice: ]]")
    if char == ".":
        return Slip(span, "a point that belongs to no name and no number", _hint_point(text, at))
    # characters that a keyboard or word processor produces by mistake
    if char in _SMART_QUOTES:
        return Slip(span, f"{char} is not the quote of the keyboard", "strings stand in ' or \"")
    if char.isspace() or not char.isprintable():
        hint = "blanks are space, tab, form feed, carriage return and line feed; write a space"
        return Slip(span, f"the character U+{ord(char):04X} has no meaning outside of strings", hint)
    # letters that no name can have, and symbols of other languages
    if char == "_" or char.isalpha():
        return _explain_letter(text, at)
    hint = _CHARACTER_HINTS.get(char, "names with unusual characters stand in brackets: [my$name]")
    return Slip(span, f"{char} has no meaning outside of strings", hint)


def _explain_quote(text: str, at: int) -> Slip:
    quoted, other = text[at], "\"'"[text[at] == '"']
    hint = f"close it with {quoted}; inside a string that quote is written twice: {quoted}{quoted}"
    if re.match(rf"[^'\"]*{other}(?:[\s),]|$)", text[at + 1 :]):
        hint = f"it begins with {quoted} and has to end with {quoted}, not with {other}"
    return Slip((at, at + 1), "a string without its end", hint)


def _explain_bracket(text: str, at: int) -> Slip:
    found = _UNCLOSED.match(text, at)
    stop = found.end() if found else len(text)
    if stop == len(text):
        return Slip((at, at + 1), "a [ without its ]", "names in brackets end with ]; inside them ] is written ]]")
    if text[stop] == "[":
        return Slip((stop, stop + 1), "a [ inside a name in brackets", "there it is written twice: [[")
    return Slip((stop, stop + 1), f"the control character U+{ord(text[stop]):04X} in a name", "no name may hold one")


def _hint_point(text: str, at: int) -> str:
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if after == "[":
        return "a name in brackets stands alone; it is always an application property"
    if before.isspace() or after.isspace():
        return "no blanks around the point of a name: p.subject"
    return "a name has one point, behind its section; a property with points in its own name is written [a.b]"


def _explain_letter(text: str, at: int) -> Slip:
    first = at
    while first and _LETTERS.fullmatch(text, first - 1, at):
        first -= 1
    rest = _LETTERS.match(text, at)
    whole = text[first : rest.end() if rest else at + 1]
    hint = f"other names than letters A-Z a-z, digits and _, a letter first, stand in brackets: [{quote(whole)}]"
    return Slip((at, at + 1), f"{text[at]} cannot stand in a name here", hint)


def explain_section(text: str, at: Span) -> Slip:
    """Return the error for `section.field` with an unknown or closed section."""
    whole = text[slice(*at)]
    section, _, field = whole.partition(".")
    end = at[0] + len(section)
    folded = section.lower().replace("-", "_")
    before, minus, last = section.rpartition("-")
    named = f"a property with a point in its own name is written [{whole}]"
    if folded in CLOSED_SECTIONS:
        hint = "filters see header, properties and application_properties"
        return Slip((at[0], end), f"the section {section} is closed to filters", hint)
    if minus and folded not in SECTIONS and last in SECTIONS:
        hint = f"a section may hold hyphens; put blanks around the minus: {before} - {last}.{field}"
    elif near := _find_section(folded):
        hint = f"did you mean {near}.{field}? Otherwise {named}"
    else:
        hint = f"sections are header (h), properties (p) and application_properties (a); {named}"
    return Slip((at[0], end), f"unknown section {quote(section)}", hint)


def _find_section(word: str) -> str:
    begun = (name for name in SECTIONS if len(word) > 2 and name.startswith(word))
    return suggest(word, SECTIONS) or next(begun, "")


def explain_field(text: str, at: Span, section: Section) -> Slip:
    """Return the error for `section.field` with a field that the section does not have."""
    prefix, _, field = text[slice(*at)].partition(".")
    start = at[0] + len(prefix) + 1
    known = FIELDS[section]
    if field in CLOSED_HEADER_FIELDS and section is Section.HEADER:
        return Slip((start, at[1]), f"the field {field} of the header is closed to filters", "only priority is open")
    hyphenated = re.match(r"[a-z_]+(?:-[a-z]+)+", text[start:])
    if hyphenated and hyphenated[0].replace("-", "_") in known:
        hint = f"fields are written with underscores: {prefix}.{hyphenated[0].replace('-', '_')}"
    elif near := suggest(field, known):
        hint = f"did you mean {prefix}.{near}?"
    else:
        hint = f"{section} has {', '.join(known)}; others are application properties: {field}"
    return Slip((start, at[1]), f"unknown field {quote(field)} of the section {section}", hint)
