"""Type families: what is known of a node's type without a message."""

from __future__ import annotations

import enum

from .nodes import (
    Affix,
    And,
    Calculation,
    Column,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Now,
    Or,
    Present,
    Sign,
)


class Family(enum.Enum):
    """Types whose values can equal each other or have an order."""

    NUMBER = enum.auto()
    TEXT = enum.auto()
    BOOLEAN = enum.auto()


FAMILIES = {
    "string": Family.TEXT,
    "binary": Family.TEXT,
    "long": Family.NUMBER,
    "double": Family.NUMBER,
    "timestamp": Family.NUMBER,
    "boolean": Family.BOOLEAN,
}
"""The family of each column type (overlay.scan.columns.TYPES)."""

_CONDITIONS = (Affix, And, Comparison, In, IsNull, Like, Not, Or, Present)


def find_family(node: Node) -> Family | None:
    """Return the family of all non-NULL values of a node; None if it depends on the message."""
    match node:
        case Literal(value=value):
            return (
                Family.BOOLEAN
                if isinstance(value, bool)
                else Family.TEXT
                if isinstance(value, bytes)
                else Family.NUMBER
            )
        case Column(type=type):
            return FAMILIES[type]
        case Now() | Sign() | Calculation():
            return Family.NUMBER
        case _:
            return Family.BOOLEAN if isinstance(node, _CONDITIONS) else None
