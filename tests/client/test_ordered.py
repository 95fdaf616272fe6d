"""Ordered consumers against a service that stays, goes and comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from itertools import islice

import pytest
from confluent_kafka.admin import AdminClient

import overlay
from overlay.client import BadOrder, Client, Refused
from overlay.client.message import Delivered
from overlay.client.order import Reason
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, produce, serve


@pytest.fixture
def source(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The topic of stream S."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "idle", "t.nothing")
    return topic


def open_client(scene: Scene) -> Client:
    return overlay.open(scene.folder)


def list_private(scene: Scene) -> list[str]:
    topics = AdminClient({"bootstrap.servers": scene.bootstrap}).list_topics(timeout=DEADLINE_S).topics
    return [name for name in topics if name.startswith(f"{scene.prefix}-ordered-")]


def read_sequences(messages: list[Delivered]) -> list[int]:
    return [message.metadata.sequence for message in messages]


def test_everything_in_order_and_nothing_is_left_behind(scene: Scene, source: str) -> None:
    produce(scene.bootstrap, source, ["a", "b"] * 100)
    with serve(scene):
        client = open_client(scene)
        with client.ordered("S", filter_subjects=["t.a"]) as messages:
            found = list(islice(messages, 40)) + list(islice(messages, 60))
            assert (messages.state.stream_seq, messages.state.consumer_seq, messages.state.renewals) == (199, 100, 0)
            assert len(list_private(scene)) == 1
        assert read_sequences(found) == list(range(1, 200, 2))
        assert [message.subject for message in found] == ["t.a"] * 100
        assert list(messages) == []
        wait_until(lambda: list_private(scene) == [], DEADLINE_S, "the private topic is gone")
        assert [info.name for info in client.control.consumers("S")] == ["idle"]
        client.close()


def test_a_consumer_that_is_deleted_is_made_anew(scene: Scene, source: str) -> None:
    produce(scene.bootstrap, source, ["a"] * 10)
    with serve(scene):
        client = open_client(scene)
        with client.ordered("S", idle_heartbeat="500ms") as messages:
            found = list(islice(messages, 10))
            client.control.delete("S", messages.consumer)
            produce(scene.bootstrap, source, ["a"] * 10)
            found += islice(messages, 10)
            assert (messages.state.renewals, messages.state.reason) == (1, Reason.SILENCE)
        client.close()
    assert read_sequences(found) == list(range(1, 21))


async def test_a_restart_in_the_midst(scene: Scene, source: str) -> None:
    """Messages that come while the service is away, and before it is back, are all there."""
    produce(scene.bootstrap, source, ["a"] * 10)
    with serve(scene):
        client = open_client(scene)
        messages = await asyncio.to_thread(client.ordered, "S", idle_heartbeat="500ms", inactive_threshold="60s")
        found: list[Delivered] = []

        async def take(count: int) -> None:
            async for message in messages:
                found.append(message)
                if len(found) == count:
                    return

        await asyncio.wait_for(take(10), DEADLINE_S)
    produce(scene.bootstrap, source, ["a"] * 10)
    taking = asyncio.create_task(take(20))
    with serve(scene, wait=False):
        await asyncio.wait_for(taking, DEADLINE_S)
        await asyncio.to_thread(messages.close)
    client.close()
    assert read_sequences(found) == list(range(1, 21))


def test_of_a_process_that_dies_nothing_is_left(scene: Scene, source: str) -> None:
    """Its consumer ends by inactive_threshold, and the private topic with it."""
    produce(scene.bootstrap, source, ["a"] * 5)
    program = (
        "import os, overlay\n"
        f"for message in overlay.open({str(scene.folder)!r}).ordered('S', inactive_threshold='2s'):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    with serve(scene):
        ended = subprocess.run([sys.executable, "-c", program], timeout=DEADLINE_S, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert len(list_private(scene)) == 1
        wait_until(lambda: list_private(scene) == [], DEADLINE_S, "the private topic is gone")
        client = open_client(scene)
        assert [info.name for info in client.control.consumers("S")] == ["idle"]
        client.close()


def test_a_callback(scene: Scene, source: str) -> None:
    produce(scene.bootstrap, source, ["a"] * 5)
    found: list[Delivered] = []
    enough = threading.Event()

    def take(message: Delivered) -> None:
        found.append(message)
        if len(found) == 5:
            enough.set()

    with serve(scene):
        client = open_client(scene)
        with client.ordered("S") as messages:
            thread = messages.start(take)
            assert enough.wait(DEADLINE_S)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        client.close()
    assert read_sequences(found) == [1, 2, 3, 4, 5]


def test_what_is_refused_is_refused_at_once(scene: Scene, source: str) -> None:
    with serve(scene):
        client = open_client(scene)
        with pytest.raises(BadOrder, match="durable_name"):
            client.ordered("S", durable_name="d")
        with pytest.raises(Refused):
            client.ordered("S", filter_subjects=["t.a", "t.*"])
        assert list_private(scene) == []
        client.close()
