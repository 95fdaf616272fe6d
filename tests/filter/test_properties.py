"""Property filters: section 7 of the facts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from overlay.errors import FilterSyntaxError
from overlay.filter.nodes import Affix, And, Compare, Comparison, Literal, Name, Node, Present, Section
from overlay.filter.properties import parse_properties
from tests.filter import strategies as some


def prop(name: str) -> Name:
    return Name(Section.PROPERTIES, name)


def app(name: str) -> Name:
    return Name(Section.APPLICATION, name)


def equal(name: Name, value: bool | int | float | bytes) -> Node:
    return Comparison(Compare.EQ, name, Literal(value))


def refuse(mapping: object) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as error:
        parse_properties(mapping)
    assert error.value.line == 0
    assert all(key in str(error.value) for key in error.value.path)
    return error.value


@pytest.mark.parametrize(
    ("key", "value", "node"),
    [
        ("subject", "flights.JFK", equal(prop("subject"), b"flights.JFK")),
        ("subject", "&p:flights.", Affix(prop("subject"), b"flights.", is_suffix=False)),
        ("subject", "&s:.JFK", Affix(prop("subject"), b".JFK", is_suffix=True)),
        ("subject", "&p:", Affix(prop("subject"), b"", is_suffix=False)),
        ("subject", "&p:&H", Affix(prop("subject"), b"&H", is_suffix=False)),
        ("subject", "&&x", equal(prop("subject"), b"&x")),
        ("subject", "&&", equal(prop("subject"), b"&")),
        ("subject", "&&&&x", equal(prop("subject"), b"&&&x")),
        ("subject", "a&p:b", equal(prop("subject"), b"a&p:b")),
        ("message-id", 2**64 - 1, equal(prop("message_id"), 2**64 - 1)),
        ("message-id", b"\xff", equal(prop("message_id"), b"\xff")),
        ("message-id", UUID(int=0), equal(prop("message_id"), b"\0" * 16)),
        ("correlation-id", "&p:a", Affix(prop("correlation_id"), b"a", is_suffix=False)),
        ("user-id", b"guest", equal(prop("user_id"), b"guest")),
        ("user-id", "&p:guest", equal(prop("user_id"), b"&p:guest")),
        ("content-type", "&p:text", equal(prop("content_type"), b"&p:text")),
        ("content-encoding", "gzip", equal(prop("content_encoding"), b"gzip")),
        ("group-sequence", 2**32 - 1, equal(prop("group_sequence"), 2**32 - 1)),
        ("creation-time", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), equal(prop("creation_time"), 1000)),
        ("absolute-expiry-time", 1000, equal(prop("absolute_expiry_time"), 1000)),
        ("creation-time", "2013-01-01T05:00:00Z", equal(prop("creation_time"), 1_357_016_400_000)),
        ("creation-time", "2013-01-01t06:30:00.25+01:30", equal(prop("creation_time"), 1_357_016_400_250)),
        ("absolute-expiry-time", "1969-12-31T23:59:59.9999Z", equal(prop("absolute_expiry_time"), -1)),
    ],
)
def test_fields(key: str, value: object, node: Node) -> None:
    assert parse_properties({"properties": {key: value}}) == node


@pytest.mark.parametrize(
    ("value", "node"),
    [
        ("AA", equal(app("x"), b"AA")),
        ("&s:A", Affix(app("x"), b"A", is_suffix=True)),
        (b"&p:A", equal(app("x"), b"&p:A")),
        (5, equal(app("x"), 5)),
        (5.0, equal(app("x"), 5.0)),
        (-1, equal(app("x"), -1)),
        (True, equal(app("x"), True)),
        (datetime(1970, 1, 1, tzinfo=UTC), equal(app("x"), 0)),
        (None, Present(app("x"))),
    ],
)
def test_application_properties(value: object, node: Node) -> None:
    assert parse_properties({"application_properties": {"x": value}}) == node


def test_all_entries_have_to_hold() -> None:
    node = parse_properties({"properties": {"subject": "a", "to": "b"}, "application_properties": {"message-id": 1}})
    assert node == And((equal(prop("subject"), b"a"), equal(prop("to"), b"b"), equal(app("message-id"), 1)))


REFUSED: dict[str, tuple[object, ...]] = {
    "subject": (
        *(5, True, b"a", 1.5, ["a"], {"a": 1}, None, datetime(2020, 1, 1, tzinfo=UTC)),
        *("&", "&Hello", "&P:a", "&S:a", "&p", "&x:a", "&p :a", "& p:", "\ud800"),
    ),
    "message-id": (-1, 2**64, 1.0, True, None, []),
    "user-id": (5, True),
    "content-type": (5, b"text"),
    "group-id": (5, 2**32),
    "group-sequence": (-1, 2**32, 1.0, True, "1"),
    "creation-time": (
        *(1.5, True, None, [], b"2020-01-01T00:00:00Z", "", "1357016400000", "yesterday"),
        *("2020-01-01", "2020-01-01T00:00:00", "2020-02-30T00:00:00Z", "&p:2020", "\ud800"),
    ),
    **dict.fromkeys(("message_id", "Subject", "priority", "foo", "application-properties", ""), ("a",)),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_refused_fields(key: str, value: object) -> None:
    assert refuse({"properties": {key: value}}).path == ("properties", key)


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"a": 1},
        (),
        float("nan"),
        float("inf"),
        pytest.param(object(), id="object"),
        "&",
        "&P:x",
        "&Hello",
        "\ud800",
    ],
    ids=repr,
)
def test_refused_application_properties(value: object) -> None:
    assert refuse({"application_properties": {"x": value}}).path == ("application_properties", "x")


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        ({}, ()),
        ("subject = 'a'", ()),
        (None, ()),
        ([], ()),
        ({"properties": {}}, ("properties",)),
        ({"application_properties": {}, "properties": {"to": "x"}}, ("application_properties",)),
        ({"properties": "a"}, ("properties",)),
        ({"properties": None}, ("properties",)),
        ({"header": {"priority": 4}}, ("header",)),
        ({"application-properties": {"a": 1}}, ("application-properties",)),
        ({"a": {"a": 1}}, ("a",)),
        ({5: {"a": 1}}, ("5",)),
        ({"application_properties": {5: 1}}, ("application_properties", "5")),
    ],
)
def test_refused_mappings(mapping: Any, path: tuple[str, ...]) -> None:
    assert refuse(mapping).path == path


def test_one_to_sixteen_entries_in_each_section() -> None:
    full = {f"x{i}": i for i in range(16)}
    assert parse_properties({"application_properties": full, "properties": {"to": "x"}})
    assert refuse({"application_properties": full | {"one": "more"}}).path == ("application_properties",)


@pytest.mark.parametrize(
    ("mapping", "hint"),
    [
        ({"properties": {"message_id": "a"}}, "did you mean message-id?"),
        ({"properties": {"sbject": "a"}}, "did you mean subject?"),
        ({"property": {"subject": "a"}}, "did you mean properties?"),
        ({"application-properties": {"a": 1}}, "did you mean application_properties?"),
        ({"properties": {"subject": "&x"}}, "written &&x"),
        ({"properties": {"subject": 5}}, "put it in quotes"),
        ({"properties": {"subject": None}}, "properties.x IS NOT NULL"),
        ({"properties": {"creation-time": "2020-01-01T00:00:00"}}, "RFC 3339 with its zone, like 2026-01-31T12:00:00Z"),
        ({"properties": {"creation-time": "1357016400000"}}, "Milliseconds since 1970 will do as well"),
        ({"properties": {"creation-time": "2020-02-30T00:00:00Z"}}, "there is no such time: day is out of range"),
        ({"properties": {"creation-time": 1.5}}, "like 2013-01-01T05:00:00Z, or milliseconds since 1970"),
        ({"application_properties": {"x": ["a", "b"]}}, "x IN ('a', 'b')"),
    ],
)
def test_hints(mapping: object, hint: str) -> None:
    assert hint in refuse(mapping).hint


def test_huge_numbers_are_no_trouble() -> None:
    assert "2^64" in str(refuse({"properties": {"message-id": 10**5000}}))
    assert refuse({"application_properties": {"x": -(10**5000)}}).hint
    assert hash(parse_properties({"application_properties": {"x": 10**3000}}))


@given(time=st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_a_time_in_text_is_the_same_time(time: datetime) -> None:
    assume((time.utcoffset() or timedelta()) % timedelta(minutes=1) == timedelta())  # RFC 3339 has no seconds there
    mapping: Any = {"properties": {"creation-time": time}}
    assert parse_properties({"properties": {"creation-time": time.isoformat()}}) == parse_properties(mapping)


@settings(deadline=None)
@given(some.schemas().flatmap(some.property_filters))
def test_generated_filters_are_sound(mapping: dict[str, dict[str, Any]]) -> None:
    node = parse_properties(mapping)
    count = sum(map(len, mapping.values()))
    assert (len(node.operands) if isinstance(node, And) else 1) == count
