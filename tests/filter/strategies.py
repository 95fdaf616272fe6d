"""Hypothesis strategies for filters: schemas, expressions, messages, and messages as the batch that columns would make.

    schemas()                      -> Schema: which application properties there are, and their types
    expressions(schema)            -> Node: trees as parse() makes them (Name, no negative constants, AND/OR of two or
                                      more), so parse(describe(tree)) == tree; half of them make sense of types, the
                                      others put anything anywhere
    conditions(schema)             -> Node: the same, but a condition at the top
    property_filters(schema)       -> dict as compile_properties takes it
    messages(schema)               -> dict as Filter.matches takes it: values of the declared types, absent where NULL
    to_batch(schema, messages)     -> pa.RecordBatch with the three struct columns of docs/filters.md, one row a message
    cases(rows=8)                  -> (schema, expression, list of messages) at once
    loose_messages()               -> dicts with values of any type under any name, for evaluators that must not raise

`undeclared=True` lets expressions(), conditions() and messages() use UNDECLARED as well: properties that the schema
does not have, which bind() takes for strings, and refuses beside a number.

Constants and values come from the same small pools, so that equalities, prefixes and neighbours meet: the edges of int64,
of 2**53 and of double, -0.0, NaN, the empty string, line feeds, characters beyond the BMP, wildcards as text, bytes
that are no UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from overlay.filter.fields import FIELDS
from overlay.filter.message import to_value
from overlay.filter.nodes import (
    And,
    Arithmetic,
    Calculation,
    Compare,
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
    Section,
    Sign,
)
from overlay.scan.columns import TYPES

UNDECLARED = ("gate", "seat no")
NOW = 1_700_000_000_000

_NAMES = ("carrier", "delay", "x", "größe", "and", "two words", "]x[", "", "p.to", "_1")
_SECTION_FIELDS = {
    Section.HEADER: ("priority",),
    Section.PROPERTIES: ("subject", "message_id", "group_sequence", "creation_time"),
}

_INTEGERS = (0, 1, 2, 3, 5, 7, 10, 100, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1)
_WIDE_INTEGERS = (2**63, 2**64 - 1, 10**25, 10**400)
_FLOATS = (0.0, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 1e-300, 5e-324, 2.0**53, 2.0**63, 2.0**64, 1e25, 1e200, 1.7e308)
_TEXTS = (
    "",
    "a",
    "A",
    "b",
    "ab",
    "aab",
    "aXb",
    "%",
    "_",
    "a%b",
    "a_b",
    "é",
    "a\nb",
    "ab\n",
    "\n",
    "😀",
    "a😀b",
    "5",
    "10",
)
_BROKEN = (b"\xff", b"a\xff", b"\xc3", b"\xed\xa0\x80", b"ab\x80")
_PATTERNS = (
    "",
    "%",
    "%%",
    "a",
    "a%",
    "%b",
    "%a%",
    "a%b",
    "%ab%b%",
    "_",
    "a_b",
    "_%",
    "%_",
    "a%a",
    "a%%b",
    "%a_b%",
    "😀",
    "_😀_",
    "%\u00e9%",
)
_ESCAPES = ("!", "%", "_", "a", "😀", "\\")
_TIMES = (-1, 0, 1, 5, NOW - 1, NOW, NOW + 1, 253_402_300_799_999, -62_135_596_800_000)

integers = st.sampled_from(_INTEGERS).flatmap(lambda i: st.sampled_from((i, -i))) | st.integers(-(2**63), 2**63 - 1)
floats = st.one_of(
    st.sampled_from((*_FLOATS, float("nan"), float("inf"))).flatmap(lambda f: st.sampled_from((f, -f))), st.floats()
)
texts = st.sampled_from(_TEXTS) | st.text(alphabet="abA%_é\n😀\\", max_size=5)
binaries = st.one_of(texts.map(str.encode), st.sampled_from(_BROKEN), st.binary(max_size=4))
times = st.sampled_from(_TIMES) | st.integers(_TIMES[-1], _TIMES[-2])
patterns = st.sampled_from(_PATTERNS) | st.text(alphabet="abA%_é😀!", max_size=6)


@dataclass(frozen=True)
class Schema:
    """`properties`: application properties and their types. The fixed fields have those of overlay.filter.fields."""

    properties: Mapping[str, str]

    @property
    def types(self) -> dict[str, str]:
        """What compile_sql and bind take."""
        return dict(self.properties)

    def columns(self) -> Iterable[tuple[Section, str, str]]:
        """Section, name and type of every field that messages() can fill."""
        for section, names in _SECTION_FIELDS.items():
            yield from ((section, name, FIELDS[section][name]) for name in names)
        yield from ((Section.APPLICATION, name, type) for name, type in self.properties.items())


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=6, unique=True))
    return Schema({name: draw(st.sampled_from(sorted(TYPES))) for name in names})


_KINDS = {
    "string": "text",
    "binary": "text",
    "long": "number",
    "double": "number",
    "timestamp": "number",
    "boolean": "boolean",
}


@dataclass(frozen=True)
class _Writer:
    """Draws trees; `names` are the fields by kind. `depth` is what is left of nesting."""

    draw: st.DrawFn
    names: Mapping[str, tuple[Name, ...]]
    is_typed: bool

    def condition(self, depth: int) -> Node:
        kinds = ["comparison", "comparison", "like", "in", "null", "boolean"]
        if depth > 0:
            kinds += ["not", "and", "or", "and", "or"]
        match self.draw(st.sampled_from(kinds)):
            case "not":
                return Not(self.operand(depth - 1))
            case "and":
                return And(self.operands(depth - 1))
            case "or":
                return Or(self.operands(depth - 1))
            case "like":
                return self.like(depth)
            case "in":
                return self.membership(depth)
            case "null":
                return IsNull(self.draw(st.sampled_from(self.names["any"])), self.draw(st.booleans()))
            case "boolean" if self.names["boolean"]:
                return self.draw(st.sampled_from(self.names["boolean"]))
            case _:
                left, right = self.pair(depth)
                return Comparison(self.draw(st.sampled_from(Compare)), left, right)

    def operand(self, depth: int) -> Node:
        return self.condition(depth) if self.is_typed or self.draw(st.integers(0, 3)) else self.value(depth)

    def operands(self, depth: int) -> tuple[Node, ...]:
        return tuple(self.operand(depth) for _ in range(self.draw(st.sampled_from((2, 2, 3)))))

    def pair(self, depth: int) -> tuple[Node, Node]:
        """Two values that are meant to be compared."""
        if not self.is_typed:
            return self.value(depth), self.value(depth)
        kind = self.draw(st.sampled_from(("number", "number", "text", "boolean")))
        return self.value(depth, kind), self.value(depth, kind)

    def like(self, depth: int) -> Node:
        escape = self.draw(st.sampled_from(("", *_ESCAPES)))
        pattern = self.draw(patterns)
        # a pattern that ends with its escape character is refused
        while escape and len(pattern) - len(pattern.rstrip(escape)) & 1:
            pattern += "%" if escape != "%" else "b"
        operand = self.value(depth, "text" if self.is_typed else "any")
        return Like(operand, pattern, escape, self.draw(st.booleans()))

    def membership(self, depth: int) -> Node:
        kind = self.draw(st.sampled_from(("number", "text"))) if self.is_typed else "any"
        items = tuple(self.value(depth - 1, kind) for _ in range(self.draw(st.integers(1, 4))))
        return In(self.value(depth, kind), items, self.draw(st.booleans()))

    def value(self, depth: int, kind: str = "any") -> Node:
        if kind == "any":
            kind = self.draw(st.sampled_from(("number", "number", "text", "text", "boolean", "condition")))
        if kind == "condition":
            return self.condition(depth - 1) if depth > 0 else self.value(0, "boolean")
        names = self.names[kind]
        if names and self.draw(st.integers(0, 2)) > 0:
            return self.draw(st.sampled_from(names))
        match kind:
            case "number":
                return self.number(depth)
            case "text":
                return Literal(self.draw(binaries))
            case _:
                return Literal(self.draw(st.booleans()))

    def number(self, depth: int) -> Node:
        choice = self.draw(st.sampled_from(("int", "int", "float", "float", "wide", "now", "sign", "sum", "sum")))
        if depth <= 0 and choice in ("sign", "sum"):
            choice = "int"
        operand = "number" if self.is_typed else "any"
        match choice:
            case "int":
                return Literal(abs(self.draw(integers)))
            case "float":
                value = abs(self.draw(floats))
                return Literal(value if value < float("inf") else 1.5)
            case "wide":
                return Literal(self.draw(st.sampled_from(_WIDE_INTEGERS)))
            case "now":
                return Now()
            case "sign":
                return Sign(self.value(depth - 1, operand), self.draw(st.booleans()))
            case _:
                left, right = self.value(depth - 1, operand), self.value(depth - 1, operand)
                return Calculation(self.draw(st.sampled_from(Arithmetic)), left, right)


def _sort_names(schema: Schema, undeclared: bool) -> dict[str, tuple[Name, ...]]:
    named = [(Name(section, name), _KINDS[type]) for section, name, type in schema.columns()]
    if undeclared:
        named += [(Name(Section.APPLICATION, name), "text") for name in UNDECLARED]
    kinds = {kind: tuple(name for name, own in named if own == kind) for kind in ("text", "number", "boolean")}
    return kinds | {"any": tuple(name for name, _ in named)}


@st.composite
def conditions(draw: st.DrawFn, schema: Schema, depth: int = 3, undeclared: bool = False) -> Node:
    return _Writer(draw, _sort_names(schema, undeclared), draw(st.booleans())).condition(depth)


@st.composite
def expressions(draw: st.DrawFn, schema: Schema, depth: int = 3, undeclared: bool = False) -> Node:
    writer = _Writer(draw, _sort_names(schema, undeclared), draw(st.booleans()))
    return writer.condition(depth) if draw(st.integers(0, 9)) else writer.value(depth)


def _values(type: str) -> st.SearchStrategy[Any]:
    match type:
        case "string":
            return texts
        case "binary":
            return binaries
        case "long":
            return integers
        case "double":
            return floats
        case "boolean":
            return st.booleans()
        case _:
            return times.map(to_time)


def to_time(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@st.composite
def messages(draw: st.DrawFn, schema: Schema, undeclared: bool = False) -> dict[str, dict[str, Any]]:
    message: dict[str, dict[str, Any]] = {section.value: {} for section in Section}
    for section, name, type in schema.columns():
        if draw(st.integers(0, 4)):
            message[section.value][name] = draw(_values(type))
    for name in UNDECLARED if undeclared else ():
        if draw(st.integers(0, 4)):
            message[Section.APPLICATION.value][name] = draw(texts)
    return message


def to_batch(
    schema: Schema, rows: Iterable[Mapping[str, Mapping[str, Any]]], undeclared: bool = False
) -> pa.RecordBatch:
    """Messages of messages() as columns; timestamps have milliseconds. A section without fields has no column."""
    rows = list(rows)
    columns = list(schema.columns())
    if undeclared:
        columns += [(Section.APPLICATION, name, "string") for name in UNDECLARED]
    arrays = {}
    for section in Section:
        fields = [pa.field(name, TYPES[type]) for own, name, type in columns if own is section]
        parts = [_to_array(rows, section, field) for field in fields]
        if fields:
            arrays[section.value] = pa.StructArray.from_arrays(parts, fields=fields)
    return pa.RecordBatch.from_pydict(arrays)


def _to_array(rows: list[Mapping[str, Mapping[str, Any]]], section: Section, field: pa.Field) -> pa.Array:
    values = [row[section.value].get(field.name) for row in rows]
    if field.type == TYPES["timestamp"]:
        return pa.array([to_value(value) for value in values], pa.int64()).cast(field.type)
    return pa.array(values, field.type)


@st.composite
def cases(
    draw: st.DrawFn, rows: int = 8, undeclared: bool = False
) -> tuple[Schema, Node, list[dict[str, dict[str, Any]]]]:
    schema = draw(schemas())
    node = draw(expressions(schema, undeclared=undeclared))
    return schema, node, draw(st.lists(messages(schema, undeclared), min_size=rows, max_size=rows))


_reference_texts = texts.map(lambda text: "&" + text if text.startswith("&") else text)


@st.composite
def property_filters(draw: st.DrawFn, schema: Schema) -> dict[str, dict[str, Any]]:
    """Values of the right types where the section has types; prefixes, suffixes and null among them."""
    affixes = st.builds("{}{}".format, st.sampled_from(("&p:", "&s:")), texts)
    strings = _reference_texts | affixes
    fixed: dict[str, st.SearchStrategy[Any]] = {
        "subject": strings,
        "message-id": strings | st.integers(0, 2**64 - 1) | binaries,
        "group-sequence": st.integers(0, 2**32 - 1),
        "creation-time": times.map(to_time),
    }
    named: dict[str, st.SearchStrategy[Any]] = {
        name: (strings if _KINDS[type] == "text" else _values(type).filter(lambda value: to_value(value) is not None))
        | st.none()
        for name, type in schema.properties.items()
    }
    found: dict[str, dict[str, Any]] = {
        "properties": draw(st.fixed_dictionaries({}, optional=fixed)),
        "application_properties": draw(st.fixed_dictionaries({}, optional=named)),
    }
    found = {section: entries for section, entries in found.items() if entries}
    return found or {"properties": {"subject": "a"}}


_anything = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.sampled_from(_WIDE_INTEGERS),
    floats,
    texts,
    binaries,
    times.map(to_time),
    st.just("\ud800"),
    st.lists(st.integers(), max_size=1),
    st.dictionaries(st.text(max_size=1), st.none(), max_size=1),
)


@st.composite
def loose_messages(draw: st.DrawFn, schema: Schema) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for section in Section:
        names = [name for own, name, _ in schema.columns() if own is section]
        spelled = [
            name.replace("_", "-") if section is not Section.APPLICATION and draw(st.booleans()) else name
            for name in names
        ]
        fields = {name: draw(_anything) for name in spelled if draw(st.booleans())}
        message |= draw(st.sampled_from(({section.value: fields}, {section.value: fields}, {}, {section.value: None})))
    return message
