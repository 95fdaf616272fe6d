"""Headers whose names are not UTF-8, as confluent-kafka meets them."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from structlog.testing import capture_logs

from overlay.kafka import message_headers
from overlay.kafka.message_headers import LeftOut, read_headers
from tests.oracle.batches import Header, Record
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture
from tests.support.raw import send_batch
from tests.support.waiting import wait_until

GOOD: list[Header] = [(b"a", b"b"), (b"c", None)]
BAD: list[Header] = [(b"\xff\xfe", b"x"), *GOOD, (b"\xed\xa0\x80", None)]
MANY = 40
"""More calls than the interpreter makes before it specialises them."""


@pytest.fixture
def received(bootstrap: str, new_topic: NewTopicFixture) -> list[Message]:
    """MANY records of a topic, each fourth of them with bad names."""
    topic, now = new_topic(), int(time.time() * 1000)
    records = [Record(number, now, b"k", b"v", BAD if number % 4 == 3 else GOOD) for number in range(MANY)]
    assert send_batch(bootstrap, topic, build(records)) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []

    def take() -> bool:
        found.extend(consumer.consume(MANY, 0.2))
        return len(found) == MANY

    wait_until(take, 30, "all records come")
    consumer.close()
    return found


def test_a_bad_name_takes_its_header_away_and_no_other(received: list[Message]) -> None:
    good = [("a", b"b"), ("c", None)]
    with capture_logs() as logs:
        assert [list(read_headers(record)) for record in received] == [good] * MANY
        assert [list(read_headers(record)) for record in received] == [good] * MANY, "once more"
    counts = [entry["count"] for entry in logs]
    assert counts == [2, 4, 8, 16], "each header is counted once, and told of more and more rarely"
    assert {entry["offset"] for entry in logs} < set(range(3, MANY, 4))


def test_a_record_that_was_read_is_sound_for_others(received: list[Message]) -> None:
    """A pair without a name in the record's own list would end the process."""
    for record in received:
        read_headers(record)
    assert [[name for name, _ in record.headers()] for record in received] == [["a", "c"]] * MANY


def test_counts_of_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_headers, "MOST_TOPICS", 2)
    counts = LeftOut()
    with capture_logs() as logs:
        for topic in ("a", "b", "a", "c", "a", "a", "b"):
            counts.add(topic, 0, 0, 1)
    assert [(entry["topic"], entry["count"]) for entry in logs] == [
        ("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 4), ("b", 1)
    ]  # fmt: skip
