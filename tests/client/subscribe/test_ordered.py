"""Ordered consumers against a service that stays, goes and comes back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

import overlay
from overlay.client import BadOrder, Client, ConcurrentIteration, ConsumerInfo, Control, Refused
from overlay.client.subscribe import ordered
from overlay.client.subscribe.intake import RecordIntake
from overlay.client.subscribe.message import Delivered
from overlay.client.subscribe.order import Order, Reason, Verdict
from overlay.client.subscribe.target import Target
from overlay.kafka.properties import Properties
from tests.support.kafka import NewTopicFixture, remove_records
from tests.support.stalls import Stalls
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, produce, serve

SILENT_MS = 500
"""A stall of this length may make a consumer with a heartbeat of 500 ms look silent."""


@pytest.fixture
def source(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The topic of stream S."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "idle", "t.nothing")
    return topic


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[Reason]:
    """Why ordered consumers begin anew, in order. On a machine that stalls, silence may be a reason at any time."""
    found: list[Reason] = []
    give_up = Order._give_up

    def note_and_give_up(order: Order, reason: Reason) -> Verdict:
        found.append(reason)
        return give_up(order, reason)

    monkeypatch.setattr(Order, "_give_up", note_and_give_up)
    return found


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


def test_a_consumer_that_is_deleted_is_made_anew(scene: Scene, source: str, reasons: list[Reason]) -> None:
    produce(scene.bootstrap, source, ["a"] * 10)
    with serve(scene):
        client = open_client(scene)
        with Stalls(scene.bootstrap) as stalls, client.ordered("S", idle_heartbeat="500ms") as messages:
            found = list(islice(messages, 10))
            client.control.delete("S", messages.consumer)
            produce(scene.bootstrap, source, ["a"] * 10)
            found += islice(messages, 10)
            assert (messages.state.renewals, messages.state.reason) == (len(reasons), Reason.SILENCE)
            assert {*reasons} == {Reason.SILENCE}
        assert len(reasons) == 1 or stalls.longest_ms >= SILENT_MS
        client.close()
    assert read_sequences(found) == list(range(1, 21))


def test_a_gap_makes_it_begin_anew_behind_the_last_good_message(
    scene: Scene, source: str, reasons: list[Reason], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The private topic loses the first deliveries of a consumer before the client reads them."""
    lost: list[str] = []

    def lose_and_read(kafka: Properties, target: Target, *arguments: Any, **options: Any) -> RecordIntake:
        # what the client has fetched cannot be lost any more, so it is lost before the client opens its reader
        if Reason.GAP not in reasons:
            lost.append(target.head.consumer)
            third = await_delivery(scene, target, 3)
            remove_records(scene.bootstrap, target.topic, 0, third + 1)
        return RecordIntake(kafka, target, *arguments, **options)

    produce(scene.bootstrap, source, ["a"] * 10)
    with serve(scene):
        client = open_client(scene)
        with Stalls(scene.bootstrap) as stalls, client.ordered("S", idle_heartbeat="500ms") as messages:
            found = list(islice(messages, 10))
            monkeypatch.setattr(ordered, "RecordIntake", lose_and_read)
            client.control.delete("S", messages.consumer)
            produce(scene.bootstrap, source, ["a"] * 10)
            found += islice(messages, 10)
            assert (messages.state.renewals, messages.state.reason) == (len(reasons), reasons[-1])
            assert (reasons[0], reasons.count(Reason.GAP)) == (Reason.SILENCE, 1)
            assert {*reasons} == {Reason.SILENCE, Reason.GAP}
            assert lost and messages.consumer not in lost
            assert messages.state.stream_seq == 20
            assert messages.state.consumer_seq == 10 or reasons[-1] is Reason.SILENCE
        assert reasons == [Reason.SILENCE, Reason.GAP] or stalls.longest_ms >= SILENT_MS
        client.close()
    assert read_sequences(found) == list(range(1, 21))


