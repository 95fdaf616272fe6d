"""Replays of dead letters: how far they have come, and what a broker that has just started says."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from overlay.client.subscribe.replay import Replay
from overlay.errors import SourceUnavailable
from overlay.kafka.header_names import DEAD_CONSUMER, DEAD_STREAM
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import read_committed

WHO = ("S", "c")
HEADERS = [(DEAD_STREAM, b"S"), (DEAD_CONSUMER, b"c")]


def bury(bootstrap: str, topic: str, count: int) -> None:
    producer = SureProducer(bootstrap)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, headers=HEADERS)
    producer.flush()


def replay(
    bootstrap: str, topics: tuple[str, str], *, limit: int | None = None, again: bool = False
) -> list[bytes | None]:
    """Replay the letters of the first topic to the second one. Return their values."""
    letters, target = topics
    with Replay({"bootstrap.servers": bootstrap}, letters, WHO, letters) as run:
        found = run.read(limit=limit, again=again)
        run.send(found, target)
        return [letter.record.value() for letter in found]


def test_a_replay_that_begins_again_sets_nothing_back(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topics = new_topic(), new_topic()
    bury(bootstrap, topics[0], 3)
    assert replay(bootstrap, topics) == [b"0", b"1", b"2"]
    assert replay(bootstrap, topics, limit=1, again=True) == [b"0"]
    assert replay(bootstrap, topics) == []


def test_a_replay_goes_on_behind_the_letters_that_were_read(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topics = new_topic(), new_topic()
    bury(bootstrap, topics[0], 3)
    assert replay(bootstrap, topics, limit=2) == [b"0", b"1"]
    assert replay(bootstrap, topics) == [b"2"]


def test_more_letters_than_a_producer_holds_are_replayed(bootstrap: str, new_topic: NewTopicFixture) -> None:
    letters, target = new_topic(), new_topic()
    bury(bootstrap, letters, 300)
    kafka = {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": "10"}
    with Replay(kafka, letters, WHO, letters) as run:
        run.send(run.read(), target)
    assert [seen.value for seen in read_committed(bootstrap, target)] == [b"%d" % number for number in range(300)]


class Full(Producer):  # type: ignore[misc]
    """A producer whose queue has no room, as while Kafka is away."""

    def produce(self, *_: Any, **__: Any) -> None:
        raise BufferError("Local: Queue full")


def test_a_producer_that_makes_no_room_is_given_up(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = new_topic(), new_topic()
    bury(bootstrap, topics[0], 1)
    with monkeypatch.context() as patched:
        patched.setattr("overlay.client.subscribe.replay.Producer", Full)
        patched.setattr("overlay.client.subscribe.replay.ROOM_S", 0.2)
        with pytest.raises(SourceUnavailable, match="nothing was replayed: Kafka has taken no message for"):
            replay(bootstrap, topics)
    assert replay(bootstrap, topics) == [b"0"]


def test_a_group_without_a_coordinator_is_asked_again(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """As of a broker that has just started."""
    topics = new_topic(), new_topic()
    bury(bootstrap, topics[0], 1)
    with Replay({"bootstrap.servers": bootstrap}, topics[0], WHO, topics[0]) as run:
        assert run._consumer is not None
        committed = run._consumer.committed
        refusals = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

        class Starting:
            """The client, for which the broker refuses the first questions."""

            @staticmethod
            def committed(places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
                if refusals:
                    raise KafkaException(KafkaError(refusals.pop()))
                return list(committed(places, timeout))

            def __getattr__(self, name: str) -> object:
                return getattr(client, name)

        client, run._consumer = run._consumer, Starting()
        assert [letter.record.value() for letter in run.read()] == [b"0"]
        assert not refusals
