"""Questions and orders to Kafka: what they come to, and that each ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from aiokafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from confluent_kafka import Consumer, TopicPartition

from overlay.errors import SourceUnavailable
from overlay.kafka.admin import Admin, NewTopic, OffsetSpec, new_topic
from overlay.kafka.protocol import Code, TopicsRequest
from tests.support.kafka import DEADLINE_S, NewTopicFixture, await_deletion, produce_values
from tests.support.proxy import Proxy, lead_through, run_proxy
from tests.support.stub import Cut, Stub, run_stub
from tests.support.waiting import wait_until

HANGS_S = 60
"""A test that takes longer waits for something that it must not wait for."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that is open, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield f"127.0.0.1:{door.getsockname()[1]}"


@pytest.mark.usefixtures("short")
async def test_a_broker_that_never_answers(silent: str) -> None:
    """Every question ends as unavailable, none as an error of Python's own."""
    async with Admin({"bootstrap.servers": silent}) as admin:
        for asking in (
            admin.find_cluster(),
            admin.find_topics(["t"]),
            admin.create_topics([new_topic("t", 1, 1, {})]),
            admin.find_bounds([("t", 0)]),
            admin.delete_records("t", 0, 1),
            admin.delete_topic("t"),
            admin.find_committed(["g"]),
            admin.count_members("g"),
        ):
            with pytest.raises(SourceUnavailable, match=r"did not answer within 0\.5 s"):
                await asking


@pytest.mark.usefixtures("short")
async def test_a_closed_port_is_named() -> None:
    async with Admin({"bootstrap.servers": "127.0.0.1:1"}) as admin:
        with pytest.raises(SourceUnavailable, match=r"the cluster: .*127\.0\.0\.1:1"):
            await admin.find_cluster()


@pytest.mark.usefixtures("short")
async def test_groups_are_asked_for_at_once(silent: str) -> None:
    """Without an answer three hundred of them take no longer than one: 0.5 s, not 150."""
    async with Admin({"bootstrap.servers": silent}) as admin, asyncio.timeout(HANGS_S):
        with pytest.raises(SourceUnavailable):
            await admin.find_committed([f"g{number}" for number in range(300)])


async def test_a_silent_address_does_not_hold_up_the_next(
    bootstrap: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 10 * HANGS_S)
    async with Admin({"bootstrap.servers": f"{silent},{bootstrap}"}) as admin, asyncio.timeout(HANGS_S):
        # a broker that answers is asked first from then on: the silent one costs a second once, not each time
        for _ in range(2 * HANGS_S):
            assert await admin.find_cluster()


async def test_a_topic_that_never_comes_is_told(
    admin: Admin, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    assert list(await admin.await_topics([topic])) == [topic]
    # ten seconds pass from each look to the next
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("overlay.kafka.admin.monotonic", lambda: next(clock))
    monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 60.0)
    with pytest.raises(SourceUnavailable, match="not all brokers know of them after 60 s"):
        await admin.await_topics([topic, f"{topic}-not"])