def await_delivery(scene: Scene, target: Target, consumer_seq: int) -> int:
    """Wait for a delivery of a consumer, and return its offset. A member of the reader group makes the consumer deliver."""
    settings = {"bootstrap.servers": scene.bootstrap, "group.id": target.group, "enable.auto.commit": False}
    wanted = target.head.consumer, consumer_seq
    with closing(Consumer(settings)) as member, CommittedReader(scene.bootstrap, target.topic) as reader:
        member.subscribe([target.topic])

        def find() -> list[int]:
            member.poll(0)
            deliveries = [seen for seen in reader.read() if seen.header(b"Nats-Reply-To")]
            return [seen.offset for seen in deliveries if (seen.token.consumer, seen.token.consumer_sequence) == wanted]

        return wait_until(find, DEADLINE_S, f"{wanted[0]} delivers message {consumer_seq}")[0]


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
        "import sys, overlay\n"
        f"for message in overlay.open({str(scene.folder)!r}).ordered('S', inactive_threshold='2s'):\n"
        "    print(flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    with serve(scene):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reading:
            try:
                assert reading.stdout is not None
                assert reading.stdout.readline() == b"\n"
                # while it reads: two seconds after its end the topic may be gone
                wait_until(lambda: len(list_private(scene)) == 1, DEADLINE_S, "it has a private topic")
            finally:
                reading.kill()
        assert reading.returncode == -signal.SIGKILL
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


class Gate:
    """Holds up the next request to add a consumer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_shut = False
        self.is_there, self.opened = threading.Event(), threading.Event()
        add = Control.add

        def wait_and_add(control: Control, stream: str, config: Mapping[str, Any]) -> ConsumerInfo:
            if self.is_shut:
                self.is_shut = False
                self.is_there.set()
                self.opened.wait(DEADLINE_S)
            return add(control, stream, config)

        monkeypatch.setattr(Control, "add", wait_and_add)


def test_closing_during_a_renewal_leaves_nothing_behind(
    scene: Scene, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop is about to ask for the next consumer when another thread closes."""
    gate = Gate(monkeypatch)
    produce(scene.bootstrap, source, ["a"] * 3)
    with serve(scene), ThreadPoolExecutor(2) as threads:
        client = open_client(scene)
        messages = client.ordered("S", idle_heartbeat="500ms")
        found = list(islice(messages, 3))
        gate.is_shut = True
        client.control.delete("S", messages.consumer)
        looping = threads.submit(list, messages)
        assert gate.is_there.wait(DEADLINE_S)
        closing = threads.submit(messages.close)
        wait([closing], timeout=2)  # before, it was over by now
        gate.opened.set()
        closing.result(DEADLINE_S)
        assert looping.result(DEADLINE_S) == []
        assert read_sequences(found) == [1, 2, 3]
        assert [info.name for info in client.control.consumers("S")] == ["idle"]
        wait_until(lambda: list_private(scene) == [], DEADLINE_S, "the private topic is gone")
        client.close()


async def test_many_that_wait_in_a_loop_can_be_closed(scene: Scene, source: str) -> None:
    """More than the loop has default threads: none of them is taken by a wait for messages."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with serve(scene):
        client = open_client(scene)
        several = [client.ordered("S", idle_heartbeat="60s") for _ in range(3)]
        waiting = [asyncio.ensure_future(anext(aiter(messages))) for messages in several]
        await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S / 2):  # before a heartbeat ends a wait
            for messages in several:
                await messages.__aexit__(None, None, None)
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [StopAsyncIteration] * 3
        client.close()


async def test_a_wait_that_is_given_up_loses_nothing(scene: Scene, source: str) -> None:
    with serve(scene):
        client = open_client(scene)
        messages = await asyncio.to_thread(client.ordered, "S")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(aiter(messages))
        await asyncio.to_thread(produce, scene.bootstrap, source, ["a"] * 5)
        async with asyncio.timeout(DEADLINE_S):
            found = [await anext(aiter(messages)) for _ in range(5)]
        assert read_sequences(found) == [1, 2, 3, 4, 5]
        assert messages.state.renewals == 0
        await asyncio.to_thread(messages.close)
        client.close()


def test_two_loops_on_an_ordered_consumer(scene: Scene, source: str) -> None:
    with serve(scene), ThreadPoolExecutor(1) as threads:
        client = open_client(scene)
        with client.ordered("S") as messages:
            first = threads.submit(next, iter(messages))
            wait_until(lambda: messages._turn._lock.locked(), DEADLINE_S, "the first loop waits")
            with pytest.raises(ConcurrentIteration, match="ordered consumer of S"):
                next(iter(messages))
            produce(scene.bootstrap, source, ["a"])
            assert read_sequences([first.result(DEADLINE_S)]) == [1]
        client.close()
