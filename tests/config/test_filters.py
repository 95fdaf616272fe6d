"""Filters in consumer files: what loads, and what is refused where."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.config import check_update
from overlay.config.consumer import ConsumerConfig, FilterConfig
from overlay.config.filters import compile_filter
from overlay.config.stream import StreamConfig
from overlay.errors import FilterSyntaxError
from tests.config.folders import CONSUMER, STREAM, load_files

TYPED = STREAM + 'properties: {dep_delay: double, tail: {type: string, from: "{value:tailnum}"}, p.message_id: long}\n'


@pytest.mark.parametrize(
    "text",
    [
        "{sql: dep_delay > 60}",
        "{sql: \"dep_delay > 60 AND tail LIKE 'N%'\"}",
        "\n  sql: |\n    dep_delay > 60\n    AND carrier IN ('AA', 'UA')",
        "\n  sql: >-\n    dep_delay > 60\n    AND p.message_id = 7",
        "{properties: {application_properties: {carrier: AA, dep_delay: 60, tail: null}}}",
        '{properties: {properties: {subject: "&p:flights."}}}',
        "{properties: {properties: {creation-time: 2013-01-01T05:00:00Z}}}",
        '{properties: {properties: {creation-time: "2013-01-01T06:00:00+01:00"}}}',
        "{}",
    ],
)
def test_a_sound_filter_loads(tmp_path: Path, text: str) -> None:
    files = {"streams/flights.yaml": TYPED, "consumers/late.yaml": f"{CONSUMER}filter: {text}\n"}
    loaded = load_files(tmp_path, files)
    assert loaded.problems == ()
    config = loaded.consumers["FLIGHTS", "late"]
    filter = compile_filter(config.filter, loaded.streams["FLIGHTS"])
    assert (filter is None) == (text == "{}")


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("{sql: dep_delay >}", "5:15: filter.sql", ["line 1, column 12 of the expression", "dep_delay >\n  "]),
        ("{sql: dep_delay > 1 and dep_delay < 2}", "5:15: filter.sql", ["line 1, column 15", "AND"]),
        ("{sql: dep_dela > 60}", "5:15: filter.sql", ["does not declare", "dep_delay"]),
        ("{sql: distance > 60}", "5:15: filter.sql", ["distance: double", "\n  distance > 60\n  ^^^^^^^^"]),
        ('{sql: ""}', "5:15: filter.sql", []),
        (
            "\n  sql: |\n    dep_delay > 60\n    AND distance > 7\n",
            "6:8: filter.sql",
            ["line 2, column 5 of the expression", "\n  AND distance > 7\n      ^^^^^^^^"],
        ),
        (
            "\n  sql: >\n    dep_delay > 60\n    AND distance > 7\n",
            "6:8: filter.sql",
            ["line 1, column 20 of the expression"],
        ),
        (
            "{properties: {properties: {message_id: 7}}}",
            "5:48: filter.properties.properties.message_id",
            ["did you mean message-id?"],
        ),
        (
            "\n  properties:\n    application_properties:\n      a: 1\n      b: [2]\n",
            "9:10: filter.properties.application_properties.b",
            ["found a list"],
        ),
        (
            "{properties: {properties: {creation-time: 2013-01-01}}}",
            "5:51: filter.properties.properties.creation-time",
            ["found '2013-01-01', expected a time", "RFC 3339 with its zone"],
        ),
        ("{properties: {}}", "5:22: filter.properties", ["is empty"]),
        ("{sql: a, properties: {}}", "5:30: filter.properties", ["stands beside filter.sql"]),
    ],
)
def test_a_bad_filter_is_refused_at_its_place(tmp_path: Path, text: str, where: str, words: list[str]) -> None:
    files = {
        "streams/flights.yaml": TYPED,
        "consumers/bad.yaml": f"{CONSUMER}filter: {text}\n",
        "consumers/good.yaml": CONSUMER.replace("late", "good"),
    }
    loaded = load_files(tmp_path, files)
    assert list(loaded.consumers) == [("FLIGHTS", "good")]
    (problem,) = loaded.problems
    assert str(problem).startswith(f"{tmp_path}/consumers/bad.yaml:{where}: "), str(problem)
    for each in words:
        assert each in str(problem)


FLIGHTS = "filter_value: {template: '{header:origin}.{header:dest}'}\n"


@pytest.mark.parametrize(
    ("stream", "filter", "where", "words"),
    [
        ("", "{values: [flights.JFK]}", "", []),
        ("", '{sql: dep_delay > 60, values: ["flights.JFK"], match_unfiltered: true}', "", []),
        ("", "{values: flights.JFK}", "", []),
        ("", '{values: "flights.JFK.>"}', "5:18: filter.values[0]", ["is none. Wildcards go into filter_subjects"]),
        ("", "{values: 7}", "5:18: filter.values", []),
        ("", '{values: ["flights.JFK.>"]}', "5:19: filter.values[0]", ["is none. Wildcards go into filter_subjects"]),
        ("", '{values: ["no subject"]}', "5:19: filter.values[0]", ["found 'no subject', which no message has"]),
        ("", '{values: ["trips.a"]}', "5:19: filter.values[0]", ["the stream has the subjects flights.>"]),
        ("", "{values: [flights.a.b]}", "5:19: filter.values[0]", ["the stream builds flights.*"]),
        ("", '{values: [flights.a, ""]}', "5:30: filter.values[1]", ["every message has one"]),
        ("", "{match_unfiltered: true}", "5:28: filter.match_unfiltered", ["goes with `values`"]),
        ("filter_value: {header: region}\n", '{values: [eu, "", "a b", "*"], match_unfiltered: true}', "", []),
        (FLIGHTS, '{values: [JFK.LAX, ""]}', "", []),
        (FLIGHTS, "{values: [JFK]}", "5:19: filter.values[0]", ["made by {header:origin}.{header:dest}"]),
        (FLIGHTS, '{values: ["JFK.a b"]}', "5:19: filter.values[0]", ["which no message has"]),
    ],
)
def test_filter_values(tmp_path: Path, stream: str, filter: str, where: str, words: list[str]) -> None:
    """What no message can have is refused: such a consumer would be empty without a visible reason."""
    files = {"streams/flights.yaml": TYPED + stream, "consumers/c.yaml": f"{CONSUMER}filter: {filter}\n"}
    problems = [str(problem) for problem in load_files(tmp_path, files).problems]
    assert len(problems) == bool(where), problems
    for problem in problems:
        assert problem.startswith(f"{tmp_path}/consumers/c.yaml:{where}: "), problem
        assert all(each in problem for each in words), problem


def test_a_changed_filter_is_a_legal_update() -> None:
    old = ConsumerConfig.model_validate({"stream": "S", "durable_name": "c", "deliver_subject": "o"})
    for settings in ({"sql": "a = 'b'"}, {"values": ("eu",)}, {"properties": {"application_properties": {"a": "b"}}}):
        new = old.model_copy(update={"filter": FilterConfig.model_validate(settings)})
        assert [*check_update(old, new)] == [*check_update(new, old)] == []


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("customer.vip = TRUE", "did you mean client_vip? It is read from {value:customer.vip}"),
        ("Customer.VIP = TRUE", "did you mean client_vip? It is read from {value:customer.vip}"),
        ("client.vip = TRUE", "did you mean client_vip? It is read from {value:customer.vip}"),
        ("q.b = 1", "did you mean [q.b]?"),
        ("x.y = 1", "a property with a point in its own name is written [x.y]"),
    ],
)
def test_a_name_with_a_point_is_answered_with_the_property_that_reads_that_field(sql: str, hint: str) -> None:
    properties = {"client_vip": {"type": "boolean", "from": "{value:customer.vip}"}, "q.b": "long"}
    stream = StreamConfig.model_validate({"name": "S", "topics": ("t",), "properties": properties})
    with pytest.raises(FilterSyntaxError) as caught:
        compile_filter(FilterConfig(sql=sql), stream)
    assert caught.value.hint.endswith(hint) and caught.value.column == 1


def test_types_come_from_the_stream() -> None:
    stream = StreamConfig.model_validate({"name": "S", "topics": ("t",), "properties": {"a": "long", "p.to": "binary"}})
    filter = compile_filter(FilterConfig(sql="a = 1 AND p.to = 'x' AND b = 'y'"), stream)
    assert filter is not None
    assert {(column.name, getattr(column, "type", None)) for column in filter.columns} == {
        ("a", "long"),
        ("to", "binary"),
        ("b", "string"),
    }