async def test_topics_are_created_trimmed_and_deleted(admin: Admin, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic, impossible = f"{new_topic()}-new", f"{new_topic()}-impossible"
    wanted = [_plan(topic), _plan(impossible, replication=3)]
    created, refused = await admin.create_topics(wanted)
    assert (list(created), list(refused)) == ([topic], [impossible])
    assert refused[impossible].startswith(f"topic {impossible} cannot be created: ")
    assert await admin.create_topics(wanted[:1]) == (created, {})  # it is there already
    facts = (await admin.find_topics([topic, impossible]))[topic]
    assert facts == created[topic]
    assert (facts.partitions, facts.config["retention.ms"]) == (2, "123456")
    assert (await admin.find_topics([topic], with_config=False))[topic].config == {}

    await asyncio.to_thread(produce_values, bootstrap, topic, [b"x"] * 50)
    before = await admin.find_bounds([(topic, 0), (topic, 1)])
    await admin.delete_records(topic, 0, before[topic, 0][1])
    after = await admin.find_bounds([(topic, 0), (topic, 1)])
    assert after == before | {(topic, 0): (before[topic, 0][1],) * 2}
    with pytest.raises(SourceUnavailable, match=f"{topic}-7: "):
        await admin.delete_records(topic, 7, 1)
    with pytest.raises(ValueError, match="no records below -1"):
        await admin.delete_records(topic, 0, -1)

    await admin.delete_topic(topic)
    await admin.delete_topic(topic)
    await asyncio.to_thread(await_deletion, bootstrap, topic)
    assert await admin.find_topics([topic]) == {}
    with pytest.raises(SourceUnavailable, match=f"{topic}-0: .*does not exist"):
        await admin.find_bounds([(topic, 0)])


def _plan(name: str, replication: int = 1) -> NewTopic:
    return new_topic(name, 2, replication, {"retention.ms": "123456"})


async def test_nothing_is_asked_about_nothing(silent: str) -> None:
    async with Admin({"bootstrap.servers": silent}) as admin:
        assert await admin.find_topics([]) == {}
        assert await admin.create_topics([]) == ({}, {})
        assert await admin.find_offsets([], OffsetSpec.latest()) == {}
        assert await admin.find_committed([]) == {}
        assert await admin.count_members_of([]) == {}


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    client.commit(offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False)
    client.close()


async def test_what_many_groups_have_committed(admin: Admin, bootstrap: str, new_topic: NewTopicFixture) -> None:
    one, two = new_topic(3), new_topic()
    groups = [f"{one}-{number}" for number in range(40)]
    commit(bootstrap, groups[0], {(one, 0): 5, (one, 2): 7, (two, 0): 1})
    commit(bootstrap, groups[39], {(one, 0): 6})
    found = await admin.find_committed([*groups, groups[0]])
    assert found.keys() == set(groups)
    assert found[groups[0]] == {one: {0: 5, 2: 7}, two: {0: 1}}
    assert found[groups[39]] == {one: {0: 6}}
    assert all(not found[group] for group in groups[1:39])


async def test_an_admin_that_was_closed_opens_again(admin: Admin, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    for _ in range(2):
        assert await admin.find_bounds([(topic, 0)]) == {(topic, 0): (0, 0)}
        await admin.close()
    assert admin._brokers._idle == {}


async def test_questions_at_once_share_connections(admin: Admin, new_topic: NewTopicFixture) -> None:
    topics = [new_topic() for _ in range(3)]
    await asyncio.gather(*(admin.find_bounds([(topic, 0)]) for topic in topics * 30))
    assert 1 <= sum(len(idle) for idle in admin._brokers._idle.values()) <= 8


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, DEADLINE_S, "the request is on its way")


@contextlib.asynccontextmanager
async def lead(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Admin, Proxy]]:
    """An admin all of whose connections go through a proxy."""
    async with run_proxy(bootstrap) as proxy, Admin({"bootstrap.servers": bootstrap}) as admin:
        lead_through(proxy, monkeypatch)
        yield admin, proxy


