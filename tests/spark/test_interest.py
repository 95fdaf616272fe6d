"""Commits for a reader group, when the Kafka client that makes them is lost."""

from __future__ import annotations

import json
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
        source = SimpleNamespace(endOffset=json.dumps({topic: {"0": end}}))
        progress: Any = SimpleNamespace(observedMetrics={"metric": 1}, sources=[source])
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    (found,) = Consumer({**kafka, "group.id": topic}).committed([TopicPartition(topic, 0)], timeout=30)
    assert found.offset == 7
    assert lost.is_closed
