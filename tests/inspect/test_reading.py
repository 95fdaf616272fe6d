"""Samples of real topics."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from overlay.errors import SourceUnavailable
from overlay.inspect.reading import Cluster, TopicNotFound, check_topics, look_around, read_sample
from tests.support.kafka import NewTopicFixture, SureProducer, produce_values


def test_both_ends_of_every_partition_are_read(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=3)
    producer = SureProducer(bootstrap)
    for number in range(300):
        producer.produce(topic, str(number), key="k", headers=[("h", b"1"), ("n", None)], partition=number % 3)
    assert producer.flush(30) == 0
    sample = read_sample({"bootstrap.servers": bootstrap}, topic, 3, 60)
    assert (sample.partitions, sample.span, sample.notes) == (3, 300, ())
    offsets = [*range(10), *range(90, 100)]
    assert [(record.partition, record.offset) for record in sample.records] == [
        (p, o) for p in range(3) for o in offsets
    ]
    assert sample.records[0].headers == (("h", b"1"), ("n", None))
    assert (sample.records[0].key, sample.records[0].value) == (b"k", b"0")


def test_a_topic_smaller_than_the_sample_is_read_once(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=2)
    produce_values(bootstrap, topic, [b"a", b"b", b"c"])
    sample = read_sample({"bootstrap.servers": bootstrap}, topic, 2, 1000)
    assert sorted(record.value or b"" for record in sample.records) == [b"a", b"b", b"c"]


def test_only_committed_records_are_read(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(30)
    producer.abort_transaction(30)
    produce_values(bootstrap, topic, [b"kept"])
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    sample = read_sample({"bootstrap.servers": bootstrap}, topic, 1, 1000)
    assert [record.value for record in sample.records] == [b"kept"]
    producer.abort_transaction(30)


def test_an_empty_topic_is_an_empty_sample(bootstrap: str, new_topic: NewTopicFixture) -> None:
    sample = read_sample({"bootstrap.servers": bootstrap}, new_topic(), 1, 10)
    assert (sample.records, sample.span, sample.notes) == ((), 0, ())


def test_a_missing_topic_names_its_neighbour(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    cluster = look_around({"bootstrap.servers": bootstrap})
    check_topics(cluster, [topic])
    with pytest.raises(TopicNotFound, match=f"Did you mean {topic}"):
        check_topics(cluster, [topic[:-1]])


def test_the_overlays_own_topics_are_named_last() -> None:
    cluster = Cluster(1, dict.fromkeys(["overlay.state", "__consumer_offsets", "paid", "orders"], 1))
    with pytest.raises(TopicNotFound, match=r"Topics that can be seen: orders, paid, overlay\.state$"):
        check_topics(cluster, ["x"])


def test_an_unreachable_broker_is_named() -> None:
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1: Kafka cannot be reached"):
        look_around({"bootstrap.servers": "127.0.0.1:1"}, 0.5)


def test_a_reading_without_time_says_so(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"])
    with pytest.raises(SourceUnavailable, match="no record came within 0 s"):
        read_sample({"bootstrap.servers": bootstrap}, topic, 1, 10, deadline_s=0)
