"""Property filters: a mapping of fields to the values they must have, parsed to a tree.

    {"properties": {"subject": "&p:flights."}, "application_properties": {"carrier": "AA", "tail": None}}

These are the property filters of the AMQP filter expressions (docs/filters.md#property-filters). A
message passes if every entry matches. Values compare as in SQL: numbers by value, strings by their
bytes, booleans only with booleans. An absent field matches nothing.

- `&p:abc` matches strings that begin with abc, `&s:abc` strings that end with abc, and `&&x`
  means `&x` itself. No other string may begin with `&`. The modifiers apply to strings only.
  user-id, content-type and content-encoding are not strings in AMQP, so their values are literal.
- None matches if the property exists, with any value. It is for application properties only.
- The fields of `properties` have types and are spelled as in AMQP, with hyphens.

An AMQP broker silently drops an invalid filter. Here it is refused with the key of the entry. A
filter that can never match is refused too: a list, a mapping, NaN. YAML and JSON have fewer types
than AMQP. So a string is accepted for a symbol, a binary or a uuid, and a whole number for a ulong
or a uint. A time is RFC 3339 or whole milliseconds since 1970. A property that the stream declares
as timestamp is a time as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from uuid import UUID

from overlay.errors import FilterSyntaxError

from .fields import FIELDS
from .message import to_value
from .nodes import Affix, And, Compare, Comparison, Literal, Name, Node, Present, Section
from .syntax import quote, suggest

ENTRIES = 16
"""The largest number of entries in one section."""

_SECTIONS = {"properties": Section.PROPERTIES, "application_properties": Section.APPLICATION}
_UINT, _ULONG = 1 << 32, 1 << 64
_LONGEST = 1 << 12_000
"""The limit of whole numbers, some 3,600 digits: Python writes no number beyond 4,300 digits."""


def parse_properties(mapping: object, times: Collection[str] = ()) -> Node:
    """Return the tree of a property filter: a Comparison, Affix or Present, or an And of them.

    `times`: application properties of type timestamp; a string compared with one of them is read as
    a time. Raises FilterSyntaxError.
    """
    if not isinstance(mapping, Mapping):
        raise _refuse((), f"found {_show(mapping)}, expected a mapping", "write properties: {subject: '&p:flights.'}")
    nodes = [node for key, entries in mapping.items() for node in _parse_section(key, entries, times)]
    if not nodes:
        raise _refuse((), "the filter is empty", "name a field and its value, or leave the filter out for all messages")
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes))


def _parse_section(key: object, entries: object, times: Collection[str]) -> Iterator[Node]:
    section = _SECTIONS.get(key) if isinstance(key, str) else None
    if section is None:
        near = suggest(key, _SECTIONS) if isinstance(key, str) else ""
        hint = f"did you mean {near}?" if near else "sections are properties and application_properties"
        raise _refuse((str(key),), "property filters have no such section", hint)
    path = (section.value,)
    if not isinstance(entries, Mapping):
        raise _refuse(path, f"found {_show(entries)}, expected a mapping of fields to values")
    if not entries:
        raise _refuse(path, "the section is empty", "name a field and its value, or leave the section out")
    if len(entries) > ENTRIES:
        raise _refuse(
            path, f"{len(entries)} entries, and {ENTRIES} are the most", "write the rest as an SQL filter instead"
        )
    for name, value in entries.items():
        if not isinstance(name, str):
            raise _refuse((*path, str(name)), f"found {_show(name)} as a name", "names are texts: put it in quotes")
        yield _parse_entry(section, name, value, times)


def _parse_entry(section: Section, name: str, value: object, times: Collection[str]) -> Node:
    path = (section.value, name)
    if section is Section.APPLICATION:
        _check_scalar(path, value)
        operand = Name(section, name)
        if name in times and isinstance(value, str):
            value = _read_time(path, value)
        return Present(operand) if value is None else _compare(path, operand, value, is_string=True)
    check = _FIELDS.get(name)
    if check is None:
        near = suggest(name, _FIELDS)
        hint = (
            f"did you mean {near}?" if near else f"fields are {', '.join(_FIELDS)}; others are application properties"
        )
        raise _refuse(path, "the section properties has no such field", hint)
    if value is None:
        hint = "null asks whether an application property is there; in SQL: properties.x IS NOT NULL"
        raise _refuse(path, "found null, which the section properties does not take", hint)
    operand = Name(section, name.replace("-", "_"))
    return _compare(path, operand, check(path, value), is_string=check not in (_check_binary, _check_symbol))


def _compare(path: tuple[str, ...], operand: Name, value: object, *, is_string: bool) -> Node:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refuse(path, "half of a surrogate pair, which is no character") from None
        if is_string and value.startswith("&"):
            return _read_modifier(path, operand, value)
    known = to_value(value)
    assert known is not None  # the checks leave no value that has no meaning
    return Comparison(Compare.EQ, operand, Literal(known))


def _read_modifier(path: tuple[str, ...], operand: Name, text: str) -> Node:
    match text[:3]:
        case "&p:":
            return Affix(operand, text[3:].encode(), is_suffix=False)
        case "&s:":
            return Affix(operand, text[3:].encode(), is_suffix=True)
    if text.startswith("&&"):
        return Comparison(Compare.EQ, operand, Literal(text[1:].encode()))
    hint = f"&p: is a prefix, &s: a suffix; a text that begins with & itself is written &{quote(text)}"
    raise _refuse(path, f"found {_show(text)}, which begins with an unknown modifier", hint)


def _check_scalar(path: tuple[str, ...], value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _refuse(path, f"found {_show(value)}, which equals nothing", "write a number")
    if isinstance(value, int) and abs(value) >= _LONGEST:
        raise _refuse(path, "found a number of thousands of digits", "write it as a real number: 1.0e30")
    if value is not None and to_value(value) is None:
        hint = "one of several values needs an SQL filter: x IN ('a', 'b')"
        raise _refuse(path, f"found {_show(value)}, expected a text, a number, true, false, a time or null", hint)


def _check_string(path: tuple[str, ...], value: object) -> object:
    if not isinstance(value, str):
        raise _refuse(path, f"found {_show(value)}, expected a text", "put it in quotes" if _is_number(value) else "")
    return value


def _check_symbol(path: tuple[str, ...], value: object) -> object:
    return _check_string(path, value)


def _check_binary(path: tuple[str, ...], value: object) -> object:
    if not isinstance(value, str | bytes):
        raise _refuse(path, f"found {_show(value)}, expected bytes or a text")
    return value


def _check_id(path: tuple[str, ...], value: object) -> object:
    if not isinstance(value, str | bytes | UUID) and not _is_whole(value, _ULONG):
        raise _refuse(
            path, f"found {_show(value)}, expected a text, bytes, a uuid or a whole number from 0 to 2^64 - 1"
        )
    return value


def _check_uint(path: tuple[str, ...], value: object) -> object:
    if not _is_whole(value, _UINT):
        raise _refuse(path, f"found {_show(value)}, expected a whole number from 0 to 2^32 - 1")
    return value


def _check_time(path: tuple[str, ...], value: object) -> object:
    if isinstance(value, str):
        return _read_time(path, value)
    if isinstance(value, bool) or not isinstance(to_value(value), int):
        hint = "write RFC 3339 with its offset, like 2013-01-01T05:00:00Z, or milliseconds since 1970"
        raise _refuse(path, f"found {_show(value)}, expected a time", hint)
    return value


def _read_time(path: tuple[str, ...], text: str) -> int:
    """Return the time that `text` spells (RFC 3339 with its offset) as ms since 1970, rounded down.
    Raises FilterSyntaxError with the entry's `path`.
    """
    # imported late: only times need it, and a config that is read from files has loaded it already
    from overlay.units import parse_time

    try:
        return parse_time(text) // 1_000_000
    except ValueError as error:
        hint = f"{error}. Milliseconds since 1970 will do as well"
        raise _refuse(path, f"found {_show(text)}, expected a time", hint) from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object, end: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


_Check = Callable[[tuple[str, ...], object], object]
"""A function that raises FilterSyntaxError, or returns the value to compare with."""

_SPECIAL: dict[str, _Check] = {
    "message_id": _check_id,
    "correlation_id": _check_id,
    "user_id": _check_binary,
    "content_type": _check_symbol,
    "content_encoding": _check_symbol,
    "absolute_expiry_time": _check_time,
    "creation_time": _check_time,
    "group_sequence": _check_uint,
}
_FIELDS = {name.replace("_", "-"): _SPECIAL.get(name, _check_string) for name in FIELDS[Section.PROPERTIES]}


def _show(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return "a mapping"
        case list() | tuple() | set():
            return "a list"
        case bytes():
            return "bytes"
        case _:
            # Python refuses to write the repr of a huge number
            return quote(repr(value)) if not isinstance(value, int) or abs(value) < 1 << 64 else "a number beyond 2^64"


def _refuse(path: tuple[str, ...], message: str, hint: str = "") -> FilterSyntaxError:
    return FilterSyntaxError(message, hint=hint, path=path)
