"""Headers whose names are not UTF-8, as confluent-kafka meets them."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from overlay.kafka.message_headers import read_headers
from tests.oracle.batches import Header, Record
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture
from tests.support.raw import send_batch
from tests.support.waiting import wait_until

BAD: list[Header] = [(b"\xff\xfe", b"x"), (b"a", b"b")]
GOOD: list[Header] = [(b"a", b"b"), (b"c", None)]
MANY = 40
"""More calls than the interpreter makes before it specialises them."""


def test_a_bad_name_empties_its_record_and_no_other(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    for number in range(MANY):
        record = Record(0, int(time.time() * 1000), b"k", b"v", BAD if number % 4 == 3 else GOOD)
        assert send_batch(bootstrap, topic, build([record])) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    for number in range(MANY):
        message = wait_until(lambda: consumer.poll(0.2), 30, f"record {number} comes")
        found.append(list(read_headers(message)))
    consumer.close()
    good: list[tuple[str, bytes | None]] = [("a", b"b"), ("c", None)]
    assert found == [[] if number % 4 == 3 else good for number in range(MANY)]
