"""The oracle and the scan against a real broker: fetched bytes, and what a confluent-kafka Consumer reads of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Place

from overlay.scan import Decoder
from tests.oracle.batches import ABORT, COMMIT, Header, Record, marker, parse, read_committed
from tests.scan.compare import PLAN, as_array, pick_fields, read_scan
from tests.support.kafka import DEADLINE_S, NewTopicFixture, SureProducer

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEADERS: list[list[Header]] = [
    [],
    [(b"origin", b"JFK"), (b"dest", b"LAX"), (b"origin", b"EWR")],
    [(b"origin", None), (b"dest", b""), ("größe".encode(), "航班".encode())],
    [(b"", b"nameless"), (b"absent-minded", b"\xff\x00\xfe")],
]
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(slots=True)
class Fetched:
    """All bytes of partition 0, and the aborted transactions and last stable offset that came with them."""

    data: bytes = b""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    last_stable_offset: int = 0


async def fetch_all(bootstrap: str, topic: str, isolation: str, max_bytes: int = 1 << 20) -> Fetched:
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    try:
        await client.add_topic(topic)
        node = client.cluster.leader_for_partition(TopicPartition(topic, 0))
        return await _fetch_to_end(client, node, topic, ISOLATION[isolation], max_bytes)
    finally:
        await client.close()


async def _fetch_to_end(client: AIOKafkaClient, node: int, topic: str, isolation: int, max_bytes: int) -> Fetched:
    fetched, at = Fetched(), 0
    while True:
        request = FetchRequest(100, 1, 50 << 20, isolation, [(topic, [(0, at, max_bytes)])])
        reply = await client.send(node, request)
        _, error, high, stable, *_, data = part = reply.topics[0][1][0]
        assert error == 0
        batches = parse(data)
        fetched.last_stable_offset = stable
        aborted = part[4 if len(part) == 6 else 5]  # from version 5 on, the log's start stands before it
        fetched.aborted += [one for one in map(tuple, aborted or ()) if one not in fetched.aborted]
        if not batches:
            return fetched
        at = batches[-1].last_offset + 1
        fetched.data += data[: sum(12 + batch.batch_length for batch in batches)]
        if at >= (stable if isolation else high):
            return fetched


def consume(bootstrap: str, topic: str, isolation: str) -> list[Record]:
    """Partition 0 to its end, by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"judge-{topic}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    records: list[Record] = []
    try:
        consumer.assign([Place(topic, 0, 0)])
        while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
            records.append(_read(message))
        assert message is not None, f"{topic}: nothing for {DEADLINE_S} s"
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._PARTITION_EOF
    finally:
        consumer.close()
    return records


def _read(message: Message) -> Record:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    offset = message.offset()
    assert offset is not None
    named = [(name.encode(), value) for name, value in headers]
    return Record(offset, message.timestamp()[1], message.key(), message.value(), named)


def send(producer: Producer, topic: str, number: int) -> None:
    producer.produce(
        topic,
        value=[b"", None, b"v" * 300, b'{"a": 1}', b"x"][number % 5],
        key=[None, b"", b"key-%d" % number][number % 3],
        headers=[(name.decode(), value) for name, value in HEADERS[number % 4]],
        timestamp=1_700_000_000_000 + (number * 7919) % 1000,
        partition=0,
    )


def produce(bootstrap: str, topic: str, codec: str, count: int = 300) -> None:
    # a long linger: a batch of one record would be sent as it is, since compressing makes it no smaller
    settings: dict[str, object] = {"compression.type": codec, "linger.ms": 10_000, "batch.num.messages": 40}
    producer = SureProducer(bootstrap, {**settings})
    for number in range(count):
        send(producer, topic, number)
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("where", ["producer", "broker"])
async def test_every_codec(bootstrap: str, new_topic: NewTopicFixture, codec: str, where: str) -> None:
    """librdkafka compresses where the producer does, Java where the topic does: two framings of snappy and of lz4."""
    kept = "producer" if where == "producer" else codec.replace("none", "uncompressed")
    topic = new_topic(compression_type=kept)
    await asyncio.to_thread(produce, bootstrap, topic, codec if where == "producer" else "none")
    fetched = await fetch_all(bootstrap, topic, "read_committed", max_bytes=3000)
    batches = parse(fetched.data)
    assert {batch.codec for batch in batches} == {CODECS.index(codec)}
    records = [record for batch in batches for record in batch.records]
    assert len(records) == 300
    assert records == await asyncio.to_thread(consume, bootstrap, topic, "read_committed")
    reading = read_scan(as_array(fetched.data), Decoder(PLAN))
    assert reading.seen == records
    assert reading.fields == [pick_fields(record) for record in records]


