"""What calls for a new session, and what ends one at once, by what a real broker says of topics that change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from overlay.config import StreamConfig
from overlay.errors import DeliveryFailed, SourceChanged
from overlay.kafka.admin import Admin, Replicas, TopicFacts
from overlay.worker.assignment import Assignment
from overlay.worker.kept.following import Following
from overlay.worker.watch import watch_topics
from tests.support.kafka import DEADLINE_S, NewTopicFixture, make_topic
from tests.support.waiting import wait_until

Change = Callable[[AdminClient, str], object]


def delete(client: AdminClient, topic: str) -> None:
    client.delete_topics([topic], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)
    wait_until(lambda: topic not in client.list_topics(timeout=10).topics, DEADLINE_S, f"{topic} is gone")


def grow(client: AdminClient, topic: str) -> None:
    client.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)


async def find(bootstrap: str, topic: str) -> TopicFacts:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        return (await admin.find_topics([topic]))[topic]


async def watch(bootstrap: str, assignment: Assignment, change: Change, topic: str, *, until: float = math.inf) -> str:
    """What the watch comes to when a topic changes while it looks."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    async with asyncio.timeout(DEADLINE_S), Admin({"bootstrap.servers": bootstrap}) as admin:
        watching = asyncio.create_task(watch_topics(admin, Following(assignment), until))
        await asyncio.to_thread(change, client, topic)
        return await watching


async def test_a_deleted_output_ends_the_session_at_once(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    assignment = Assignment(outputs={topic: await find(bootstrap, topic)})
    with pytest.raises(DeliveryFailed, match="was deleted") as caught:
        await watch(bootstrap, assignment, delete, topic)
    assert (caught.value.topic, caught.value.final) == (topic, False)


async def test_an_output_that_changed_calls_for_a_new_session(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    before = await find(bootstrap, topic)
    reason = await watch(bootstrap, Assignment(outputs={topic: before}), grow, topic)
    assert reason == f"output topic {topic} has 2 partitions, had 1"
    await asyncio.to_thread(delete, AdminClient({"bootstrap.servers": bootstrap}), topic)
    make_topic(bootstrap, topic)
    reason = await watch(bootstrap, Assignment(outputs={topic: before}), lambda *_: None, topic)
    assert reason == f"output topic {topic} was created again"


async def test_an_output_whose_replicas_are_back(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    facts = await find(bootstrap, topic)
    away = TopicFacts(topic, facts.identity, 1, facts.config, (Replicas(1, 1, has_leader=False),))
    reason = await watch(bootstrap, Assignment(outputs={topic: away}), lambda *_: None, topic)
    assert reason == f"output topic {topic} takes records again"


async def test_a_source_that_is_read_and_one_that_is_not(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    facts = await find(bootstrap, topic)
    stream = StreamConfig.model_validate({"name": "S", "topics": (topic,)})
    with pytest.raises(SourceChanged, match=f"{topic} was deleted"):
        await watch(bootstrap, Assignment(streams={"S": stream}, topics={topic: facts}), delete, topic)
    reason = await watch(bootstrap, Assignment(topics={topic: None}), lambda *_: make_topic(bootstrap, topic), topic)
    assert reason == f"topic {topic} was created"


async def test_those_left_out_are_tried_again(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    assignment = Assignment(outputs={topic: await find(bootstrap, topic)})
    assert "tried again" in await watch(bootstrap, assignment, lambda *_: None, topic, until=0.0)
