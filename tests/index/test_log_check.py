"""overlay/index/log_check.py: small looks at a log, and chunks held against it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError
from confluent_kafka import Producer

from overlay.errors import SourceChanged
from overlay.index.log_check import Glimpse, check_log_position, glimpse, glimpse_all, void
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition
from tests.index.partitions import Record, load, seal, stream
from tests.index.test_start_positions import delete_below
from tests.support.kafka import NewTopicFixture, SureProducer


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[AIOKafkaClient]:
    opened = await open_client({"bootstrap.servers": bootstrap})
    yield opened
    await opened.close()


@pytest.fixture
async def topic(client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture) -> str:
    """Six batches of five records, cut by hand: producers that cut their own do so when they please."""
    name = new_topic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for _ in range(6):
            batch = producer.create_batch()
            for _ in range(5):
                assert batch.append(key=None, value=b"x", timestamp=None) is not None
            await (await producer.send_batch(batch, name, partition=0))
    await client.add_topic(name)
    return name


async def test_a_glimpse(client: AIOKafkaClient, bootstrap: str, topic: str) -> None:
    """The batch that holds the offset, and the bounds; nothing at the end."""
    found = [await glimpse(client, (topic, 0), offset) for offset in (0, 4, 5, 29)]
    assert [(g.first, g.end) for g in found] == [(0, 30)] * 4
    assert [g.log_position.position for g in found] == [5, 5, 10, 30]
    assert found[0].log_position == found[1].log_position != found[2].log_position and all(
        g.log_position.crc >= 0 for g in found
    )
    assert await glimpse(client, (topic, 0), 30) == Glimpse(0, 30, LogPosition(30))
    delete_below(bootstrap, topic, 7)
    assert (await glimpse(client, (topic, 0), 29)).first == 7
    for offset in (6, 31):
        with pytest.raises(OffsetOutOfRangeError):
            await glimpse(client, (topic, 0), offset)
    with pytest.raises(KafkaError):
        await glimpse(client, (topic, 9), 0)


async def test_glimpses_at_once(client: AIOKafkaClient, bootstrap: str, topic: str, new_topic: NewTopicFixture) -> None:
    """Those beside come with the others, and bring bounds whatever they hold."""
    full, empty = (topic, 0), (new_topic(), 0)
    other = new_topic()
    producer = SureProducer(bootstrap)
    producer.produce(other, b"x" * 1_000)
    assert producer.flush(30) == 0
    for name in (empty[0], other):
        await client.add_topic(name)
    offsets = {(other, 0): 0, full: 4, empty: 0}
    for beside in ([], [(other, 0)], [(other, 0), empty], list(offsets)):
        found = await glimpse_all(client, offsets, beside)
        assert {source: (g.first, g.end) for source, g in found.items()} == {
            full: (0, 30),
            empty: (0, 0),
            (other, 0): (0, 1),
        }
        if full not in beside:
            assert found[full] == await glimpse(client, full, 4)
    with pytest.raises(OffsetOutOfRangeError):
        await glimpse_all(client, {full: 4, (other, 0): 9}, [(other, 0)])


async def test_a_glimpse_ends_where_what_is_committed_ends(client: AIOKafkaClient, bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    found = await glimpse(client, (topic, 0), 29)
    assert (found.end, found.log_position.position) == (30, 30)
    producer.abort_transaction(30)


async def test_log_positions(client: AIOKafkaClient, topic: str) -> None:
    right = (await glimpse(client, (topic, 0), 9)).log_position
    await check_log_position(client, "S", (topic, 0), right, (0, 30), compacted=False)
    for wrong in (
        LogPosition(10, right.epoch, right.crc ^ 1),
        LogPosition(10, right.epoch + 1, right.crc),
        LogPosition(31, 0, 1),
    ):
        with pytest.raises(SourceChanged):
            await check_log_position(client, "S", (topic, 0), wrong, (0, 30), compacted=False)


async def test_log_positions_of_a_compacted_topic(client: AIOKafkaClient, topic: str) -> None:
    """Compaction changes what batches hold, not where they end, nor their epochs."""
    right = (await glimpse(client, (topic, 0), 9)).log_position
    await check_log_position(
        client, "S", (topic, 0), LogPosition(10, right.epoch, right.crc ^ 1), (0, 30), compacted=True
    )
    for wrong in (LogPosition(10, right.epoch + 1, right.crc), LogPosition(8, right.epoch, right.crc)):
        with pytest.raises(SourceChanged):
            await check_log_position(client, "S", (topic, 0), wrong, (0, 30), compacted=True)


@pytest.mark.parametrize("good", range(7))
async def test_chunks_are_void_above_the_last_that_holds(client: AIOKafkaClient, topic: str, good: int) -> None:
    chunks = load(stream(), [seal(stream(), [Record(5 * n, "a")], 5 * n, 5 * n + 5) for n in range(6)])
    for row in range(6):
        log_position = (await glimpse(client, (topic, 0), 5 * row)).log_position
        chunks.epoch[row], chunks.crc[row] = (
            log_position.epoch,
            log_position.crc if row < good else log_position.crc ^ 1,
        )
        assert chunks.log_position(row) == LogPosition(log_position.position, log_position.epoch, int(chunks.crc[row]))
    await void(client, "S", (topic, 0), chunks, (0, 30), compacted=False)
    assert chunks.next_offset.tolist() == [5 * row + 5 for row in range(good)]
