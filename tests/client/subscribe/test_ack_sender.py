"""Acks whose Kafka client is lost: another one sends them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from overlay.client.subscribe import ack_sender
from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.ack_sender import AckSender
from overlay.client.subscribe.acking import Head
from overlay.config.consumer import AckPolicy
from overlay.consumer.acks import Verb
from overlay.errors import OverlayError
from overlay.kafka.confluent import Contact
from tests.client.deliveries import DEADLINE_S
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until

TOKEN = b"$JS.ACK._.1x1.S.c.1.7.1.0.0"


def test_what_a_lost_client_has_not_sent_another_one_sends(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    contacts: list[Contact] = []

    def make(settings: dict[str, Any]) -> Producer:
        made.append(settings)
        # no broker listens at the first one's address
        at = {} if len(made) > 1 else {"bootstrap.servers": "127.0.0.1:1"}
        return Producer({**settings, **at, "enable.idempotence": True})

    def contact() -> Contact:
        contacts.append(Contact())
        return contacts[-1]

    monkeypatch.setattr(ack_sender, "Producer", make)
    monkeypatch.setattr(ack_sender, "Contact", contact)
    topic, kafka, failures = new_topic(), {"bootstrap.servers": bootstrap}, list[OverlayError]()
    acks = AckSender(kafka, topic, Head("S", "c"), AckPolicy.EXPLICIT, AckAnswers(kafka, topic), failures.append)
    acks.tell(TOKEN, Verb.NAK, "later")
    wait_until(lambda: len(acks._producer), DEADLINE_S, "the first client has it")
    monkeypatch.setattr(contacts[0], "_missed", 2)
    wait_until(lambda: len(made) > 1, DEADLINE_S, "another client is made")
    acks.close()
    consumer = Consumer(kafka | {"group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    record = wait_until(lambda: consumer.poll(0.2), DEADLINE_S, "the nak arrives")
    consumer.close()
    assert (record.value(), dict(record.headers())["Nats-Reply-To"]) == (b"-NAK later", TOKEN)
    assert failures == []
