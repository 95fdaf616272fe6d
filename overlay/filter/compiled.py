"""Filters that are ready for messages and batches: what the package's users hold in their hands.

Only here does anybody ask for the time, and only when the caller of a filter gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.clock import now_ms

from .bind import bind
from .describe import describe
from .families import FAMILIES
from .limits import DEFAULT, Limits
from .message import Message
from .nodes import Column, Name, Node, walk
from .parse import parse
from .properties import parse_properties
from .rewrite import rewrite
from .rows import evaluate, to_truth

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that is ready for messages. Two are equal when they say the same of the same types, however written."""

    node: Node
    """The tree as it was read; fields are Names."""
    bound: Node
    """The tree that batches are evaluated by: rewritten, and its fields are Columns where types were given."""
    text: str = field(compare=False)
    """The expression as it was written; of a property filter its canonical text."""
    clock: Callable[[], int] = field(compare=False, repr=False, default=now_ms)
    """Milliseconds since 1970, for UTC() where the caller gives no time."""

    @property
    def columns(self) -> tuple[Name | Column, ...]:
        """The distinct fields that evaluate() reads, in the order of the text; empty for a constant."""
        return tuple(dict.fromkeys(node for node in walk(self.bound) if isinstance(node, Name | Column)))

    def matches(self, message: Message, *, now: int | None = None) -> bool | None:
        """The answer for one message; None is unknown, and an expression that is no condition is unknown for all.

        `message`: `{"header": {...}, "properties": {...}, "application_properties": {...}}`, each may be missing, of
        int, float, str, bytes, bool, datetime, UUID and None. Types are those of the values, whatever was declared.
        `now` is UTC() in milliseconds since 1970. Never raises for what a message holds.
        """
        return to_truth(evaluate(self.node, message, self.clock() if now is None else now))

    def evaluate(self, batch: pa.RecordBatch, *, now: int | None = None) -> pa.BooleanArray:
        """One answer for each row of a batch with the struct columns of the three sections; null is unknown.

        A section or field that the batch does not have is NULL.
        """
        # pyarrow takes long to load, and configs are checked without it
        from . import arrow

        return arrow.evaluate(self.bound, batch, self.clock() if now is None else now)


def compile_sql(
    text: str,
    properties: Mapping[str, object] | None = None,
    *,
    limits: Limits = DEFAULT,
    clock: Callable[[], int] = now_ms,
) -> Filter:
    """The filter of an SQL expression. Raises FilterSyntaxError with line, column and hint.

    `properties` is what a stream's file declares: names to types (`"double"`, `{"type": "double"}`, or something with a
    `type`); application properties that are not in it are strings, and `p.message_id` gives a fixed field another type.
    None leaves types to the data. Raises ValueError for an unknown type.
    """
    node = parse(text, limits)
    return Filter(node, rewrite(bind(node, _name_types(properties), text)), text, clock)


def compile_properties(mapping: Mapping[str, object], properties: Mapping[str, object] | None = None) -> Filter:
    """The filter of a property filter's mapping (properties.py). Raises FilterSyntaxError with the entry's path."""
    types = _name_types(properties)
    node = parse_properties(mapping, [name for name, type in (types or {}).items() if type == "timestamp"])
    return Filter(node, rewrite(bind(node, types, "")), describe(node))


def _name_types(properties: Mapping[str, object] | None) -> dict[str, str] | None:
    return None if properties is None else {name: _name_type(name, entry) for name, entry in properties.items()}


def _name_type(name: str, entry: object) -> str:
    found = entry.get("type") if isinstance(entry, Mapping) else getattr(entry, "type", entry)
    if not isinstance(found, str) or found not in FAMILIES:
        raise ValueError(f"property {name!r}: found type {found!r}, known are {', '.join(FAMILIES)}")
    return str(found)
