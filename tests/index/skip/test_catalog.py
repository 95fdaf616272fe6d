from __future__ import annotations

from typing import Any

import pytest

from overlay.filter.nodes import Column, Section
from overlay.index.skip.catalog import Known, find_known
from overlay.subject import Pattern
from tests.index.partitions import stream


def known(name: str, type: str = "string", section: Section = Section.APPLICATION, **config: Any) -> Known:
    column = Column(section, name, type)
    return find_known(stream(**config), [column])[column]


def test_what_is_listed() -> None:
    config: dict[str, Any] = {
        "properties": {"a": "string", "b": "long", "p.message_id": "string"},
        "index": {"terms": ["a", "p.message_id"], "zones": ["a", "b"]},
    }
    assert known("a", **config) == Known("a", has_terms=True, has_zone=True)
    assert known("b", "long", **config) == Known("b", has_zone=True)
    assert known("message_id", "string", Section.PROPERTIES, **config) == Known("p.message_id", has_terms=True)
    assert known("message_id", **config) == known("c", **config) == Known()


@pytest.mark.parametrize(
    ("declared", "type", "is_time"),
    [
        ({"type": "timestamp", "from": "{timestamp}"}, "timestamp", True),
        ({"type": "long", "from": "{timestamp}"}, "long", True),
        ({"type": "string", "from": "{timestamp}"}, "string", False),
        ({"type": "timestamp"}, "timestamp", False),
    ],
)
def test_the_timestamp_of_the_record(declared: dict[str, str], type: str, is_time: bool) -> None:
    assert known("at", type, properties={"at": declared}).is_time is is_time


def test_creation_time_may_be_a_header() -> None:
    assert not known("creation_time", "timestamp", Section.PROPERTIES).is_time


@pytest.mark.parametrize(
    ("subject", "source", "is_subject"),
    [
        ({"header": "s"}, "{header:s}", True),
        ({"header": "s"}, "{header:t}", False),
        ({"key": True}, "{key}", True),
        ({"topic": True}, "{topic}", True),
        ({"topic": True}, "{key}", False),
        ({"template": "{key}"}, "{key}", False),
    ],
)
def test_what_is_the_subject(subject: dict[str, Any], source: str, is_subject: bool) -> None:
    properties = {"x": {"type": "string", "from": source}}
    assert known("x", properties=properties, subject=subject).is_subject is is_subject
    number = {"x": {"type": "long", "from": source}}
    assert not known("x", "long", properties=number, subject=subject).is_subject


@pytest.mark.parametrize(
    ("template", "hole"),
    [
        ("flights.{header:x}.{key}", 1),
        ("{header:x}.b", 0),
        ("{key}.{header:y}.{header:x}", 2),
        ("flights.x{header:x}", -1),
        ("flights.{header:x}{key}", -1),
        ("flights.{value:x}", -1),
        ("flights.{key}", -1),
    ],
)
def test_which_token_a_header_is(template: str, hole: int) -> None:
    found = known("x", properties={"x": "string"}, subject={"template": template})
    assert found.hole == hole
    assert (found.cover is None) == (hole < 0)


def test_subjects_of_a_value() -> None:
    token = known("x", properties={"x": "string"}, subject={"template": "f.{header:x}.{key}"})
    assert token.find_subjects(b"JFK") == Pattern("f.JFK.*")
    assert token.find_subjects(b"a.*") == Pattern("f.a%2E%2A.*")
    assert token.find_subjects(b"") is token.find_subjects(b"\xff") is None
    whole = known("subject", "string", Section.PROPERTIES, subject={"header": "subject"})
    assert whole.find_subjects(b"a.b") == Pattern("a.b")
    assert whole.find_subjects(b"a.*") is whole.find_subjects(b"a..b") is None
