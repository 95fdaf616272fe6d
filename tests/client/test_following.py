"""Readings that go on: records that come while they are read."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import overlay
from overlay.client import Client
from tests.support.kafka import NewTopicFixture, SureProducer, produce_values


@pytest.fixture
def following(bootstrap: str, new_topic: NewTopicFixture) -> Iterator[tuple[Client, str, Producer]]:
    topic = new_topic(partitions=2)
    producer = SureProducer(bootstrap)
    for number in range(20):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(30) == 0
    yield overlay.open(bootstrap=bootstrap), topic, producer


def test_following(following: tuple[Client, str, Producer]) -> None:
    """Each record comes before the next one is written, so nothing waits for more; the limit ends it."""
    client, topic, producer = following
    found: list[int] = []
    for batch in client.read(topic=topic, follow=True, limit=30, columns=["value"]):
        found += map(int, batch["value"].to_pylist())
        if len(found) >= 20:
            producer.produce(topic, str(len(found)), partition=len(found) % 2)
            assert producer.flush(30) == 0
    assert sorted(found[:20]) == list(range(20)) and found[20:] == list(range(20, 30))


def test_following_from_the_last_ones(following: tuple[Client, str, Producer]) -> None:
    client, topic, producer = following
    with client.read(topic=topic, follow=True, last=4, columns=["value"]) as reading:
        first = next(reading)
        assert first.num_rows == 4
        producer.produce(topic, b"new")
        assert producer.flush(30) == 0
        assert next(reading)["value"].to_pylist() == [b"new"]
        assert reading.progress.total is None


def test_following_from_a_sequence_to_come(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"0", b"1"])
    with overlay.open(bootstrap=bootstrap).read(topic=topic, follow=True, from_seq=5, limit=2) as reading:
        produce_values(bootstrap, topic, [b"2", b"3", b"4", b"5"])
        assert pa.table(reading)["sequence"].to_pylist() == [5, 6]
