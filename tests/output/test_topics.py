"""Output topics that would hold up a transaction, by what Kafka says of their replicas."""

from __future__ import annotations

import pytest

from overlay.config.consumer import ConsumerConfig
from overlay.kafka.admin import Admin, Replicas, TopicFacts
from overlay.output.batch_builder import NO_LIMIT
from overlay.output.topics import find_fault, make_output_topic
from tests.support.kafka import NewTopicFixture


def describe(*replicas: Replicas, wanted: str = "2") -> TopicFacts:
    return TopicFacts("t", "id", len(replicas), {"min.insync.replicas": wanted}, replicas)


@pytest.mark.parametrize(
    ("replicas", "wanted", "fault"),
    [
        (Replicas(3, 2), "2", ""),
        (Replicas(3, 1), "2", "partition 1 has 1 of 3 replicas in sync, fewer than its min.insync.replicas of 2"),
        (Replicas(3, 1), "1", ""),
        (Replicas(1, 1), "2", ""),
        (Replicas(2, 1), "3", "partition 1 has 1 of 2 replicas in sync"),
        (Replicas(1, 1, has_leader=False), "1", "partition 1 has no leader. Bring back"),
    ],
)
def test_faults(replicas: Replicas, wanted: str, fault: str) -> None:
    found = find_fault(describe(Replicas(3, 3), replicas, wanted=wanted))
    assert fault in found and bool(fault) == bool(found)


def test_a_topic_that_says_nothing_has_no_fault() -> None:
    assert find_fault(TopicFacts("t", "id", 1, {})) == ""


@pytest.mark.parametrize(
    ("config", "newest_ms"),
    [
        ({}, 3_600_000),
        ({"message.timestamp.type": "CreateTime"}, 3_600_000),
        ({"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "5"}, 5),
        ({"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "5"}, NO_LIMIT),
    ],
)
def test_a_setting_that_cannot_be_read_counts_as_kafkas_default(config: dict[str, str], newest_ms: int) -> None:
    """Kafka refuses records more than an hour ahead, also of topics whose settings this user may not read."""
    consumer = ConsumerConfig.model_validate({"stream": "S", "durable_name": "c", "deliver_subject": "t"})
    output_topic = make_output_topic(TopicFacts("t", "id", 1, config), consumer)
    assert (output_topic.oldest_ms, output_topic.newest_ms) == (NO_LIMIT, newest_ms)


async def test_replicas_come_from_kafka(admin: Admin, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=2, min_insync_replicas=2)
    facts = (await admin.find_topics([topic]))[topic]
    assert facts.replicas == (Replicas(1, 1), Replicas(1, 1))
    assert facts.config["min.insync.replicas"] == "2"
