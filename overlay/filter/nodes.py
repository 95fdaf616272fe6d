"""The tree of a filter, as small as the language: every other module of this package is a function over these nodes.

Trees are values: two filters that say the same are equal and hash alike, wherever in their texts they say it, so that equal
parts of a hundred consumers are found and evaluated once. `at` remembers the place in the text for messages to people.

Names come in two kinds, so that one which has not been looked up cannot reach an evaluator that needs its type: `Name` is
what the text says, `Column` is what it turned out to be (bind.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

Span = tuple[int, int]
"""From which to which character of the text, the second exclusive."""

NOWHERE: Span = (0, 0)


class Section(enum.StrEnum):
    """The part of a message that a field is in."""

    HEADER = "header"
    PROPERTIES = "properties"
    APPLICATION = "application_properties"


class Compare(enum.Enum):
    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class Arithmetic(enum.Enum):
    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Base of all nodes."""

    at: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant. Strings and binary constants are one type, bytes; see facts/sql_filters section 6."""

    value: bool | int | float | bytes

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and TRUE are equal to Python and different things here; so are 0.0 and -0.0
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, object]:
        return type(self.value), self.value.hex() if isinstance(self.value, float) else self.value


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A field of the message as the text names it."""

    section: Section
    name: str


@dataclass(frozen=True, slots=True)
class Column(Node):
    """A field with its type, one of overlay.scan.columns.TYPES."""

    section: Section
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Now(Node):
    """UTC(): milliseconds since 1970 at the time of the evaluation."""


@dataclass(frozen=True, slots=True)
class Sign(Node):
    """A unary plus (negative=False) or minus."""

    operand: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Calculation(Node):
    operator: Arithmetic
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    operator: Compare
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Like(Node):
    """`pattern` and `escape` as written; like.py gives them their meaning."""

    operand: Node
    pattern: str
    escape: str = ""
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In(Node):
    operand: Node
    items: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    operand: Name | Column
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Affix(Node):
    """A property filter's `&p:` (prefix) or `&s:` (suffix): bytes compared with one end of a byte string."""

    operand: Name | Column
    text: bytes
    is_suffix: bool


@dataclass(frozen=True, slots=True)
class Present(Node):
    """A property filter's null: the application property is there, with whatever value, null included."""

    operand: Name | Column


@dataclass(frozen=True, slots=True)
class Not(Node):
    operand: Node


@dataclass(frozen=True, slots=True)
class And(Node):
    """Two operands or more; `a AND b AND c` is one node."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    operands: tuple[Node, ...]


def children(node: Node) -> Iterator[Node]:
    """The nodes right below, from left to right."""
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)
