"""Commits for a reader group, when the Kafka client that makes them is lost."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark import interest
from tests.support.kafka import NewTopicFixture


class LostConsumer:
    """A client without brokers: a commit waits for the coordinator, and fails."""

    is_closed = False

    def commit(self, **_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._WAIT_COORD))

    def close(self) -> None:
        self.is_closed = True


class Commits:
    """A client that keeps the offsets that are committed."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def commit(self, offsets: list[TopicPartition], **_: Any) -> None:
        self.offsets += [each.offset for each in offsets]


def tell_progress(listener: interest.InterestListener, topic: str, end: int) -> None:
    source = SimpleNamespace(endOffset=json.dumps({topic: {"0": end}}))
    progress: Any = SimpleNamespace(observedMetrics={"metric": 1}, sources=[source])
    listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_listener_without_a_new_client_tries_again_with_the_next_progress(
    is_torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret's file may be torn, or librdkafka may refuse a torn certificate."""
    lost, found = LostConsumer(), Commits()
    made: list[object] = [lost] if is_torn else [lost, KafkaException(KafkaError(KafkaError._INVALID_ARG))]

    def make(_: object) -> object:
        client = made.pop(0) if made else found
        if isinstance(client, Exception):
            raise client
        return client

    monkeypatch.setattr(interest, "Consumer", make)
    password = tmp_path / "password"
    password.write_text("first")
    listener = interest.InterestListener({"bootstrap.servers": "h:1", "sasl.password": f"file:{password}"}, "t", "g")
    listener.names.add("metric")
    if is_torn:
        password.write_text("")
    tell_progress(listener, "t", 5)
    assert not lost.is_closed
    password.write_text("second")
    for end in (7, 9):
        tell_progress(listener, "t", end)
    assert found.offsets == [9]
    assert lost.is_closed


def test_a_commit_after_one_that_failed_uses_another_client(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, topic = LostConsumer(), new_topic()
    made = iter([lambda _: lost, Consumer])
    monkeypatch.setattr(interest, "Consumer", lambda settings: next(made)(settings))
    kafka = {"bootstrap.servers": bootstrap}
    listener = interest.InterestListener(kafka, topic, topic)
    listener.names.add("metric")
    for end in (5, 7):
        tell_progress(listener, topic, end)
    (found,) = Consumer({**kafka, "group.id": topic}).committed([TopicPartition(topic, 0)], timeout=30)
    assert found.offset == 7
    assert lost.is_closed
