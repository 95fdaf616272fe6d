"""Binding of names to columns: each name gets its declared or built-in type.

Kafka's headers are bytes without types, so a property that the stream's file does not declare is a
string. Compared with a number or a boolean, a string is never equal, less or greater, and
arithmetic with it is NULL. The consumer would stay empty and nothing would show why. So this module
refuses such a filter, and its hint is the line that the stream's file lacks. The same holds for a
number beside the ids of the section `properties`: AMQP has numbers for them too, and a header is a
string unless the stream's file gives it another type.

The opposite mistake is a string compared with a property declared as timestamp, which is a number
of milliseconds. It is refused too. Property filters read such a string as a time instead
(properties.py). Other combinations of types are legal and answer as docs/filters.md#three-answers
says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from overlay.errors import FilterSyntaxError

from .families import Family, find_family
from .fields import FIELDS, IDS, SECTIONS
from .nodes import (
    Arithmetic,
    Calculation,
    Column,
    Comparison,
    In,
    Literal,
    Name,
    Node,
    Now,
    Section,
    Sign,
    children,
    walk,
)
from .syntax import quote, refuse, suggest
from .trees import map_children

UNDECLARED = "string"
"""The type of an application property that the stream does not declare."""

_SHOWN = {Family.NUMBER: "number", Family.BOOLEAN: "boolean"}
"""Families that a string is never like, as messages name their values."""


def bind(node: Node, types: Mapping[str, str] | None, text: str) -> Node:
    """Return the tree with a typed Column in place of each Name.

    `types`: declared type by property name; entries such as `p.message_id` override the built-in
    type of a fixed field. If it is None, the tree is returned as it is and the data decides the
    types. `text`: the SQL that the nodes' positions refer to, or "" for a property filter.

    Raises FilterSyntaxError if an application property that is not declared is used like a number
    or compared with a boolean, if one declared as timestamp is compared with a string constant, or
    if message_id or correlation_id is used like a number without a type in `types`.
    """
    if types is None:
        return node
    bound = _bind(node, types)
    for each in walk(bound):
        for column, partner in _find_pairs(each):
            if column.section is Section.APPLICATION:
                _check_property(column, partner, types, text)
            elif column.name in IDS and find_family(partner) is Family.NUMBER and not _find_declared(column, types):
                raise _refuse_id(column, partner, text)
    return bound


def _check_property(column: Column, partner: Node, types: Mapping[str, str], text: str) -> None:
    """Raise FilterSyntaxError if the filter uses an undeclared application property like a number or
    a boolean, or one declared as timestamp like a string. `partner`: the node whose type says what
    the property is used as, from `_find_pairs`.
    """
    if column.name not in types and find_family(partner) in _SHOWN:
        raise _refuse_undeclared(column, partner, types, text)
    if column.type == "timestamp" and isinstance(partner, Literal) and isinstance(partner.value, bytes):
        raise _refuse_text(column, partner.value, text)


def _bind(node: Node, types: Mapping[str, str]) -> Node:
    if isinstance(node, Name):
        return Column(node.section, node.name, _find_type(node, types), at=node.at)
    return map_children(node, lambda child: _bind(child, types))


def _find_type(name: Name, types: Mapping[str, str]) -> str:
    if name.section is Section.APPLICATION:
        return types.get(name.name, UNDECLARED)
    return _find_declared(name, types) or FIELDS[name.section][name.name]


def _find_declared(field: Name | Column, types: Mapping[str, str]) -> str:
    """Return the type that the stream declares for a fixed field; "" if it declares none."""
    spellings = (f"{prefix}.{field.name}" for prefix, section in SECTIONS.items() if section is field.section)
    return next((types[spelling] for spelling in spellings if spelling in types), "")


def _find_pairs(node: Node) -> Iterator[tuple[Column, Node]]:
    """Return pairs of a column that is a direct child of the node, and the node whose type says what the column is
    used as: the other side of a comparison, the operand or an item of an IN list, or the arithmetic itself.
    """
    match node:
        case Comparison(left=left, right=right):
            pairs = [(left, right), (right, left)]
        case In(operand=operand, items=items):
            pairs = [pair for item in items for pair in ((operand, item), (item, operand))]
        case Sign() | Calculation():
            pairs = [(child, node) for child in children(node)]
        case _:
            pairs = []
    return ((column, partner) for column, partner in pairs if isinstance(column, Column))


def _refuse_text(column: Column, value: bytes, text: str) -> FilterSyntaxError:
    # imported late, as in properties.py: filters made in Python rarely need it
    from overlay.units import complete_date, parse_time

    message = f"the stream declares {quote(column.name)} as timestamp, which no text is like"
    try:
        hint = f"write milliseconds since 1970: {parse_time(complete_date(value.decode())) // 1_000_000}"
    except ValueError:
        hint = "write milliseconds since 1970, such as 1357016400000, or UTC() for now"
    return _refuse(column, message, hint, text)


def _refuse_undeclared(column: Column, partner: Node, types: Mapping[str, str], text: str) -> FilterSyntaxError:
    family = find_family(partner)
    shown = _SHOWN[family] if family is not None else "value"
    message = f"the stream does not declare {quote(column.name)}: it is a string, which no {shown} is like"
    near = suggest(column.name, types)
    hint = _write_line(column.name, _suggest_type(partner))
    if near:
        hint = f"did you mean {quote(near)}? If not, {hint}"
    return _refuse(column, message, hint, text)


def _refuse_id(column: Column, partner: Node, text: str) -> FilterSyntaxError:
    message = f"the stream does not give {column.section}.{column.name} a type: it is a string, which no number is like"
    return _refuse(column, message, _write_line(f"p.{column.name}", _guess_type(partner)), text)


def _write_line(name: str, type: str) -> str:
    return f"add to the stream's file, under properties: {_write_key(name)}: {type}"


def _refuse(column: Column, message: str, hint: str, text: str) -> FilterSyntaxError:
    """Return the error for a column; it names a path if `text` is "", as for property filters."""
    if not text:
        name = column.name if column.section is Section.APPLICATION else column.name.replace("_", "-")
        return FilterSyntaxError(message, hint=hint, path=(column.section.value, name))
    return refuse(text, column.at, message, hint)


def _suggest_type(partner: Node) -> str:
    """Return the type for a property that is used like `partner`. Beside a whole number it is double, which reads 200
    and 12.5: to type the property as long would make NULL of each value with a fraction, and nothing would show why.
    Beyond _EXACT only long can tell neighbours apart.
    """
    type = _guess_type(partner)
    is_exact = all(
        abs(each.value) <= _EXACT for each in walk(partner) if isinstance(each, Literal) and isinstance(each.value, int)
    )
    return "double" if type == "long" and is_exact else type


_EXACT = 1 << 53
"""Up to here a double represents every whole number."""


def _guess_type(partner: Node) -> str:
    """Return the type that a node has, or that its parts make likely: the narrowest of numbers."""
    match partner:
        case Column(type=type):
            return type
        case _ if find_family(partner) is Family.BOOLEAN:
            return "boolean"
        case Now():
            return "timestamp"
        case Literal(value=float()) | Calculation(operator=Arithmetic.DIV):
            return "double"
        case Calculation() | Sign() if any(_guess_type(child) == "double" for child in children(partner)):
            return "double"
        case _:
            return "long"


_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _write_key(name: str) -> str:
    """Return a name as a YAML key, in quotes if it needs them."""
    is_plain = _PLAIN_KEY.fullmatch(name) and name.lower() not in _YAML_WORDS
    return name if is_plain else json.dumps(name, ensure_ascii=False)
