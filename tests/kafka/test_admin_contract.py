"""Answers of our own requests held against those of confluent-kafka, which asks the same broker in its own way."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.admin import OffsetSpec as RdOffsetSpec

from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.protocol import Uuid, describe_code, name_operations
from tests.support.kafka import DEADLINE_S, NewTopicFixture
from tests.support.waiting import wait_until

BASE_MS = 1_700_000_000_000


@pytest.fixture
def judge(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def fill(bootstrap: str, topic: str) -> Producer:
    """Write 20 committed records a minute apart to partition 0, 5 that are aborted, and 3 whose transaction stays open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    for count, end in ((20, producer.commit_transaction), (5, producer.abort_transaction), (3, None)):
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, b"x", partition=0, timestamp=BASE_MS + 60_000 * number)
        assert producer.flush(DEADLINE_S) == 0
        if end is not None:
            end(DEADLINE_S)
    return producer


async def test_topics(admin: Admin, judge: AdminClient, new_topic: NewTopicFixture) -> None:
    """Thirty of them: ids contain characters of every kind."""
    topics = [new_topic(1 + number % 3, retention_ms=100_000 + number) for number in range(30)]
    await admin.await_topics(topics)
    found = await admin.find_topics([*topics, "missing"])
    assert list(found) == sorted(topics)
    described = judge.describe_topics(TopicCollection(topics))
    configs = judge.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics])
    for topic in topics:
        expected = described[topic].result(DEADLINE_S)
        facts = found[topic]
        assert (facts.identity, facts.partitions) == (str(expected.topic_id), len(expected.partitions))
        assert [r.in_sync for r in facts.replicas] == [len(p.isr) for p in expected.partitions]
        assert all(replica.has_leader for replica in facts.replicas)
    for resource, future in configs.items():
        assert found[resource.name].config == {key: entry.value for key, entry in future.result(DEADLINE_S).items()}
    assert await admin.find_readable([*topics, "missing"]) == {topic: found[topic].partitions for topic in topics}
    assert await admin.list_topics(topics[0]) == [topics[0]]
    assert await admin.list_topics("") == sorted(judge.list_topics(timeout=DEADLINE_S).topics)
    assert await admin.find_cluster() == judge.describe_cluster().result(DEADLINE_S).cluster_id


def test_ids_as_text() -> None:
    for _ in range(200):
        raw = os.urandom(16)
        text = Uuid.decode(BytesIO(raw))
        assert text == str(confluent_kafka.Uuid(*struct.unpack(">qq", raw)))
        assert Uuid.encode(text) == raw


@pytest.mark.parametrize("committed", [True, False])
async def test_offsets(admin: Admin, bootstrap: str, new_topic: NewTopicFixture, committed: bool) -> None:
    topic, judge = new_topic(3), AdminClient({"bootstrap.servers": bootstrap})
    producer = fill(bootstrap, topic)
    sources = [(topic, partition) for partition in range(3)]
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    times = [BASE_MS - 1, BASE_MS, BASE_MS + 1, BASE_MS + 600_000, BASE_MS + 60_000 * 19, BASE_MS + 60_000 * 20]
    specs = [
        (OffsetSpec.earliest(), RdOffsetSpec.earliest()),
        (OffsetSpec.latest(), RdOffsetSpec.latest()),
        (OffsetSpec.max_timestamp(), RdOffsetSpec.max_timestamp()),
        *((OffsetSpec.for_timestamp(ms), RdOffsetSpec.for_timestamp(ms)) for ms in times),
    ]
    for ours, theirs in specs:
        asked = {TopicPartition(*source): theirs for source in sources}
        answers = judge.list_offsets(asked, isolation_level=isolation)
        expected = {(tp.topic, tp.partition): future.result(DEADLINE_S).offset for tp, future in answers.items()}
        assert await admin.find_offsets(sources, ours, committed=committed) == expected
    # with a marker behind each transaction that has ended
    end = 20 + 1 + 5 + 1 if committed else 20 + 1 + 5 + 1 + 3
    assert (await admin.find_bounds(sources, committed=committed))[topic, 0] == (0, end)
    producer.abort_transaction(DEADLINE_S)


@contextmanager
def join(bootstrap: str, group: str, topic: str, protocol: str, count: int) -> Iterator[Sequence[Consumer]]:
    """Members of a group, once each has its partitions."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol}
    members = [Consumer(settings) for _ in range(count)]
    try:
        for member in members:
            member.subscribe([topic])

        def have_all() -> bool:
            messages = [member.poll(0.05) for member in members]  # each has to be polled
            return not any(messages) and all(member.assignment() for member in members)

        wait_until(have_all, DEADLINE_S, "all members have partitions")
        yield members
    finally:
        for member in members:
            member.close()


def count_as_librdkafka(judge: AdminClient, group: str) -> int:
    return len(judge.describe_consumer_groups([group])[group].result(DEADLINE_S).members)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_groups(
    admin: Admin, judge: AdminClient, bootstrap: str, new_topic: NewTopicFixture, protocol: str
) -> None:
    topic = new_topic(3)
    group, absent = f"{topic}-{protocol}", f"{topic}-absent"
    with join(bootstrap, group, topic, protocol, 2) as members:
        for number, member in enumerate(members):
            place = [TopicPartition(topic, tp.partition, 5 + number) for tp in member.assignment()]
            member.commit(offsets=place, asynchronous=False)
        assert await admin.count_members_of([group, absent]) == {group: 2, absent: 0}
        described = (await admin.describe_groups([group], operations=True))[group]
        expected: Any = judge.describe_consumer_groups([group], include_authorized_operations=True)[group].result(30)
        assert described.is_known
        assert {(m.client, m.host) for m in described.members} == {(m.client_id, m.host) for m in expected.members}
        assert set(described.operations or ()) == {
            operation.name.title().replace("_", "") for operation in expected.authorized_operations
        }
        listed = judge.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(DEADLINE_S)
        committed = {tp.partition: tp.offset for tp in listed.topic_partitions}
        assert await admin.find_committed([group, absent]) == {group: {topic: committed}, absent: {}}
    wait_until(lambda: count_as_librdkafka(judge, group) == 0, DEADLINE_S, "the members have left")
    assert await admin.count_members(group) == 0
    assert await admin.find_committed([group]) == {group: {topic: committed}}


async def test_a_hundred_groups_of_both_kinds(admin: Admin, bootstrap: str, new_topic: NewTopicFixture) -> None:
    """One answer holds many groups; each is read to its end."""
    topic = new_topic()
    groups = [f"{topic}-{number}" for number in range(100)]
    with (
        join(bootstrap, groups[3], topic, "classic", 1),
        join(bootstrap, groups[60], topic, "consumer", 1),
    ):
        expected = dict.fromkeys(groups, 0) | {groups[3]: 1, groups[60]: 1}
        assert await admin.count_members_of(groups) == expected


def test_codes_have_words() -> None:
    assert describe_code(3) == "This request is for a topic or partition that does not exist on this broker"
    assert describe_code(75) == "UNKNOWN_LEADER_EPOCH"
    assert describe_code(12345) == "error 12345"


def test_operations_by_bits() -> None:
    assert name_operations(1 << 3 | 1 << 8 | 1 << 10) == {"Read", "Describe", "DescribeConfigs"}
