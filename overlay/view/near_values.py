"""What a text in a filter may have been meant to be that no sampled record has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlay.client.texts import make_printable
from overlay.config.stream import StreamConfig
from overlay.config.suggestion import rank_similar, suggest
from overlay.config.values import ValueFormat
from overlay.field import FieldKind
from overlay.filter import Filter
from overlay.filter.describe import describe
from overlay.filter.nodes import Column, Compare, Comparison, In, Literal, Node, Section, walk
from overlay.inspect.column import SampledField, find_columns
from overlay.inspect.sample import SampledRecord
from overlay.match.properties import find_sources

MOST_VALUES = 10
"""A property with more sampled values than this is no kind or status: other values of it are likely."""
_NEAR = 0.75
"""How similar a value is that may have been meant, 0 to 1."""
_LONGEST = 40
"""Characters of a value that a line shows."""


def list_unlike(stream: StreamConfig, filter: Filter, records: Sequence[SampledRecord]) -> Iterator[str]:
    """Yield a line for each comparison (=, <> or IN) of a string property with texts that is true of no sampled record.

    If the property has at most MOST_VALUES sampled values, the line has them, most similar first. Of a property with
    more, it is told only if a value differs in case alone. Fields of values that are not JSON are not looked at.
    """
    placed = [(node, column, texts) for node in walk(filter.bound) for column, texts in _read_texts(node)]
    sources = find_sources([column for _, column, _ in placed], stream.properties)
    sampled = {found.field: found for found in find_columns(records) if found.present}
    lines: list[str] = []
    for node, column, texts in placed:
        source = sources[column]
        found = sampled.get(source.fields[0]) if len(source.fields) == 1 and source.given is None else None
        is_json = stream.values.format is ValueFormat.JSON
        if found is not None and (is_json or found.field.kind is not FieldKind.VALUE):
            lines += _judge(node, column, texts, found)
    yield from dict.fromkeys(lines)


def _read_texts(node: Node) -> Iterator[tuple[Column, list[str]]]:
    """Yield the column and the texts of a node that compares a string property with texts alone."""
    match node:
        case Comparison(operator=Compare.EQ | Compare.NE, left=left, right=right):
            column, items = (left, [right]) if isinstance(left, Column) else (right, [left])
        case In(operand=operand, items=of, negated=False):
            column, items = operand, list(of)
        case _:
            return
    if not isinstance(column, Column) or column.section is not Section.APPLICATION or column.type != "string":
        return
    values = [item.value for item in items if isinstance(item, Literal)]
    texts = [value.decode("utf-8", "backslashreplace") for value in values if isinstance(value, bytes)]
    if all(texts) and len(texts) == len(items):  # a sample does not tell an empty text from none
        yield column, texts


def _judge(node: Node, column: Column, texts: Sequence[str], found: SampledField) -> Iterator[str]:
    """Yield the line for a comparison of the column with these texts, if no sampled value makes it true."""
    head = f"no sampled record has {describe(node)}"
    if isinstance(node, Comparison) and node.operator is Compare.NE:
        if found.counts.keys() == set(texts):
            yield f"{head}: all {found.present} with {column.name} have {_show(texts[0])}"
        return
    if found.counts.keys() & set(texts):
        return
    by_case = {value.casefold(): value for value in found.counts}
    slips = [by_case[text.casefold()] for text in texts if text.casefold() in by_case]
    if found.distinct <= MOST_VALUES:
        values = rank_similar(texts[0], found.counts)
        is_near = slips or suggest(texts[0], values, _NEAR)
        near = f". Did you mean {_show((slips or values)[0])}?" if is_near else ""
        yield f"{head}; the values of {column.name} are {', '.join(map(_show, values))}{near}"
    elif slips:
        yield f"{head}. Did you mean {_show(slips[0])}?"


def _show(text: str) -> str:
    shown = make_printable(text[:_LONGEST]) + ("..." if len(text) > _LONGEST else "")
    return "'" + shown.replace("'", "''") + "'"
