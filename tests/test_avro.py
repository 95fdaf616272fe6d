"""Schemas of Avro: names, what is refused, and where paths lead. Reading by them: tests/scan/avro."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from overlay.avro import DEEPEST, Kind, find_readings, find_types, parse_schema
from overlay.errors import SchemaError
from tests.support.avro import Schema, list_named, schemas

DECIMAL: Schema = {"type": "bytes", "logicalType": "decimal"}


def make(*fields: tuple[str, Any], **more: Any) -> Schema:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": type} for name, type in fields],
        **more,
    }


@given(schemas())
def test_whatever_fastavro_takes_is_parsed(schema: Schema) -> None:
    """The strategy's schemas are those that fastavro writes values of, in tests/scan/avro/test_search.py."""
    root = parse_schema(schema)
    assert root.kind is Kind.RECORD
    assert [name for name, _ in root.fields] == [field["name"] for field in schema["fields"]]
    assert root.name.rpartition(".")[2] in list_named(schema)


def test_names_count_from_their_namespace() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = make(("a", inner), ("b", "E"), ("c", "shop.E"), ("d", {"type": "E"}), namespace="shop")
    fields = dict(parse_schema(schema).fields)
    assert {type.name for type in fields.values()} == {"shop.E"}
    dotted = make(("a", {**inner, "name": "other.E"}), ("b", "other.E"), ("c", {**inner, "namespace": "third"}))
    assert [type.name for _, type in parse_schema(dotted).fields] == ["other.E", "other.E", "third.E"]


def test_a_record_may_contain_itself() -> None:
    root = parse_schema(make(("n", "int"), ("next", ["null", "R"])))
    assert find_types(root, ["next"] * 9 + ["n"])[0].kind is Kind.INT


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (3, "the schema is no type"),
        ("Order", "has the unknown type 'Order'"),
        ({}, "the schema has no type"),
        ({"type": 5}, "the schema has no type"),
        ([], "a union of no types"),
        (["null", ["int"]], "a union in a union"),
        ({"type": "record", "fields": []}, "of type record and has no name"),
        ({"type": "record", "name": "R"}, "record R has no list of fields"),
        (make() | {"fields": ["x"]}, "record R has a field without a name"),
        (make(("a", "int"), ("a", "int")), "record R has two fields 'a'"),
        (make(("a", "lnog")), "field 'a' of record R has the unknown type 'lnog'. Did you mean long?"),
        (make(("a", None)), "field 'a' of record R is no type"),
        (make(("a", make())), "field 'a' of record R defines R a second time"),
        ({"type": "array"}, "the items of the schema is no type"),
        ({"type": "map", "values": "x"}, "the values of the schema has the unknown type"),
        ({"type": "enum", "name": "E"}, "enum E has no list of symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "fixed F has no size"),
        ({"type": "fixed", "name": "F", "size": True}, "fixed F has no size"),
    ],
)
def test_what_is_refused(schema: object, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_schema(schema)
    assert words in str(caught.value)


def test_depth_has_a_limit() -> None:
    schema: Any = "int"
    for _ in range(DEEPEST + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(SchemaError, match="nested too deeply"):
        parse_schema(schema)
    with pytest.raises(SchemaError, match="has 101 steps"):
        find_types(parse_schema(make(("next", ["null", "R"]))), ["next"] * (DEEPEST + 1))


def test_ways_through_unions_have_a_limit() -> None:
    """Two branches at each step are as many ways as the search has to be written out for."""
    branches = [{**make(("next", ["null", "A", "B"])), "name": name} for name in ("A", "B")]
    branches[0]["fields"] = [{"name": "next", "type": ["null", "A", branches[1]]}]
    root = parse_schema(branches[0])
    assert len(find_types(parse_schema(make(("a", branches[0]), ("x", "int"))), ["x"])) == 1
    with pytest.raises(SchemaError, match="has more than 1000 ways through unions"):
        find_types(root, ["next"] * 50)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("n", "a long"),
        ("u", "a long or a string"),
        ("r.x", "an int or a string"),
        ("z", "z is always null"),
        ("r", "r is a record A or a record B. Name one of its fields: r.x"),
        ("m", "m is a map. It cannot be read"),
        ("m.k", "m is a map, which has no fields to name"),
        ("r.y", "r has no field 'y'. Its fields are x"),
        ("num", "the value has no field 'num'"),
        ("t", "a long (timestamp-millis)"),
    ],
)
def test_where_a_path_leads(path: str, found: str) -> None:
    records = [{**make(("x", type)), "name": name} for name, type in (("A", "int"), ("B", "string"))]
    schema = make(
        ("n", "long"),
        ("u", ["null", "long", "string"]),
        ("r", ["null", *records]),
        ("z", ["null"]),
        ("m", {"type": "map", "values": "int"}),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}),
    )
    try:
        said = " or ".join(type.title for type in find_types(parse_schema(schema), path.split(".")))
    except SchemaError as error:
        said = str(error)
    assert said.startswith(found)


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        (DECIMAL | {"precision": 4, "scale": 4}, "decimal"),
        (DECIMAL | {"precision": 4}, "decimal"),
        (DECIMAL | {"scale": 2}, ""),
        (DECIMAL | {"precision": 0}, ""),
        (DECIMAL | {"precision": 4.0}, ""),
        (DECIMAL | {"precision": True}, ""),
        (DECIMAL | {"precision": 3, "scale": 4}, ""),
        (DECIMAL | {"precision": 3, "scale": -1}, ""),
        (DECIMAL | {"precision": 1 << 40, "scale": 1 << 40}, ""),
        (DECIMAL | {"type": "fixed", "name": "F", "size": 4, "precision": 9}, "decimal"),
        (DECIMAL | {"type": "fixed", "name": "F", "size": 4, "precision": 10}, ""),  # ten digits need five bytes
        (DECIMAL | {"type": "string", "precision": 4}, ""),
        ({"type": "long", "logicalType": 7}, ""),
    ],
)
def test_a_logical_type_that_is_invalid_is_none(schema: Schema, logical: str) -> None:
    assert parse_schema(schema).logical == logical


def test_types_that_values_can_be_read_as() -> None:
    assert find_readings(parse_schema("string")) == ("string", "binary", "timestamp")
    assert find_readings(parse_schema(DECIMAL | {"precision": 4})) == ("double", "long")
    assert find_readings(parse_schema("bytes")) == ("binary", "string")
    assert find_readings(parse_schema("null")) == find_readings(parse_schema(make())) == ()
