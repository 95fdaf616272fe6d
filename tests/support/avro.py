"""Strategies for schemas of Avro and for values of them, encoded by fastavro."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from hypothesis import strategies as st

Schema = Any
Draw = Callable[[st.SearchStrategy[Any]], Any]

SIMPLE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: tuple[Mapping[str, Any], ...] = (
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    {"type": "long", "logicalType": "no-such-type"},
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A record with fields of any types, which may contain itself and name types that it has defined before."""
    return _Drawing(draw).draw_record(3, {"namespace": "shop"} if draw(st.booleans()) else {})


class _Drawing:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.count = 0
        self.known: list[str] = []
        """The names of the types that are complete."""
        self.open: list[str] = []
        """The names of the records around the next type."""

    def name(self) -> str:
        self.count += 1
        return f"N{self.count}"

    def draw_record(self, depth: int, more: Mapping[str, str]) -> Schema:
        name = self.name()
        self.open.append(name)
        names = self.draw(st.lists(st.sampled_from("abcd"), max_size=4, unique=True))
        fields = [{"name": each, "type": self.draw_type(depth - 1)} for each in names]
        self.open.pop()
        self.known.append(name)
        return {"type": "record", "name": name, **more, "fields": fields}

    def draw_type(self, depth: int) -> Schema:
        kinds = ["leaf", "leaf", "known", "self", "union"] + ["record", "record", "array", "map"] * (depth > 0)
        match self.draw(st.sampled_from(kinds)):
            case "record":
                return self.draw_record(depth, {})
            case "array":
                return {"type": "array", "items": self.draw_type(depth - 1)}
            case "map":
                return {"type": "map", "values": self.draw_type(depth - 1)}
            case "union":
                return self.draw_union(depth)
            case "self" if self.open:
                return ["null", self.draw(st.sampled_from(self.open))]
            case "known" if self.known:
                return self.draw(st.sampled_from(self.known))
            case _:
                return self.draw_leaf()

    def draw_leaf(self) -> Schema:
        match self.draw(st.sampled_from(["simple", "simple", "logical", "enum", "fixed"])):
            case "enum":
                symbols = self.draw(st.lists(st.sampled_from(["A", "NO", "X_1"]), min_size=1, unique=True))
                made = {"type": "enum", "name": self.name(), "symbols": symbols}
            case "fixed":
                made = {"type": "fixed", "name": self.name(), "size": self.draw(st.integers(0, 9))}
            case "logical":
                return dict(self.draw(st.sampled_from(LOGICAL)))
            case _:
                return self.draw(st.sampled_from(SIMPLE))
        self.known.append(str(made["name"]))
        return made

    def draw_union(self, depth: int) -> Schema:
        plain = self.draw(st.lists(st.sampled_from(("null", "boolean", "long", "string")), max_size=3, unique=True))
        records = self.draw(st.integers(0, 2)) if depth > 0 else 0
        return [*plain, *(self.draw_record(depth - 1, {}) for _ in range(records))] or ["null"]


def list_named(schema: Schema) -> dict[str, Schema]:
    """Return the named types within a schema of `schemas`, by their short names."""
    found: dict[str, Schema] = {}
    if isinstance(schema, list):
        for part in schema:
            found |= list_named(part)
    elif isinstance(schema, dict):
        if "name" in schema:
            found[schema["name"]] = schema
        for part in (*(field["type"] for field in schema.get("fields", ())), schema.get("items"), schema.get("values")):
            found |= list_named(part)
    return found


def list_paths(schema: Schema, named: Mapping[str, Schema], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of up to four steps that a schema has, and of each record one that it has not."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, list):
        for part in schema:
            yield from list_paths(part, named, before)
        return
    if before:
        yield before
    if isinstance(schema, dict) and schema["type"] == "record" and len(before) < 4:
        yield (*before, "none")
        for field in schema["fields"]:
            yield from list_paths(field["type"], named, (*before, field["name"]))


def draw_value(draw: Draw, schema: Schema) -> Any:
    """Return a value of a schema of `schemas`, as fastavro takes it: a record in a union comes with its full name."""
    prefix = f"{schema['namespace']}." if "namespace" in schema else ""
    return _draw_value(draw, schema, list_named(schema), prefix, 0)


def _draw_value(draw: Draw, schema: Schema, named: Mapping[str, Schema], prefix: str, depth: int) -> Any:
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    inner = partial(_draw_value, draw, named=named, prefix=prefix, depth=depth + 1)
    if isinstance(schema, list):
        # a record that contains itself has to end
        part = "null" if depth > 4 and "null" in schema else draw(st.sampled_from(schema))
        part = named.get(part, part) if isinstance(part, str) else part
        is_record = isinstance(part, dict) and part["type"] == "record"
        return (prefix + part["name"], inner(part)) if is_record else inner(part)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            return {field["name"]: inner(field["type"]) for field in schema["fields"]}
        case "array":
            return [inner(schema["items"]) for _ in range(draw(st.integers(0, 2 if depth < 5 else 0)))]
        case "map":
            keys = draw(st.lists(st.sampled_from(["k", "", "key"]), max_size=2 if depth < 5 else 0, unique=True))
            return {key: inner(schema["values"]) for key in keys}
        case "enum":
            return draw(st.sampled_from(schema["symbols"]))
        case "fixed":
            return draw(st.binary(min_size=schema["size"], max_size=schema["size"]))
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return draw(_LOGICAL_VALUES[logical] if logical in _LOGICAL_VALUES else _VALUES[kind])


_LOGICAL_VALUES: dict[str | None, st.SearchStrategy[Any]] = {
    "date": st.dates(),
    "timestamp-millis": st.datetimes(timezones=st.just(UTC)).map(
        lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)
    ),
    "timestamp-micros": st.datetimes(timezones=st.just(UTC)),
    "local-timestamp-micros": st.datetimes(),
    "decimal": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-3)),
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32),
    "double": st.floats() | st.integers(-1000, 1000).map(lambda cents: cents / 100),
    "bytes": st.binary(max_size=12) | st.sampled_from([b'a"b', b"\\\\", b'"' * 9]),
    "string": st.text(max_size=12) | st.sampled_from(['"', "a\\b", "kr\u00f8ner"]),
}


def encode(schema: Schema, value: Any) -> bytes:
    """Return a value as fastavro writes it, without anything around it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def decode(schema: Schema, data: bytes) -> Any:
    """Return what fastavro reads."""
    return fastavro.schemaless_reader(io.BytesIO(data), schema, None)


def count_ms(moment: date | datetime) -> int:
    """Return the ms since 1970 of a date or of a time, which is UTC if it does not say its zone."""
    if not isinstance(moment, datetime):
        return (moment - date(1970, 1, 1)).days * 86_400_000
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1000
