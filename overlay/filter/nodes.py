"""The nodes of a filter's tree. Every other module of this package is a function over them.

Nodes are values: filters with the same content are equal and have the same hash, wherever in their
texts the parts are. So equal parts of a hundred consumers are found and evaluated once. `at` is the
position in the text, for error messages; it does not count in comparisons.

Fields have two node types. `Name` is a field as the text names it; `Column` is a field with its
type (bind.py). So a name that was not looked up cannot reach an evaluator that needs its type.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from .section import Section as Section

Span = tuple[int, int]
"""First and past-the-last character of a part of the text."""

NOWHERE: Span = (0, 0)


class Compare(enum.Enum):
    """Comparison operators."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class Arithmetic(enum.Enum):
    """Arithmetic operators."""

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
    """A constant. Strings and binary constants are of one type, bytes (docs/filters.md#values)."""

    value: bool | int | float | bytes

    def __eq__(self, other: object) -> bool:
        # in Python 1 == 1.0 == True and 0.0 == -0.0; here they are different constants
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, object]:
        return type(self.value), self.value.hex() if isinstance(self.value, float) else self.value


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A field of the message as the text names it, without a type."""

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
    """UTC(): ms since 1970 at the time of the evaluation."""


@dataclass(frozen=True, slots=True)
class Sign(Node):
    """A unary plus (negative=False) or minus."""

    operand: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Calculation(Node):
    """Arithmetic on two operands."""

    operator: Arithmetic
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """A comparison of two operands."""

    operator: Compare
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Like(Node):
    """A LIKE condition with `pattern` and `escape` as written; like.py interprets them."""

    operand: Node
    pattern: str
    escape: str = ""
    negated: bool = False


@dataclass(frozen=True, slots=True)
class In(Node):
    """`operand IN (items)`, or NOT IN if `negated`."""

    operand: Node
    items: tuple[Node, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    """`operand IS NULL`, or IS NOT NULL if `negated`."""

    operand: Name | Column
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Affix(Node):
    """A property filter's `&p:` (prefix) or `&s:` (suffix): tests one end of a byte string."""

    operand: Name | Column
    text: bytes
    is_suffix: bool


@dataclass(frozen=True, slots=True)
class Present(Node):
    """A property filter's null: tests whether the application property exists, with any value."""

    operand: Name | Column


@dataclass(frozen=True, slots=True)
class Not(Node):
    """The negation of a condition."""

    operand: Node


@dataclass(frozen=True, slots=True)
class And(Node):
    """A conjunction of two or more operands; `a AND b AND c` is one node."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    """A disjunction of two or more operands; `a OR b OR c` is one node."""

    operands: tuple[Node, ...]


def children(node: Node) -> Iterator[Node]:
    """Yield the direct children of a node, from left to right."""
    for each in fields(node):
        value = getattr(node, each.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all its descendants, depth first."""
    yield node
    for child in children(node):
        yield from walk(child)
