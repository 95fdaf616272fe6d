"""The printed form of a filter: its meaning, its fields, and its parts' values for a message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from overlay.config.stream import Property, StreamConfig, place_property
from overlay.field import FieldKind
from overlay.filter import Filter
from overlay.filter.bind import bind
from overlay.filter.describe import describe, describe_name
from overlay.filter.families import Family, find_family
from overlay.filter.message import Message, Value
from overlay.filter.nodes import Column, Literal, Name, Node, Now, Section, walk
from overlay.filter.rows import evaluate, to_truth, trace
from overlay.match.properties import Source, find_sources

ANY = "any"
"""The type of a field if no stream declares it: it depends on each message's value."""


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field that the filter names.

    `source`: where it is read from. `is_declared`: whether the stream declares it; None if no stream is
    given, and for the fields of the sections `header` and `properties`, which are there without a
    declaration.
    """

    name: str
    type: str
    source: str
    is_declared: bool | None


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a filter.

    `means`: the expression in canonical text. `verdict`: `true`, `false` or `unknown` if the simplified filter reads
    neither fields nor the time, else "".
    """

    means: str
    verdict: str
    fields: tuple[FilterField, ...]

    def describe(self) -> dict[str, Any]:
        """Return the meaning as a JSON object."""
        return asdict(self) | {"verdict": self.verdict or None}


@dataclass(frozen=True, slots=True)
class SubExpression:
    """A part of a filter's expression with its value for one message.

    `depth`: 0 for the whole expression. `at`: where it begins and ends in the text of the filter.
    `is_condition`: whether its value is true, false or unknown, and it is no constant.
    """

    text: str
    value: Value
    depth: int
    at: tuple[int, int]
    is_condition: bool
    is_constant: bool

    @property
    def shown_value(self) -> str:
        if self.is_condition:
            return show_answer(to_truth(self.value))
        return "null" if self.value is None else describe(Literal(self.value))

    def describe(self) -> dict[str, Any]:
        """Return the part as a JSON object with `text`, `value`, `depth`, and `at` as a list.

        Bytes are written as text, and those that are not UTF-8 as a binary constant of SQL.
        """
        value = self.value
        if isinstance(value, bytes):
            try:
                value_shown: object = value.decode()
            except UnicodeDecodeError:
                value_shown = describe(Literal(value))
        else:
            value_shown = value
        return {"text": self.text, "value": value_shown, "depth": self.depth, "at": list(self.at)}


def show_answer(answer: bool | None) -> str:
    """Return an answer as `true`, `false` or `unknown`."""
    return "unknown" if answer is None else "true" if answer else "false"


def describe_filter(compiled: Filter, stream: StreamConfig | None) -> Meaning:
    """Return the meaning of a filter. If `stream` is None, the filter's fields have the type ANY."""
    return Meaning(describe(compiled.node), _judge(compiled.bound), _list_fields(compiled, stream))


def _judge(node: Node) -> str:
    """Return `true`, `false` or `unknown` for a filter that reads neither fields nor the time,
    which has the same answer for every message; "" for any other.
    """
    if any(isinstance(each, Name | Column | Now) for each in walk(node)):
        return ""
    return show_answer(to_truth(evaluate(node, {}, 0)))


def bind_names(compiled: Filter, declared: Mapping[str, Property]) -> dict[Name, Column]:
    """Return a typed column for every field that the filter's text names, also in parts that rewriting has removed."""
    names = dict.fromkeys(node for node in walk(compiled.node) if isinstance(node, Name))
    types = {name: str(entry.type) for name, entry in declared.items()}
    columns = {name: bind(name, types, compiled.text) for name in names}
    return {name: column for name, column in columns.items() if isinstance(column, Column)}


def _list_fields(compiled: Filter, stream: StreamConfig | None) -> tuple[FilterField, ...]:
    declared: Mapping[str, Property] = {} if stream is None else stream.properties
    bound = bind_names(compiled, declared)
    sources = find_sources(bound.values(), declared)
    written = {place_property(name) for name in declared}
    return tuple(
        FilterField(
            describe_name(name),
            ANY if stream is None else column.type,
            _show_source(sources[column]),
            None if stream is None or name.section is not Section.APPLICATION else (name.section, name.name) in written,
        )
        for name, column in bound.items()
    )


def _show_source(source: Source) -> str:
    """Return the places to read from in the order they are tried.

    For example `{header:message_id}, else {header:message-id}`.
    """
    places = [str(field) for field in source.fields]
    if source.given is not None:
        places.append(f"{{{source.given.value}}}")
    return ", else ".join(places)


def read_message(compiled: Filter, stream: StreamConfig, message: Message) -> Message:
    """Return a copy of the message in which the fields that the filter names have the values that the stream would
    read from a record, typed as it declares. Other fields keep their values.

    A string that does not parse as its type becomes null, and so does any value for a JSON field that is not of its
    type. A number or boolean that stands for a header keeps its value, although a header in Kafka is always text.
    """
    bound = bind_names(compiled, stream.properties)
    sources = find_sources(bound.values(), stream.properties)
    columns = {(column.section.value, column.name): column for column in bound.values()}

    def read(section: str, name: str, value: object) -> object:
        spelled = name if section == Section.APPLICATION else name.replace("-", "_")
        column = columns.get((section, spelled))
        return value if column is None else _read_value(value, column.type, sources[column])

    return {
        section: {name: read(section, name, value) for name, value in (fields or {}).items()}
        for section, fields in message.items()
    }


def _read_value(value: object, type: str, source: Source) -> object:
    # imports numba, which the rest of this module does not need
    """Return a value as the stream would read it from a record: as `type`, None if it does not parse. A
    value that is not a string is returned as it is, unless the source is a JSON field.
    """
    from overlay.scan.columns import Origin, gather

    is_json = any(field.kind is FieldKind.VALUE for field in source.fields)
    if value is None or not (is_json or isinstance(value, str)):
        return value
    text = json.dumps(value) if is_json else str(value)
    raw = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    origin = Origin.JSON if is_json else Origin.TEXT
    return gather(raw, np.zeros(1, np.int64), np.array([raw.size]), type, origin).array[0].as_py()


def trace_filter(compiled: Filter, message: Message, now: int) -> list[SubExpression]:
    """Return every part of the expression as written, with its value for the message; each part
    comes before its own parts. `now`: ms since 1970.
    """
    return [
        SubExpression(
            step.text,
            step.value,
            step.depth,
            step.at,
            not isinstance(node, Literal) and find_family(node) is Family.BOOLEAN,
            isinstance(node, Literal),
        )
        for node, step in zip(walk(compiled.node), trace(compiled.node, message, now), strict=True)
    ]
