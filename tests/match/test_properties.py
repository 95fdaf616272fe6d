"""Where each name of a filter is read from."""

from __future__ import annotations

import pytest

from overlay.config import StreamConfig
from overlay.field import parse_field
from overlay.filter import compile_sql
from overlay.match.properties import Given, Source, find_sources, list_columns

STREAM = StreamConfig.model_validate(
    {
        "name": "S",
        "topics": ("t",),
        "properties": {
            "delay": "double",
            "tail": {"type": "string", "from": "{value:a.tail}"},
            "place": {"type": "string", "from": "{topic}"},
            "p.message_id": "long",
            "properties.to": {"type": "string", "from": "{key}"},
            "h.priority": {"type": "double", "from": "{header:prio}"},
        },
    }
)


@pytest.mark.parametrize(
    ("sql", "fields", "given", "type"),
    [
        ("delay > 1", ["{header:delay}"], None, "double"),
        ("carrier = 'AA'", ["{header:carrier}"], None, "string"),
        ("[two words] = 'AA'", ["{header:two words}"], None, "string"),
        ("tail = 'N'", ["{value:a.tail}"], None, "string"),
        ("place = 't'", [], Given.TOPIC, "string"),
        ("p.message_id = 1", ["{header:message_id}", "{header:message-id}"], None, "long"),
        ("p.correlation_id = 'x'", ["{header:correlation_id}", "{header:correlation-id}"], None, "string"),
        ("p.group_sequence = 1", ["{header:group_sequence}", "{header:group-sequence}"], None, "long"),
        ("p.subject = 'x'", ["{header:subject}"], Given.SUBJECT, "string"),
        ("p.creation_time > 1", ["{header:creation_time}", "{header:creation-time}"], Given.TIMESTAMP, "timestamp"),
        ("p.group_id = 'x'", ["{header:group_id}", "{header:group-id}", "{key}"], None, "string"),
        ("p.to = 'x'", ["{key}"], None, "string"),
        ("h.priority > 3", ["{header:prio}"], None, "double"),
    ],
)
def test_sources(sql: str, fields: list[str], given: Given | None, type: str) -> None:
    ((column, source),) = find_sources(list_columns(compile_sql(sql, STREAM.properties)), STREAM.properties).items()
    assert source == Source(tuple(map(parse_field, fields)), given)
    assert column.type == type


def test_without_declarations() -> None:
    columns = list_columns(compile_sql("p.to = 't' AND h.priority = 4", {}))
    assert [*find_sources(columns, {}).values()] == [
        Source((parse_field("header:to"),), Given.TOPIC),
        Source((parse_field("header:priority"),)),
    ]
