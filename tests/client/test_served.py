"""Subscriptions to consumers that a service runs: the whole way there and back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import islice

import pytest

import overlay
from overlay.client import Client, UnknownConsumer
from overlay.client.subscribe.message import Message
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, AckClock, Scene, ending_ack_waits, produce, serve

EXPLICIT = {"ack_policy": "explicit", "ack_wait": "600s"}


@pytest.fixture
def source(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The topic of stream S."""
    topic = new_topic()
    scene.add_stream("S", topic)
    return topic


def await_pending(client: Client, count: int) -> None:
    """Wait until the service waits for so many acks."""
    wait_until(
        lambda: client.control.info("S", "late").num_ack_pending == count, DEADLINE_S, f"{count} messages are pending"
    )


def test_every_word_is_heard(scene: Scene, source: str, ack_clock: AckClock) -> None:
    scene.add_consumer("S", "late", "t.a", **EXPLICIT)
    produce(scene.bootstrap, source, ["a", "b"] * 50)
    client = overlay.open(scene.folder)
    with serve(scene) as served, client.subscribe("late") as messages, ExitStack() as stack:
        found: list[tuple[int, int]] = []
        for message in messages:
            metadata = message.metadata
            found.append((metadata.sequence, metadata.num_delivered))
            settle(message, metadata.sequence, metadata.num_delivered)
            if len(found) == 51:
                await_pending(client, 1)
                stack.enter_context(ending_ack_waits(served, ack_clock, 2))
            if len(found) == 52:
                break
        again = [pair for pair in found if pair[1] > 1]
        assert sorted(again) == [(11, 2), (13, 2)]
        assert {sequence for sequence, _ in found} == set(range(1, 100, 2))
        await_pending(client, 0)
    client.close()


def settle(message: Message, sequence: int, deliveries: int) -> None:
    if sequence == 11 and deliveries == 1:
        message.nak()
    elif sequence == 13 and deliveries == 1:
        return  # comes again after ack_wait
    elif sequence == 15:
        message.term("broken")
    elif sequence == 17:
        message.in_progress()
        message.ack_sync(DEADLINE_S)
    else:
        message.ack()


async def ack_odd(client: Client) -> list[int]:
    """The stream sequences of ten messages whose acks were answered; those between them are left."""
    answered: list[int] = []
    async with client.subscribe("late") as messages:
        async for message in messages:
            if message.metadata.sequence % 2:
                await message.ack_sync(DEADLINE_S)
                answered.append(message.metadata.sequence)
            if len(answered) == 10:
                break
    return answered


def test_an_answered_ack_outlives_the_service(scene: Scene, source: str, ack_clock: AckClock) -> None:
    scene.add_consumer("S", "late", **EXPLICIT)
    produce(scene.bootstrap, source, ["a"] * 20)
    client = overlay.open(scene.folder)
    with serve(scene):
        assert asyncio.run(ack_odd(client)) == list(range(1, 20, 2))
    client.close()
    rest: set[int] = set()
    with serve(scene) as served, ending_ack_waits(served, ack_clock, 10), client.subscribe("late") as messages:
        for message in messages:
            rest.add(message.metadata.sequence)
            message.ack_sync(DEADLINE_S)
            if len(rest) == 10:
                break
    client.close()
    assert rest == set(range(2, 21, 2))


def test_a_consumer_that_only_the_service_knows(scene: Scene, source: str) -> None:
    produce(scene.bootstrap, source, ["a"] * 5)
    with serve(scene):
        client = overlay.open(bootstrap=scene.bootstrap, prefix=scene.prefix)
        output = f"{scene.prefix}-asked"
        client.control.create("S", durable_name="asked", deliver_subject=output, ack_policy="explicit")
        with client.subscribe("asked") as messages:
            for message in islice(messages, 5):
                message.ack()
        with pytest.raises(UnknownConsumer, match="asked"):
            client.subscribe("askde")
        client.close()


@pytest.mark.parametrize("is_open", [False, True], ids=["a loop", "an event loop"])
async def test_a_requested_consumer_is_read_without_a_service(scene: Scene, source: str, is_open: bool) -> None:
    produce(scene.bootstrap, source, ["a", "b"] * 3)
    with serve(scene), overlay.open(scene.folder) as client:
        output = f"{scene.prefix}-asked"
        client.control.create(
            "S", durable_name="asked", deliver_subject=output, ack_policy="none", filter_subject="t.a"
        )
    with overlay.open(scene.folder) as client:
        if is_open:
            found = [batch async for batch in client.read_async(consumer="asked", columns=["subject"])]
        else:
            found = await asyncio.to_thread(lambda: list(client.read(consumer="asked", columns=["subject"])))
        assert [subject for batch in found for subject in batch["subject"].to_pylist()] == ["t.a"] * 3
        with pytest.raises(UnknownConsumer, match="Did you mean asked"):
            client.read(consumer="askde")


def test_info_shows_every_ack_that_was_answered(scene: Scene, source: str) -> None:
    """At once: what the service tells is as new as what it has committed."""
    scene.add_consumer("S", "late", **EXPLICIT)
    produce(scene.bootstrap, source, ["a"] * 10)
    with serve(scene), overlay.open(scene.folder) as client, client.subscribe("late") as messages:
        for number, message in enumerate(islice(messages, 10), 1):
            message.ack_sync(DEADLINE_S)
            info = client.control.info("S", "late")
            assert (info.num_ack_pending, info.ack_floor.stream_seq) == (10 - number, number)
            assert (info.delivered.stream_seq, info.num_pending) == (10, 0)