async def test_log_append_time(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    await asyncio.to_thread(produce, bootstrap, topic, "lz4")
    fetched = await fetch_all(bootstrap, topic, "read_committed")
    batches = parse(fetched.data)
    assert all(batch.log_append_time for batch in batches)
    records = [record for batch in batches for record in batch.records]
    assert records == await asyncio.to_thread(consume, bootstrap, topic, "read_committed")
    assert min(record.timestamp for record in records) > 1_700_000_001_000
    assert read_scan(as_array(fetched.data), Decoder(PLAN)).seen == records


def _transactions(bootstrap: str, topic: str) -> Producer:
    """Two producers whose transactions interleave, commits and aborts; the one returned leaves its last one open."""
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 3}
    one = Producer({**settings, "transactional.id": f"{topic}-one"})
    two = Producer({**settings, "transactional.id": f"{topic}-two", "compression.type": "zstd"})
    for producer in (one, two):
        producer.init_transactions(DEADLINE_S)
    for turn in range(6):
        for producer, first in ((one, 100 * turn), (two, 100 * turn + 50)):
            producer.begin_transaction()
            for number in range(first, first + 8):
                send(producer, topic, number)
            assert producer.flush(DEADLINE_S) == 0
        for producer, commit in ((one, turn % 2 == 0), (two, turn % 3 == 0)):
            if commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
    two.begin_transaction()
    send(two, topic, 1)
    assert two.flush(DEADLINE_S) == 0
    produce(bootstrap, topic, "none", count=5)
    return two


async def test_transactions(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    left_open = await asyncio.to_thread(_transactions, bootstrap, topic)
    try:
        fetched = await fetch_all(bootstrap, topic, "read_committed", max_bytes=1500)
        everything = await fetch_all(bootstrap, topic, "read_uncommitted")
        committed = await asyncio.to_thread(consume, bootstrap, topic, "read_committed")
        assert len(committed) == 8 * (3 + 2)
        batches = parse(everything.data)
        assert {marker(batch) for batch in batches if batch.is_control} == {ABORT, COMMIT}
        assert max(batch.last_offset for batch in batches) >= fetched.last_stable_offset
        assert read_committed(parse(fetched.data), fetched.aborted, fetched.last_stable_offset) == committed
        # the bytes past the last stable offset do no harm, nor does the list's order
        assert read_committed(batches, fetched.aborted[::-1], fetched.last_stable_offset) == committed
        stop = fetched.last_stable_offset
        for data in (fetched.data, everything.data):
            assert read_scan(as_array(data), Decoder(PLAN), fetched.aborted, stop=stop).seen == committed
    finally:
        await asyncio.to_thread(left_open.abort_transaction, DEADLINE_S)


async def test_uncommitted_records_as_librdkafka_reads_them(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    left_open = await asyncio.to_thread(_transactions, bootstrap, topic)
    try:
        everything = await fetch_all(bootstrap, topic, "read_uncommitted")
        shown = await asyncio.to_thread(consume, bootstrap, topic, "read_uncommitted")
        assert [r for b in parse(everything.data) if not b.is_control for r in b.records] == shown
        assert read_scan(as_array(everything.data), Decoder(PLAN), committed=False).seen == shown
    finally:
        await asyncio.to_thread(left_open.abort_transaction, DEADLINE_S)
