"""Topics of a run: made and filled before it, read back by an independent client, deleted after it. Not part of any time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from bench.errors import WrongAnswer
from bench.peers.confluent_push import open_producer

_DEADLINE_S = 60.0
_SILENCE_S = 10.0

Row = tuple[bytes, list[tuple[str, bytes]]]
"""The value and the headers of a record."""


def make_topic(bootstrap: str, prefix: str, partitions: int = 1) -> str:
    """A new topic; its name."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    client = _connect(bootstrap)
    # as the overlay makes its outputs, so that all sides write to the same kind of topic
    config = {"message.timestamp.type": "LogAppendTime"}
    client.create_topics([NewTopic(name, num_partitions=partitions, config=config)])[name].result(_DEADLINE_S)
    return name


def fill_topic(
    bootstrap: str, topic: str, rows: Iterable[Row], progress: Callable[[int], None], *, partition: int = 0
) -> None:
    """Write these records to one partition. Raises WrongAnswer when Kafka does not take all."""
    producer = open_producer(bootstrap, transactional=False, idempotent=True)
    for number, (value, headers) in enumerate(rows, start=1):
        while True:
            try:
                producer.produce(topic, value, headers=headers, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 65_536 == 0:
            progress(number)
    if left := producer.flush(_DEADLINE_S):
        raise WrongAnswer(f"{topic}: {left} records were not taken. See the broker's log")


def delete_topic(bootstrap: str, name: str) -> None:
    client = _connect(bootstrap)
    client.delete_topics([name])[name].result(_DEADLINE_S)


def check_output(side: str, bootstrap: str, topic: str, expected: int) -> None:
    """Count what a side has committed to its output topic, and delete the topic. Raises WrongAnswer."""
    found = count_committed(bootstrap, topic)
    if found != expected:
        raise WrongAnswer(f"{side}: {found} records committed to {topic}, the data set says {expected}")
    delete_topic(bootstrap, topic)


def _connect(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


def count_committed(bootstrap: str, topic: str) -> int:
    """How many records a read-committed consumer finds. Raises WrongAnswer when it cannot read to the end.

    A broker answers a commit before every partition has the marker, and until then a read-committed consumer is at its end in
    front of the records. So the end is the high watermark of now.
    """
    settings = {"group.id": f"check-{uuid.uuid4().hex}", "isolation.level": "read_committed"}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, **settings, "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        end = _find_high_watermark(bootstrap, topic)
        found, heard = 0, time.monotonic()
        while time.monotonic() - heard < _SILENCE_S:
            messages = consumer.consume(10_000, 0.1)
            records = sum(1 for message in messages if not message.error())
            heard = time.monotonic() if records else heard
            found += records
            # the end of the partition comes as an error, behind the last record
            if messages and messages[-1].error() and messages[-1].offset() >= end:
                return found
    finally:
        consumer.close()
    raise WrongAnswer(f"{topic}: read {found} records and then nothing for {_SILENCE_S:.0f} s. See the broker's log")


def _find_high_watermark(bootstrap: str, topic: str) -> int:
    """Return the offset behind the last record of a topic's partition, committed or not."""
    source = TopicPartition(topic, 0)
    client = _connect(bootstrap)  # a client that is let go of answers nothing
    end: int = client.list_offsets({source: OffsetSpec.latest()})[source].result(_SILENCE_S).offset
    return end