async def test_a_connection_that_breaks_under_a_question_about_groups(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question goes to the broker again; librdkafka would end the process now and then."""
    topic = new_topic()
    commit(bootstrap, topic, {(topic, 0): 5})
    async with lead(bootstrap, monkeypatch) as (admin, proxy):
        await admin.find_committed([topic])
        for allowed in (0, 0, 3, 30, 0, 40):
            for question in (admin.find_committed([topic]), admin.count_members_of([topic, "other"])):
                found = await _ask_and_cut(proxy, question, allowed)
                assert found in ({topic: {topic: {0: 5}}}, {topic: 0, "other": 0})


async def _ask_and_cut(proxy: Proxy, question: Coroutine[Any, Any, object], allowed: int) -> object:
    """Return the answer to a question whose connection breaks after so many bytes of the first answer."""
    sent = proxy.up.passed
    proxy.down.allow(allowed)
    asking = asyncio.create_task(question)
    await _until(lambda: proxy.up.passed > sent and proxy.down.shut.is_set())
    proxy.cut()
    return await asyncio.wait_for(asking, DEADLINE_S)


async def test_a_question_without_answer_does_not_hold_up_others(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection answers one question after the other, so each has its own."""
    topic = new_topic()
    async with lead(bootstrap, monkeypatch) as (admin, proxy):
        await admin.find_bounds([(topic, 0)])
        proxy.down.allow(0)
        with monkeypatch.context() as patch, pytest.raises(SourceUnavailable):
            patch.setattr("overlay.kafka.admin.DEADLINE_S", 1.0)
            await admin.find_committed([topic])
        proxy.cut()
        assert await admin.find_committed([topic]) == {topic: {}}
        assert await admin.find_bounds([(topic, 0)]) == {(topic, 0): (0, 0)}


async def test_a_question_that_is_cancelled_leaves_no_answer_behind(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late answer is none to the next question."""
    topic = new_topic()
    commit(bootstrap, topic, {(topic, 0): 5})
    async with lead(bootstrap, monkeypatch) as (admin, proxy):
        await admin.find_committed([topic])
        sent = proxy.up.passed
        proxy.down.allow(0)
        asking = asyncio.create_task(admin.find_bounds([(topic, 0)]))
        await _until(lambda: proxy.up.passed > sent)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        proxy.open()
        assert await admin.find_committed([topic]) == {topic: {topic: {0: 5}}}


def tell_configs(request: Any) -> tuple[Any, ...]:
    """The broker that is asked does not know topics called late."""
    resources: list[tuple[Any, ...]] = [
        (Code.UNKNOWN_TOPIC_OR_PARTITION if name == "late" else 0, None, kind, name, [])
        for kind, name, _ in request.resources
    ]
    return 0, resources


async def test_a_topic_that_the_second_broker_does_not_know_is_left_out() -> None:
    """A new topic comes to brokers at different moments, and a topic may go between two questions."""
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(TopicsRequest, lambda request: stub.tell_topics({name: 0 for _, name, _ in request.topics}))
        stub.on(DescribeConfigsRequest, tell_configs)
        assert list(await admin.find_topics(["there", "late"])) == ["there"]
        assert list(await admin.find_topics(["there", "late"], with_config=False)) == ["late", "there"]


async def test_partitions_are_added_though_a_broker_does_not_know_the_topic_yet() -> None:
    codes = [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE]

    def tell(request: Any) -> tuple[Any, ...]:
        return stub.tell_topics({name: codes.pop(0) for _, name, _ in request.topics or ()})

    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(TopicsRequest, tell)
        stub.on(CreatePartitionsRequest, lambda _: (0, [("t", Code.NONE, None)]))
        await admin.add_partitions("t", 1)
        assert codes == []


async def test_a_deletion_without_an_answer_is_ordered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may carry it out yet; a second order would delete a topic that was created anew in between."""

    def cut(_: Any) -> None:
        raise Cut

    monkeypatch.setattr("overlay.kafka.brokers.LOOK_S", 0.05)
    handlers: list[Callable[[Any], None]] = [lambda _: None, cut]
    for handler in handlers:
        async with run_stub(1) as one, run_stub(2) as two, Admin({"bootstrap.servers": one.address}) as admin:
            one.others, two.others = [two], [one]
            for stub in (one, two):
                stub.on(DeleteTopicsRequest, handler)

            def count(one: Stub = one, two: Stub = two) -> int:
                return one.count(DeleteTopicsRequest) + two.count(DeleteTopicsRequest)

            deleting = asyncio.create_task(admin.delete_topic("t"))
            await _until(lambda count=count: count() > 0)  # type: ignore[misc]
            await asyncio.wait({deleting}, timeout=0.5)
            assert count() == 1
            deleting.cancel()
            await asyncio.gather(deleting, return_exceptions=True)
            with monkeypatch.context() as patch, pytest.raises(SourceUnavailable, match="topic t: "):
                patch.setattr("overlay.kafka.admin.DEADLINE_S", 0.5)
                await admin.delete_topic("t")


async def test_a_deletion_is_ordered_again_where_another_broker_is_the_controller() -> None:
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        codes = [Code.NOT_CONTROLLER, Code.NONE]
        stub.on(DeleteTopicsRequest, lambda _: (0, [("t", codes.pop(0))]))
        await admin.delete_topic("t")
        assert codes == []


async def test_brokers_that_do_not_take_part_yet_are_waited_for() -> None:
    """A service that starts at the same moment as its brokers has to wait for them. It ends where they are too few."""
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        reason = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
        stub.on(CreateTopicsRequest, lambda _: (0, [("t", Code.INVALID_REPLICATION_FACTOR, reason)]))
        with pytest.raises(SourceUnavailable, match=r"topic t: .*All brokers are currently fenced"):
            await admin.create_topics([new_topic("t", 1, 1, {})])
        few = "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached"
        stub.on(CreateTopicsRequest, lambda _: (0, [("t", Code.INVALID_REPLICATION_FACTOR, few)]))
        _, refused = await admin.create_topics([new_topic("t", 1, 3, {})])
        assert refused == {"t": f"topic t cannot be created: {few}"}
