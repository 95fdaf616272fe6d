"""How a loop over a subscription ends when no acks can be sent any more: by the error that has ended it, or without one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import Message as KafkaRecord

from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.ack_sender import Closed
from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.kind import FlowRequest
from overlay.client.subscribe.message_buffer import Batch, MessageBuffer
from overlay.client.subscribe.ordered import OrderedConsumer
from overlay.client.subscribe.subscription import Subscription
from overlay.client.subscribe.target import Target
from overlay.config.consumer import AckPolicy
from overlay.errors import CredentialsRefused

KAFKA = {"bootstrap.servers": "localhost:1"}
MESSAGE = [("Nats-Subject", b"t.a"), ("Nats-Reply-To", b"$JS.ACK._.1x1.S.c.1.1.1.0.0")]
FLOW = [("Nats-Status", b"100"), ("Nats-Stream", b"S"), ("Nats-Consumer", b"c"), ("Nats-Reply-To", b"$JS.FC.S.c.1")]


class Ended:
    """A sender of acks that has ended."""

    def ack(self, token: bytes) -> None:
        raise Closed("the subscription is closed")

    def answer_flow(self, flow: FlowRequest) -> None:
        raise Closed("the subscription is closed")


@dataclass(slots=True)
class Intake:
    """An intake whose threads have ended, without Kafka."""

    message_buffer: MessageBuffer = field(default_factory=lambda: MessageBuffer(10))
    acks: Ended = field(default_factory=Ended)
    has_joined: bool = True


def make_intake(error: Exception | None, headers: list[tuple[str, bytes]]) -> Intake:
    """An intake with one record left, and the error that has ended it."""
    intake = Intake()
    intake.message_buffer.put(Batch(0, deque([KafkaRecord(topic="out", partition=0, offset=0, headers=headers)]), 1))
    intake.message_buffer.end(error)
    return intake


@dataclass(slots=True)
class Holdings:
    """What an ordered consumer has."""

    stream: str = "S"
    name: str = "c"


@pytest.mark.parametrize("error", [None, CredentialsRefused("no right to read")])
@pytest.mark.parametrize("headers", [MESSAGE, FLOW])
def test_a_subscription(
    error: Exception | None, headers: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a message that `where` leaves out nor a flow control request has to be answered then."""
    intake = make_intake(error, headers)
    monkeypatch.setattr("overlay.client.subscribe.subscription.RecordIntake", lambda *_, **__: intake)
    target = Target(Head("S", "c"), "out", "c", AckPolicy.EXPLICIT)
    messages = Subscription(KAFKA, target, "acks", AckAnswers(KAFKA, "replies"), lambda _: False)
    if error is None:
        assert list(messages) == []
    else:
        with pytest.raises(CredentialsRefused, match="no right to read"):
            list(messages)


def test_an_ordered_consumer() -> None:
    intake = make_intake(None, FLOW)
    ordered = cast(Any, OrderedConsumer.__new__(OrderedConsumer))
    ordered._holdings = Holdings()
    assert list(ordered._select(intake.message_buffer.take(), intake)) == []
