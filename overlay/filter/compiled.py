"""Compiled filters, the package's public interface.

Only this module reads the clock, and only if the caller of a filter passes no time.
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
    """A compiled filter.

    Two filters are equal if their trees are, as parsed and as bound: blanks and parentheses do not
    count. `bound` alone is equal for more that mean the same, such as `NOT a = 1` and `a <> 1`.
    """

    node: Node
    """The tree as parsed; its fields are Names."""
    bound: Node
    """The tree to evaluate over batches: rewritten, with Columns for fields if types were given."""
    text: str = field(compare=False)
    """The expression as written; the canonical text for a property filter."""
    clock: Callable[[], int] = field(compare=False, repr=False, default=now_ms)
    """Returns ms since 1970, for UTC() if the caller passes no time."""

    @property
    def columns(self) -> tuple[Name | Column, ...]:
        """The distinct fields that evaluate() reads, in the order of the text.

        Empty for a constant.
        """
        return tuple(dict.fromkeys(node for node in walk(self.bound) if isinstance(node, Name | Column)))

    def matches(self, message: Message, *, now: int | None = None) -> bool | None:
        """Return whether one message passes; None if the answer is unknown.

        If the value of the expression is not a boolean, the answer is unknown.

        `message`: `{"header": {...}, "properties": {...}, "application_properties": {...}}`. Sections may be missing.
        Values are int, float, str, bytes, bool, datetime, UUID or None. Their own types count, whatever the stream
        declares. `now`: the value of UTC(), ms since 1970. Never raises because of a message's content.
        """
        return to_truth(evaluate(self.node, message, self.clock() if now is None else now))

    def evaluate(self, batch: pa.RecordBatch, *, now: int | None = None) -> pa.BooleanArray:
        """Return whether each row of a batch passes; null is unknown.

        The batch has a struct column for each of the three sections. A missing section or field counts as NULL,
        `header.priority` as DEFAULT_PRIORITY. `now`: the value of UTC(), ms since 1970. Raises TypeError if a section
        that the filter reads is not a struct.
        """
        # pyarrow is slow to load, and checking a config does not need it
        from . import arrow

        return arrow.evaluate(self.bound, batch, self.clock() if now is None else now)


def compile_sql(
    text: str,
    properties: Mapping[str, object] | None = None,
    *,
    limits: Limits = DEFAULT,
    clock: Callable[[], int] = now_ms,
) -> Filter:
    """Return the filter of an SQL expression.

    `properties` is what a stream's file declares: names to types (`"double"`, `{"type": "double"}`,
    or an object with a `type`). Application properties without an entry are strings. An entry such
    as `p.message_id` changes the type of a fixed field. None leaves types to the data.

    Raises FilterSyntaxError with line, column and hint, and ValueError for an unknown type.
    """
    node = parse(text, limits)
    return Filter(node, rewrite(bind(node, _name_types(properties), text)), text, clock)


def compile_properties(mapping: Mapping[str, object], properties: Mapping[str, object] | None = None) -> Filter:
    """Return the filter of a property filter: `mapping` has by section (`properties`, `application_properties`) the
    values that fields must have (see properties.py). `properties`: the types that the stream's file declares, as in
    `compile_sql`.

    Raises FilterSyntaxError with the path of the entry, the section or the whole that is wrong, and ValueError for an
    unknown type.
    """
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
