"""Pull consumers in Python, served by a service: fetched in batches, and in loops that end."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

import overlay
from overlay.client import BadQuestion, Client, NoAnswer
from overlay.client.control.inbox import NoService
from overlay.client.subscribe.ack_sender import Closed
from overlay.client.subscribe.pulling import PullConsumer
from tests.client.deliveries import list_subscribing
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, produce, serve
from tests.worker.scenes import scene as scene

pytestmark = pytest.mark.usefixtures("no_thread_of_a_subscription_is_left")
PULLED = {"deliver_subject": "", "ack_policy": "explicit", "ack_wait": "60s"}


@pytest.fixture
def source(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The topic of stream S, which has a pull consumer `work`."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "work", "t.a", **PULLED, max_batch=40)
    return topic


@pytest.fixture
def client(scene: Scene, source: str) -> Iterator[Client]:
    with overlay.open(scene.folder) as opened:
        yield opened


def count_pending(client: Client, name: str = "work") -> tuple[int, int | None]:
    """How many messages wait for their acks, and how many for their delivery."""
    info = client.control.info("S", name)
    return info.num_ack_pending, info.num_pending


def await_pending(client: Client, count: int) -> None:
    wait_until(lambda: count_pending(client)[1] == count, DEADLINE_S, f"{count} messages wait")


def test_messages_are_fetched_and_settled(scene: Scene, source: str, client: Client) -> None:
    produce(scene.bootstrap, source, ["a", "b"] * 60)
    with serve(scene):
        # more than one request may ask for; and nothing holds the consumer but its messages
        found = client.pull("work").fetch(50, timeout=DEADLINE_S)
        assert [message.value for message in found] == [str(2 * number).encode() for number in range(50)]
        first = found[0]
        assert (first.subject, first.headers, first.header("to")) == ("t.a", [("to", b"a")], b"a")
        assert (first.metadata.sequence, first.metadata.num_delivered) == (1, 1)
        # not of the source, where the message is at its sequence less one
        assert first.place[0] == f"{client.control.prefix}.replies"
        for message in found[1:]:
            message.ack()
        first.nak()
        wait_until(lambda: count_pending(client) == (1, 10), DEADLINE_S, "all but the first are settled")
        with client.pull("work", stream="S") as work:
            rest = work.fetch(11, timeout=DEADLINE_S)
            began = time.monotonic()
            assert work.fetch(50, timeout=0.5) == []
            assert 0.5 <= time.monotonic() - began < DEADLINE_S
            assert sorted(int(message.data) for message in rest) == [0, *range(100, 120, 2)]
            assert work.fetch(1, timeout=0) == []
            for message in rest:
                message.ack_sync(DEADLINE_S)
        with pytest.raises(Closed):
            work.fetch(1)
        assert count_pending(client) == (0, 0)


def drain(work: PullConsumer, found: list[int], count: int) -> None:
    """Take so many messages by loops that end when nothing comes: on a busy machine the first may end too early."""

    def has_all() -> bool:
        found.extend(int(message.data) for message in work)
        return len(found) >= count

    wait_until(has_all, DEADLINE_S, f"{count} have come")


def test_a_loop_ends_when_nothing_comes(scene: Scene, source: str, client: Client) -> None:
    produce(scene.bootstrap, source, ["a"] * 30)
    with serve(scene), client.pull("work", batch=20, idle=0.5) as work:
        await_pending(client, 30)
        found = []
        for message in work:
            message.ack()
            found.append(int(message.data))
            if len(found) == 5:
                break
        # what the loop had asked for is not lost
        found += [int(message.data) for message in work.fetch(5, timeout=0)]
        drain(work, found, 30)
        assert found == list(range(30))
        produce(scene.bootstrap, source, ["a"] * 3)
        await_pending(client, 3)
        found.clear()
        drain(work, found, 3)
        assert found == [0, 1, 2]
        assert list(work) == []


async def test_the_same_in_an_event_loop(scene: Scene, source: str, client: Client) -> None:
    produce(scene.bootstrap, source, ["a"] * 30)
    with serve(scene):
        await_pending(client, 30)
        async with client.pull("work", batch=20, idle=0.5) as work:
            found = await work.fetch_async(5, timeout=DEADLINE_S)
            async with asyncio.timeout(DEADLINE_S):
                # on a busy machine a loop may end too early
                while len(found) < 30:
                    async for message in work:
                        await message.ack()
                        found.append(message)
            assert [int(message.data) for message in found] == list(range(30))
            for message in found[:5]:
                await message.ack_sync(DEADLINE_S)
    assert "overlay-acks" not in list_subscribing()


def test_a_loop_outlives_its_service(scene: Scene, source: str, client: Client) -> None:
    produce(scene.bootstrap, source, ["a"] * 5)
    work = client.pull("work", idle=DEADLINE_S)
    messages = iter(work)
    with serve(scene):
        assert next(messages).data == b"0"
    with pytest.raises(NoService, match="no service runs"):
        client.pull("work").fetch(1, timeout=0.5)
    with serve(scene):
        produce(scene.bootstrap, source, ["a"] * 2)
        assert [next(messages).data for _ in range(6)] == [b"1", b"2", b"3", b"4", b"0", b"1"]
    work.close()
    assert issubclass(NoService, NoAnswer)


def test_what_cannot_be_pulled(scene: Scene, client: Client) -> None:
    scene.add_consumer("S", "pushed", "t.a")
    pushing = overlay.open(scene.folder)
    with pytest.raises(BadQuestion, match=r"delivers to topic .* client\.subscribe\('pushed'\)"):
        pushing.pull("pushed")
    with pytest.raises(BadQuestion, match=r"client\.pull\('work'\)\.fetch"):
        client.subscribe("work")
    for wrong in ({"batch": 0}, {"batch": True}, {"idle": 0}, {"idle": -1.0}, {"idle": "1s"}):
        with pytest.raises(BadQuestion, match="and has to be a"):
            client.pull("work", **wrong)
    with pytest.raises(BadQuestion, match="idle is 0"):
        pushing.subscribe("pushed", idle=0)


def test_no_thread_is_left_by_messages_that_are_dropped(scene: Scene, source: str, client: Client) -> None:
    produce(scene.bootstrap, source, ["a"])
    with serve(scene):
        found = client.pull("work").fetch(1, timeout=DEADLINE_S)
        gc.collect()
        assert list_subscribing() != []
        found[0].ack()
        del found
        gc.collect()
        assert list_subscribing() == []
        wait_until(lambda: count_pending(client) == (0, 0), DEADLINE_S, "the ack was sent before")
