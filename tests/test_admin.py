"""Questions that nobody answers, and topics that come to be."""

from __future__ import annotations

import socket
import time
from concurrent.futures import Future

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError

from overlay.admin import Admin, get_answer, new_topic
from overlay.errors import SourceUnavailable
from tests.support.kafka import NewTopicFixture


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.admin.DEADLINE_S", 0.5)


@pytest.mark.usefixtures("short")
async def test_a_broker_that_never_answers() -> None:
    """The port is open, and that is all: every question ends as unavailable, none as an error of Python's own."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = Admin({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
        for asking in (
            admin.find_cluster(),
            admin.find_topics(["t"]),
            admin.create_topics([new_topic("t", 1, 1, {})]),
            admin.find_bounds([("t", 0)]),
            admin.delete_records("t", 0, 1),
            admin.find_committed(["g"]),
        ):
            with pytest.raises(SourceUnavailable):
                await asking


@pytest.mark.usefixtures("short")
def test_a_future_that_nobody_fulfils() -> None:
    with pytest.raises(KafkaException) as caught:
        get_answer(Future())
    assert caught.value.args[0].code() == RdKafkaError._TIMED_OUT


@pytest.mark.usefixtures("short")
async def test_a_topic_that_never_comes_is_told(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    admin = Admin({"bootstrap.servers": bootstrap})
    assert list(await admin.await_topics([topic])) == [topic]
    with pytest.raises(SourceUnavailable, match="not all brokers know"):
        await admin.await_topics([topic, f"{topic}-not"])


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    client.commit(offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False)
    client.close()


async def test_what_many_groups_have_committed(bootstrap: str, new_topic: NewTopicFixture) -> None:
    one, two = new_topic(3), new_topic()
    groups = [f"{one}-{number}" for number in range(40)]
    commit(bootstrap, groups[0], {(one, 0): 5, (one, 2): 7, (two, 0): 1})
    commit(bootstrap, groups[39], {(one, 0): 6})
    found = await Admin({"bootstrap.servers": bootstrap}).find_committed([*groups, groups[0]])
    assert found.keys() == set(groups)
    assert found[groups[0]] == {one: {0: 5, 2: 7}, two: {0: 1}}
    assert found[groups[39]] == {one: {0: 6}}
    assert all(not found[group] for group in groups[1:39])


@pytest.mark.usefixtures("short")
async def test_groups_are_asked_for_at_once() -> None:
    """Where nobody answers, thirty of them take no longer than one: 0.5 s, not 15."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = Admin({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
        began = time.monotonic()
        with pytest.raises(SourceUnavailable):
            await admin.find_committed([f"g{number}" for number in range(30)])
        assert time.monotonic() - began < 5
