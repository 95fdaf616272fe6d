"""Acks whose Kafka client is lost: another one sends them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError

from overlay.client.subscribe import ack_sender
from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.ack_sender import AckSender
from overlay.client.subscribe.acking import Head
from overlay.config.consumer import AckPolicy
from overlay.consumer.acks import Verb
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.confluent import Contact
from overlay.kafka.properties import Properties, for_confluent
from tests.client.deliveries import DEADLINE_S
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until

TOKEN = b"$JS.ACK._.1x1.S.c.1.7.1.0.0"


class Scene:
    """A sender of acks whose first Kafka client reaches no broker, and takes no more than one record."""

    def __init__(self, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.made: list[dict[str, Any]] = []
        self._contacts: list[Contact] = []
        self.failures: list[OverlayError] = []
        monkeypatch.setattr(ack_sender, "Producer", self._make)
        monkeypatch.setattr(ack_sender, "Contact", self._make_contact)
        kafka = {"bootstrap.servers": bootstrap}
        head, answers = Head("S", "c"), AckAnswers(kafka, topic)
        self.acks = AckSender(kafka, topic, head, AckPolicy.EXPLICIT, answers, self.failures.append)

    def _make(self, settings: dict[str, Any]) -> Producer:
        self.made.append(settings)
        # no broker listens there
        small = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 1}
        return Producer({**settings, **(small if len(self.made) == 1 else {}), "enable.idempotence": True})

    def _make_contact(self, _: object) -> Contact:
        self._contacts.append(Contact())
        return self._contacts[-1]

    def lose_first(self, *, is_outdated: bool = False) -> None:
        """Have the first client known as lost, or as one with former credentials."""
        wait_until(lambda: len(self.acks._producer), DEADLINE_S, "the first client has a record")
        self._contacts[0].is_outdated = is_outdated
        self._contacts[0]._missed = 0 if is_outdated else 2

    def read(self, count: int) -> list[tuple[bytes, bytes]]:
        """Return body and token of the first records of the ack topic."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._topic})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        found = [wait_until(lambda: consumer.poll(0.2), DEADLINE_S, "a record arrives") for _ in range(count)]
        consumer.close()
        return [(record.value(), dict(record.headers())["Nats-Reply-To"]) for record in found]


@pytest.fixture
def scene(bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(bootstrap, new_topic(), monkeypatch)


@pytest.mark.parametrize("is_outdated", [False, True])
def test_what_a_spent_client_has_not_sent_another_one_sends(scene: Scene, is_outdated: bool) -> None:
    scene.acks.tell(TOKEN, Verb.NAK, "later")
    scene.lose_first(is_outdated=is_outdated)
    wait_until(lambda: len(scene.made) > 1, DEADLINE_S, "another client is made")
    scene.acks.close()
    assert scene.read(1) == [(b"-NAK later", TOKEN)]
    assert scene.failures == []


@pytest.mark.parametrize("error", [SourceUnavailable("password: is missing"), KafkaException(RdKafkaError(-1))])
def test_a_spent_client_stays_while_another_one_cannot_be_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A file with credentials is missing for a moment. No ack is lost, and the thread that sends them goes on."""
    tries: list[int] = []

    def read(kafka: Properties) -> dict[str, str]:
        tries.append(len(scene.made))
        if len(tries) < 3:
            raise error
        return for_confluent(kafka)

    monkeypatch.setattr(ack_sender, "RETRY_S", 0.01)
    monkeypatch.setattr(ack_sender, "for_confluent", read)
    scene.acks.tell(TOKEN, Verb.NAK, "later")
    scene.lose_first()
    wait_until(lambda: len(scene.made) > 1, DEADLINE_S, "another client is made")
    scene.acks.close()
    assert scene.read(1) == [(b"-NAK later", TOKEN)]
    assert (tries, scene.failures) == ([1, 1, 1], [])


def test_a_lost_client_is_replaced_while_acks_never_pause(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.acks._called, "wait", lambda _: True)
    scene.acks.tell(TOKEN, Verb.NAK, "later")
    scene.lose_first()
    wait_until(lambda: len(scene.made) > 1, DEADLINE_S, "another client is made")
    scene.acks.close()
    assert scene.read(1) == [(b"-NAK later", TOKEN)]
    assert scene.failures == []


def test_a_lost_client_is_replaced_while_its_queue_is_full(scene: Scene) -> None:
    for text in ("1", "2", "3"):
        scene.acks.tell(TOKEN, Verb.NAK, text)
    scene.lose_first()
    wait_until(lambda: len(scene.made) > 1, DEADLINE_S, "another client is made")
    scene.acks.close()
    assert scene.read(3) == [(b"-NAK 1", TOKEN), (b"-NAK 2", TOKEN), (b"-NAK 3", TOKEN)]
    assert scene.failures == []
