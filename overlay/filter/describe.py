"""Canonical text of a tree, with no more parentheses than it needs.

For every tree that parse can make, parse(describe(tree)) is the same tree. Property filters and
rewritten trees can have nodes that SQL cannot express. Their text is for people only: `BEGINS
WITH`, `ENDS WITH` and `IS PRESENT` for property filters, and a sign before negative constants.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from functools import singledispatch

from .fields import RESERVED
from .nodes import (
    Affix,
    And,
    Arithmetic,
    Calculation,
    Column,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Node,
    Not,
    Now,
    Or,
    Present,
    Section,
    Sign,
)


class _Level(enum.IntEnum):
    """How tightly a node binds its operands, a higher level more tightly: the levels of the
    grammar.
    """

    OR = 1
    AND = 2
    NOT = 3
    PREDICATE = 4
    SUM = 5
    PRODUCT = 6
    SIGNED = 7
    PRIMARY = 8


_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


def describe(node: Node) -> str:
    """Return the canonical text of a filter or of a part of one."""
    return _write(node)[1]


def describe_name(node: Name | Column) -> str:
    """Return a field with its section's full name.

    An application property is written without section, in brackets if it is not a plain name.
    """
    if node.section is not Section.APPLICATION:
        return f"{node.section}.{node.name}"
    if _PLAIN_NAME.fullmatch(node.name) and node.name.lower() not in RESERVED:
        return node.name
    return "[" + node.name.replace("[", "[[").replace("]", "]]") + "]"


@singledispatch
def _write(node: Node) -> tuple[_Level, str]:
    raise TypeError(f"no rule for {type(node).__name__}")


def _within(level: _Level, node: Node) -> str:
    """Return the text of `node`, in parentheses if it binds less tightly than `level`."""
    own, text = _write(node)
    return text if own >= level else f"({text})"


@_write.register
def _(node: Literal) -> tuple[_Level, str]:
    match node.value:
        case bool():
            return _Level.PRIMARY, "TRUE" if node.value else "FALSE"
        case bytes():
            return _Level.PRIMARY, _write_bytes(node.value)
        case int():
            text = str(node.value)
        case float():
            text = _write_float(node.value)
    return _Level.SIGNED if text[0] == "-" else _Level.PRIMARY, text


def _write_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    # control characters could act on a terminal: a binary constant is the same value to a filter
    return _quote(text) if text.isprintable() else f"0x{value.hex().upper()}"


def _write_float(value: float) -> str:
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e.upper()}{exponent}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@_write.register(Name)
@_write.register(Column)
def _(node: Name | Column) -> tuple[_Level, str]:
    return _Level.PRIMARY, describe_name(node)


@_write.register
def _(node: Now) -> tuple[_Level, str]:
    return _Level.PRIMARY, "UTC()"


@_write.register
def _(node: Sign) -> tuple[_Level, str]:
    return _Level.SIGNED, ("-" if node.negative else "+") + _within(_Level.PRIMARY, node.operand)


@_write.register
def _(node: Calculation) -> tuple[_Level, str]:
    is_sum = node.operator in (Arithmetic.ADD, Arithmetic.SUB)
    level, right = (_Level.SUM, _Level.PRODUCT) if is_sum else (_Level.PRODUCT, _Level.SIGNED)
    return level, f"{_within(level, node.left)} {node.operator.value} {_within(right, node.right)}"


@_write.register
def _(node: Comparison) -> tuple[_Level, str]:
    left, right = _within(_Level.SUM, node.left), _within(_Level.SUM, node.right)
    return _Level.PREDICATE, f"{left} {node.operator.value} {right}"


@_write.register
def _(node: Like) -> tuple[_Level, str]:
    escape = f" ESCAPE {_quote(node.escape)}" if node.escape else ""
    operand = _within(_Level.SUM, node.operand)
    return _Level.PREDICATE, f"{operand}{_not(node.negated)} LIKE {_quote(node.pattern)}{escape}"


@_write.register
def _(node: In) -> tuple[_Level, str]:
    operand = _within(_Level.SUM, node.operand)
    items = ", ".join(_within(_Level.SUM, item) for item in node.items)
    return _Level.PREDICATE, f"{operand}{_not(node.negated)} IN ({items})"


@_write.register
def _(node: IsNull) -> tuple[_Level, str]:
    return _Level.PREDICATE, f"{describe_name(node.operand)} IS{_not(node.negated)} NULL"


@_write.register
def _(node: Affix) -> tuple[_Level, str]:
    verb = "ENDS" if node.is_suffix else "BEGINS"
    return _Level.PREDICATE, f"{describe_name(node.operand)} {verb} WITH {_write_bytes(node.text)}"


@_write.register
def _(node: Present) -> tuple[_Level, str]:
    return _Level.PREDICATE, f"{describe_name(node.operand)} IS PRESENT"


@_write.register
def _(node: Not) -> tuple[_Level, str]:
    return _Level.NOT, f"NOT {_within(_Level.NOT, node.operand)}"


@_write.register
def _(node: And) -> tuple[_Level, str]:
    return _Level.AND, _join(" AND ", _Level.NOT, node.operands)


@_write.register
def _(node: Or) -> tuple[_Level, str]:
    return _Level.OR, _join(" OR ", _Level.AND, node.operands)


def _join(word: str, level: _Level, nodes: Iterable[Node]) -> str:
    return word.join(_within(level, node) for node in nodes)


def _not(negated: bool) -> str:
    return " NOT" if negated else ""
