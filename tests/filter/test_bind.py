"""Names become columns, and numbers and booleans beside undeclared properties are refused."""

from __future__ import annotations

import pytest

from overlay.errors import FilterSyntaxError
from overlay.filter.bind import bind
from overlay.filter.families import FAMILIES, Family, find_family
from overlay.filter.nodes import Column, Name, Section, walk
from overlay.filter.parse import parse
from overlay.filter.properties import parse_properties
from overlay.scan.columns import TYPES

DECLARED = {
    "dep_delay": "double",
    "distance": "long",
    "carrier": "string",
    "tail": "binary",
    "cancelled": "boolean",
    "departed": "timestamp",
}


def find_types(text: str, types: dict[str, str]) -> dict[str, str]:
    columns = [node for node in walk(bind(parse(text), types, text)) if isinstance(node, Column)]
    return {f"{column.section}.{column.name}": column.type for column in columns}


def refuse(text: str, types: dict[str, str] | None = None) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as caught:
        bind(parse(text), DECLARED if types is None else types, text)
    return caught.value


def test_declared_types() -> None:
    text = "dep_delay > 1 AND distance < 2 AND carrier = 'AA' AND tail LIKE 'N%' AND cancelled AND departed < UTC()"
    found = find_types(text, DECLARED)
    assert found == {f"application_properties.{name}": type for name, type in DECLARED.items()}


def test_built_in_types_and_their_overrides() -> None:
    fields = "p.message_id IS NULL OR p.group_sequence = 1 OR p.creation_time > 1 OR h.priority = 4 OR p.to = 'x'"
    assert find_types(fields, {}) == {
        "properties.message_id": "string",
        "properties.group_sequence": "long",
        "properties.creation_time": "timestamp",
        "header.priority": "long",
        "properties.to": "string",
    }
    overridden = find_types(fields, {"p.message_id": "long", "properties.to": "binary", "header.priority": "double"})
    assert overridden["properties.message_id"] == "long"
    assert overridden["properties.to"] == "binary"
    assert overridden["header.priority"] == "double"
    assert overridden["properties.group_sequence"] == "long"


def test_undeclared_properties_are_strings() -> None:
    assert find_types("gate = 'A1' AND [my seat] LIKE '1%'", DECLARED) == {
        "application_properties.gate": "string",
        "application_properties.my seat": "string",
    }


def test_without_types_the_tree_stays_as_it_is() -> None:
    node = parse("gate > 5 AND p.subject = 'x'")
    assert bind(node, None, "") is node


def test_places_are_kept() -> None:
    text = "carrier = 'AA' AND NOT dep_delay > 60"
    bound = bind(parse(text), DECLARED, text)
    names = {text[slice(*node.at)]: node.name for node in walk(bound) if isinstance(node, Column)}
    assert names == {"carrier": "carrier", "dep_delay": "dep_delay"}
    assert [node.at for node in walk(bound)] == [node.at for node in walk(parse(text))]


@pytest.mark.parametrize(
    "text",
    [
        "carrier > 5",
        "cancelled = 1",
        "dep_delay LIKE '6%'",
        "carrier + 1 = 2",
        "p.subject = 5",
        "gate = carrier",
        "gate = 0xFF",
        "NOT gate",
        "p.user_id = 5",
        "p.message_id = TRUE",
        "gate IN ('a', carrier)",
        "gate LIKE '5%' AND gate IS NOT NULL",
        "(gate = 'a') = (distance = 5)",
    ],
)
def test_other_clashes_are_legal(text: str) -> None:
    bind(parse(text), DECLARED, text)


@pytest.mark.parametrize(
    "text",
    [
        "gate > 5",
        "5 = gate",
        "gate <> 5",
        "gate = 5.0",
        "gate = UTC()",
        "gate < distance",
        "departed >= gate",
        "gate = -distance",
        "gate = (distance + 1)",
        "gate = p.group_sequence",
        "gate + 1 > distance",
        "1 / gate = 0.5",
        "-gate = carrier",
        "+gate = carrier",
        "gate IN ('a', 5)",
        "gate NOT IN (distance)",
        "distance IN (1, gate)",
        "carrier = 'AA' AND NOT (cancelled OR (gate > 5))",
        "'x' IN (gate + 1)",
    ],
)
def test_a_number_beside_an_undeclared_property_is_refused(text: str) -> None:
    error = refuse(text)
    assert "does not declare gate" in error.message
    assert error.line == 1
    assert error.column == text.index("gate") + 1


