"""When a message of the overlay is acked: what the two attributes of Faust's messages tell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from faust import App
from faust.types.tuples import TP, ConsumerMessage

from overlay.client.subscribe.properties import PropertyReader
from overlay.faust.message import AgentMessage
from overlay.faust.tracking import DeliveredEvent, TrackedMessage, track

TOKEN = b"$JS.ACK._.4x1.S.c.1.7.7.1700000000123000000.0"


class Acks:
    """Stands for the sender of acks, and keeps what messages have it send."""

    def __init__(self) -> None:
        self.later: list[bytes] = []
        self.said: list[str] = []

    def ack_later(self, token: bytes) -> None:
        self.later.append(token)

    def ack(self, token: bytes) -> None:
        self.said.append("+ACK")

    def tell(self, token: bytes, verb: Any, text: str = "") -> None:
        self.said.append(verb.value.decode())


class Consumer:
    """Marks a message as Faust's consumer does."""

    def ack(self, message: ConsumerMessage) -> bool:
        message.acked = True
        return True


class ConsumingApp:
    consumer = Consumer()


@pytest.fixture
def acks() -> Acks:
    return Acks()


def make_message(acks: Acks, agents: int = 1) -> TrackedMessage:
    headers = [("Nats-Subject", b"t.a"), ("Nats-Reply-To", TOKEN)]
    record = ConsumerMessage("out", 0, 5, 1.0, 1, cast(Any, headers), b"key", b"value", None, tp=TP("out", 0))
    record.incref(agents)
    message = AgentMessage(record, TOKEN, cast(Any, acks), PropertyReader({}), lambda record: record.value)
    return track(record, message)


def make_event(acks: Acks, agents: int = 1) -> DeliveredEvent:
    return DeliveredEvent(cast(App, ConsumingApp()), make_message(acks, agents))


def test_a_message_is_acked_when_all_agents_are_done(acks: Acks) -> None:
    event = make_event(acks, agents=2)
    message = event.value
    assert (message.subject, message.data, message.key, message.content) == ("t.a", b"value", b"key", b"value")
    assert message.place == ("out", 0, 5)
    event.ack()
    assert (acks.later, message.is_settled) == ([], False)
    event.ack()
    event.ack()
    assert (acks.later, message.is_settled) == ([TOKEN], True)


async def loop_over(event: DeliveredEvent) -> AsyncIterator[AgentMessage]:
    """Hand one event out and acknowledge it afterwards, as a stream does."""
    try:
        yield event.value
    finally:
        event.ack()


async def test_a_loop_that_is_left_acks_nothing(acks: Acks) -> None:
    event = make_event(acks)
    loop = loop_over(event)
    await anext(loop)
    await loop.aclose()  # type: ignore[attr-defined] # as Python does when the body raises or breaks
    assert event.message.acked
    assert acks.later == []


async def test_an_error_under_way_elsewhere_is_no_failure(acks: Acks) -> None:
    try:
        raise RuntimeError
    except RuntimeError:
        async for _ in loop_over(make_event(acks)):
            pass
    assert acks.later == [TOKEN]


async def test_one_agent_that_fails_has_the_message_redelivered(acks: Acks) -> None:
    event = make_event(acks, agents=2)
    failing = loop_over(event)
    await anext(failing)
    await failing.aclose()  # type: ignore[attr-defined]
    async for _ in loop_over(event):
        pass
    assert event.message.acked
    assert acks.later == []


async def test_verbs_settle_in_place_of_the_ack(acks: Acks) -> None:
    for verb in ("nak", "term", "ack"):
        event = make_event(acks)
        await getattr(event.value, verb)()
        event.ack()
    assert (acks.said, acks.later) == (["-NAK", "+TERM", "+ACK"], [])
    event = make_event(acks)
    event.value.abandon()
    event.ack()
    assert acks.later == []


def test_an_event_that_was_never_handed_out_is_not_acked(acks: Acks) -> None:
    make_event(acks).ack()
    assert acks.later == []


async def test_events_as_contexts(acks: Acks) -> None:
    event = make_event(acks)
    async with event:
        assert event.value.subject == "t.a"
    assert acks.later == [TOKEN]
    failing = make_event(acks)
    with pytest.raises(RuntimeError):
        async with failing:
            assert failing.value.subject == "t.a"
            raise RuntimeError
    assert acks.later == [TOKEN]
