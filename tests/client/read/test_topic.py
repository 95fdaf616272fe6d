"""Streams for topics without a file."""

from __future__ import annotations

import pytest

from overlay.client.read.topic import describe_topic
from overlay.errors import ConfigError
from overlay.field import Field, FieldKind
from overlay.subject import is_subject


@pytest.mark.parametrize("topic", ["flights", "a.b-c_d", "a..b", ".a", "a.", "x" * 249])
def test_every_topic_has_a_subject(topic: str) -> None:
    stream = describe_topic(topic, {})
    subject = stream.subject.rule.build((), topic, 0)
    assert isinstance(subject, str) and is_subject(subject)
    assert (subject == topic) is is_subject(topic)
    assert stream.topic_names == (topic,)
    assert any(pattern.matches(subject) for pattern in stream.patterns)


def test_declared_properties() -> None:
    stream = describe_topic("t", {"delay": "double", "tail": {"type": "string", "from": "value:tail.num"}})
    assert stream.properties["delay"].source == Field(FieldKind.HEADER, "delay")
    assert stream.properties["tail"].source == Field(FieldKind.VALUE, "tail.num")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"delay": "dubble"}, r"properties\.delay\.type: .*Did you mean double"),
        ({"delay": {"type": "long", "from": "{offset}"}}, r"properties\.delay\.from: .*unknown field \{offset\}"),
        ({"delay": {"type": "long", "form": "{key}"}}, r"properties\.delay\.form: .*Did you mean from"),
    ],
)
def test_what_no_file_may_say(declared: dict[str, str | dict[str, str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_topic("t", declared)
