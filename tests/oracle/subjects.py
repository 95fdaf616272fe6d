"""The slow obvious twin of overlay.subject: regular expressions, and trying every subject there is.

Whether one pattern lies within another, and whether two intersect, is asked of all subjects of up to LONGEST tokens
over ALPHABET. That decides it for patterns of fewer tokens than LONGEST over fewer words than ALPHABET: the spare word
stands for all that no pattern names, the spare token for all that `>` may take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from itertools import product
from unicodedata import category

ALPHABET = ("a", "b", "x")
LONGEST = 4
EVERY_SUBJECT = tuple(".".join(tokens) for size in range(1, LONGEST + 1) for tokens in product(ALPHABET, repeat=size))
EVERY_PATTERN = tuple(
    ".".join((*tokens, last))
    for size in range(LONGEST - 1)
    for tokens in product(("a", "b", "*"), repeat=size)
    for last in ("a", "b", "*", ">")
)

_TOKEN = r"[^.]+"
_WILDCARDS = {"*": _TOKEN, ">": rf"{_TOKEN}(?:\.{_TOKEN})*"}


@lru_cache(1 << 16)
def matches(pattern: str, subject: str) -> bool:
    tokens = pattern.split(".")
    text = r"\.".join(_WILDCARDS.get(token, re.escape(token)) for token in tokens)
    return re.fullmatch(text, subject) is not None


def match_all(patterns: Iterable[tuple[str, int]], subject: str) -> tuple[int, ...]:
    return tuple(sorted({known for pattern, known in patterns if matches(pattern, subject)}))


@cache
def subjects_of(pattern: str) -> frozenset[str]:
    return frozenset(subject for subject in EVERY_SUBJECT if matches(pattern, subject))


def is_subset(a: str, b: str) -> bool:
    return subjects_of(a) <= subjects_of(b)


def intersects(a: str, b: str) -> bool:
    return bool(subjects_of(a) & subjects_of(b))


def is_pattern(text: str) -> bool:
    tokens = text.split(".")
    return all(tokens) and ">" not in tokens[:-1] and not set(text) & set(" \t\r\n\f")


def is_subject(text: str) -> bool:
    return is_pattern(text) and "*" not in text.split(".") and ">" not in text.split(".")


def escape(value: bytes) -> str:
    """One character at a time; a byte that begins none is escaped by itself."""
    out = ""
    while value:
        size = next((n for n in (1, 2, 3, 4) if _is_text(value[:n])), 0)
        character = value[:size].decode()
        if size == 0 or character in ".*>%" or character.isspace() or category(character) == "Cc":
            out += "".join(f"%{byte:02X}" for byte in value[: size or 1])
        else:
            out += character
        value = value[size or 1 :]
    return out


def _is_text(value: bytes) -> bool:
    try:
        return len(value.decode()) == 1
    except UnicodeDecodeError:
        return False


def build(template: str, values: Mapping[str, bytes | None]) -> str | None:
    """The subject by a template, given a value for each field as the template writes it; None when it has none."""
    subject = ""
    for part in re.split(r"(\{[^{}]+\})", template):
        if not part.startswith("{"):
            subject += part
            continue
        value = values[part]
        if value is not None and part.startswith("{value:"):
            found = json.loads(value)
            if isinstance(found, str):
                value = found.encode("utf-8", "surrogatepass")
            elif found is None or isinstance(found, dict | list):
                value = None
        if not value:
            return None
        subject += escape(value)
    return subject
