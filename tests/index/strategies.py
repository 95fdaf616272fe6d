"""Streams with an index, and filters that their chunk headers may decide."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from overlay.config.stream import StreamConfig
from overlay.errors import FilterSyntaxError
from overlay.filter import Filter, compile_properties
from overlay.filter.bind import bind
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
from overlay.filter.rewrite import rewrite
from tests.filter import strategies as some
from tests.index.partitions import stream

Message = dict[str, dict[str, Any]]

ZONED = ("string", "long", "double", "timestamp")
SECTIONED = {"h.priority": "priority", "p.message_id": "message_id", "p.group_sequence": "group_sequence"}
RULES: tuple[dict[str, Any], ...] = ({"key": True}, {"header": "subject"}, {"template": "s.{header:carrier}.{key}"})


@st.composite
def configs(draw: st.DrawFn) -> tuple[some.Schema, StreamConfig]:
    schema = draw(some.schemas())
    types = {name: type for name, type in schema.properties.items() if name not in ("", "p.to")}
    rule = draw(st.sampled_from(RULES))
    if "template" in rule:
        types["carrier"] = "string"
    schema = some.Schema(types)
    sectioned = {
        name: FIELDS[Section.HEADER if name[0] == "h" else Section.PROPERTIES][SECTIONED[name]] for name in SECTIONED
    }
    declared = {name: {"type": type} for name, type in (types | sectioned).items()}
    names = sorted(declared)
    zoned = [name for name in names if declared[name]["type"] in ZONED]
    index = {
        "terms": draw(st.just(names) | st.lists(st.sampled_from(names), unique=True)),
        "zones": draw(st.just(zoned) | st.lists(st.sampled_from(zoned), unique=True)),
        "bloom_bytes": draw(st.sampled_from(["auto", "16B", "1KiB"])),
    }
    value = draw(st.sampled_from(["subject", {"header": "fv"}]))
    return schema, stream(properties=declared, subject=rule, filter_value=value, index=index)


@st.composite
def near(draw: st.DrawFn, schema: some.Schema, said: list[Message], depth: int = 2) -> Node:
    """Conditions on fields one by one, beside values that the records have: those that headers may decide."""
    if depth and draw(st.integers(0, 2)) == 0:
        kind = draw(st.sampled_from((And, Or, Not)))
        below = [draw(near(schema, said, depth - 1)) for _ in range(1 if kind is Not else 2)]
        return Not(below[0]) if kind is Not else kind(tuple(below))
    section, name, type = draw(st.sampled_from(list(schema.columns())))
    column = Name(section, name)
    values = [to_value(message[section.value].get(name)) for message in said]
    known = [Literal(value) for value in values if value is not None] or [Literal(5), Literal(b"a"), Literal(True)]
    constant = draw(st.sampled_from(known))
    text = constant.value.decode(errors="ignore") if isinstance(constant.value, bytes) else "a"
    text = "".join(char for char in text if char >= " ")
    if type == "timestamp":
        constants = [constant, Now(), Calculation(Arithmetic.SUB, Now(), Literal(draw(st.integers(-5, 5))))]
        moving = draw(st.sampled_from((*constants, Sign(Now(), True))))
    else:
        moving = constant
    match draw(st.sampled_from(("compare", "compare", "compare", "sum", "in", "like", "null", "bare"))):
        case "compare":
            return Comparison(draw(st.sampled_from(Compare)), column, moving)
        case "sum":
            operator = draw(st.sampled_from((Arithmetic.ADD, Arithmetic.SUB)))
            sides = draw(st.permutations((column, Literal(draw(st.integers(-3, 3))))))
            return Comparison(draw(st.sampled_from(Compare)), Calculation(operator, *sides), moving)
        case "in":
            others = [Name(section, name) for section, name, own in schema.columns() if own == type]
            items = draw(st.lists(st.sampled_from((*known, *known, *others, moving)), min_size=1, max_size=3))
            return In(column, tuple(items), draw(st.booleans()))
        case "like":
            pattern = draw(st.sampled_from((text, text[:1] + "%", text + "%", "%", "_" + text[1:], text + "_%")))
            return Like(column, pattern, negated=draw(st.booleans()))
        case "null":
            return IsNull(column, draw(st.booleans()))
        case _:
            return column


@st.composite
def filters(draw: st.DrawFn, schema: some.Schema, config: StreamConfig, said: list[Message]) -> Filter:
    if draw(st.integers(0, 5)) == 0:
        try:
            return compile_properties(draw(some.property_filters(schema)), config.properties)
        except FilterSyntaxError:
            assume(False)
    node = draw(some.conditions(schema, depth=2) if draw(st.integers(0, 3)) == 0 else near(schema, said))
    types = {name: entry.type.value for name, entry in config.properties.items()}
    try:
        return Filter(node, rewrite(bind(node, types, " " * 8)), "")
    except FilterSyntaxError:
        assume(False)
    raise AssertionError  # assume() has raised
