"""The text of YAML files, such that document.py reads the same values from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*|(?:[0-9]+(?:h|ms|m|s|us|ns))+", re.ASCII)
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def quote(text: str, *, force: bool = False) -> str:
    """Return a text as a YAML scalar: in double quotes, unless it is a plain word or duration that cannot be misread
    and `force` is not set.
    """
    if not force and _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(escape(letter) for letter in text) + '"'


def escape(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def write_yaml(data: Mapping[str, object]) -> str:
    """Return the text of a YAML file with the entries of `data`: texts, numbers, booleans, None, and lists and
    mappings of these.
    """
    return "".join(f"{line}\n" for line in _write_mapping(data))


def _write_mapping(data: Mapping[str, object]) -> Iterator[str]:
    for name, value in data.items():
        yield from _write_entry(f"{quote(name)}:", value)


def _write_entry(head: str, value: object) -> Iterator[str]:
    """Yield the lines of an entry. `head`: what comes before its value, such as `name:` or `-`."""
    if isinstance(value, Mapping) and value:
        yield head
        yield from (f"  {line}" for line in _write_mapping(value))
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield head
        for item in value:
            yield from (f"  {line}" for line in _write_entry("-", item))
    else:
        yield f"{head} {_write_scalar(value)}"


def _write_scalar(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, Sequence):
        return "[]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)