@pytest.mark.parametrize(
    "text",
    [
        "gate = TRUE",
        "FALSE <> gate",
        "gate = cancelled",
        "gate IN ('a', TRUE)",
        "cancelled IN (gate)",
        "gate = (distance = 5)",
        "(carrier IS NULL) <> gate",
    ],
)
def test_a_boolean_beside_an_undeclared_property_is_refused(text: str) -> None:
    error = refuse(text)
    assert error.message == "the stream does not declare gate: it is a string, which no boolean is like"
    assert error.hint == "add to the stream's file, under properties: gate: boolean"
    assert error.column == text.index("gate") + 1
    bind(parse(text), {**DECLARED, "gate": "boolean"}, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("p.message_id = 12345", '"p.message_id": long'),
        ("properties.message_id + 1 > 5.5", '"p.message_id": long'),
        ("p.correlation_id IN ('a', 1.5)", '"p.correlation_id": double'),
    ],
)
def test_a_number_beside_an_id_is_refused(text: str, line: str) -> None:
    """A message id of AMQP may be a number; that of a header is a string until the stream says otherwise."""
    error = refuse(text)
    assert "which no number is like" in error.message
    assert error.hint == f"add to the stream's file, under properties: {line}"
    assert (error.line, error.column) == (1, 1)
    for prefix, type in (("p", "long"), ("properties", "string")):
        declared = {f"{prefix}.{name}": type for name in ("message_id", "correlation_id")}
        bind(parse(text), declared, text)


def test_the_error_points_at_the_place_and_says_what_to_add() -> None:
    error = refuse("carrier = 'AA'\n  AND delay > 60")
    assert (error.line, error.column) == (2, 7)
    assert error.hint == "did you mean dep_delay? If not, add to the stream's file, under properties: delay: double"
    assert "  AND delay > 60\n" in error.excerpt
    assert str(error).splitlines()[-2].strip() == "^^^^^"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gate > 5", "gate: double"),
        ("gate = 9007199254740993", "gate: long"),
        ("gate > 5.5", "gate: double"),
        ("gate / 2 = 1", "gate: double"),
        ("gate * 0.5 = 1", "gate: double"),
        ("gate > dep_delay", "gate: double"),
        ("gate > distance - 1", "gate: double"),
        ("gate = -0.5", "gate: double"),
        ("gate < UTC()", "gate: timestamp"),
        ("gate < departed", "gate: timestamp"),
        ("[two words] = 1", '"two words": double'),
        ("[größe] = 1", '"größe": double'),
        ('[a"b: c] = 1', '"a\\"b: c": double'),
        ("[null] = 1", '"null": double'),
        ("[] = 1", '"": double'),
    ],
)
def test_the_line_to_add(text: str, line: str) -> None:
    assert refuse(text, {"distance": "long", "dep_delay": "double", "departed": "timestamp"}).hint.endswith(
        f"under properties: {line}"
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("departed > '2013-01-01T05:00:00Z'", "1357016400000"),
        ("'2013-01-01T05:00:00Z' <> departed", "1357016400000"),
        ("departed > '2026-11-25'", "1795564800000"),
        ("departed IN (5, 'noon')", "UTC() for now"),
        ("departed NOT IN ('')", "UTC() for now"),
        ("departed = 0xFF", "UTC() for now"),
    ],
)
def test_a_text_beside_a_timestamp_is_refused(text: str, hint: str) -> None:
    """It would be equal to nothing, unequal to everything, and never less or greater."""
    error = refuse(text)
    assert error.message == "the stream declares departed as timestamp, which no text is like"
    assert hint in error.hint
    assert error.column == text.index("departed") + 1
    bind(parse(text), None, text)
    bind(parse(text), {**DECLARED, "departed": "string"}, text)


def test_property_filters_are_refused_by_the_key() -> None:
    mapping = {"application_properties": {"carrier": "AA", "dep_dlay": 60}}
    with pytest.raises(FilterSyntaxError) as caught:
        bind(parse_properties(mapping), DECLARED, "")
    assert caught.value.path == ("application_properties", "dep_dlay")
    assert "did you mean dep_delay?" in caught.value.hint
    for wrong, path, line in (
        ({"application_properties": {"gate": True}}, ("application_properties", "gate"), "gate: boolean"),
        ({"properties": {"message-id": 12345}}, ("properties", "message-id"), '"p.message_id": long'),
    ):
        with pytest.raises(FilterSyntaxError) as caught:
            bind(parse_properties(wrong), DECLARED, "")
        assert caught.value.path == path
        assert caught.value.hint == f"add to the stream's file, under properties: {line}"
    strings = {"application_properties": {"carrier": "AA", "gate": "&p:B", "seat": None}}
    assert not any(isinstance(node, Name) for node in walk(bind(parse_properties(strings), DECLARED, "")))


def test_every_type_has_a_family() -> None:
    assert FAMILIES.keys() == TYPES.keys()
    assert [find_family(Column(Section.APPLICATION, "x", type)) for type in FAMILIES] == list(FAMILIES.values())
    assert find_family(Name(Section.APPLICATION, "x")) is None
    assert find_family(parse("-x")) is Family.NUMBER
