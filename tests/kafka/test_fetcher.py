"""overlay/kafka/fetcher.py and span.py against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from confluent_kafka import Producer

from overlay.errors import CredentialsRefused, SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetch_response import fetch
from overlay.kafka.fetched import Denied, Fetched, Lost
from overlay.kafka.fetcher import LONG_WAIT_MS, Fetcher
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.kafka.range_reader import LOOK_BACK, StillOpen, find_records_end, read_records, read_span
from overlay.scan import Decoder, Records, make_plan
from tests.index.test_start_positions import delete_below
from tests.kafka.answers import refuse_fetches
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers, make_topic, produce_values
from tests.worker.scenes import DEADLINE_S


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[AIOKafkaClient]:
    opened = await open_client({"bootstrap.servers": bootstrap})
    yield opened
    await opened.close()


def read_offsets(fetched: Fetched) -> list[int]:
    offsets: list[int] = []
    for piece in Decoder(make_plan()).decode(fetched.data, fetched.position, aborted=fetched.aborted):
        assert isinstance(piece, Records)
        offsets += piece.offset.tolist()
    return offsets


async def read_partition_fetches(fetcher: Fetcher, ends: dict[PartitionFetch, int]) -> dict[PartitionFetch, list[int]]:
    """Read every partition fetch up to its end, taking what comes in any order."""
    found: dict[PartitionFetch, list[int]] = {partition_fetch: [] for partition_fetch in ends}
    async with asyncio.timeout(DEADLINE_S):
        while any(partition_fetch.position < end or partition_fetch.ready for partition_fetch, end in ends.items()):
            fetcher.changed.clear()
            for partition_fetch in ends:
                taken = partition_fetch.take()
                if isinstance(taken, Fetched):
                    assert taken.position == (
                        found[partition_fetch][-1] + 1 if found[partition_fetch] else taken.position
                    )
                    found[partition_fetch] += read_offsets(taken)
            if not any(partition_fetch.ready for partition_fetch in ends) and any(
                partition_fetch.position < end for partition_fetch, end in ends.items()
            ):
                await fetcher.changed.wait()
    return found


async def test_partition_fetches_of_one_and_of_several_partitions(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    """Two partition fetches of one partition at different places, one of another; small fetches, so that they take
    many turns."""
    topic = new_topic(partitions=2)
    producer = SureProducer(bootstrap, {"batch.num.messages": 20})
    for number in range(2_000):
        producer.produce(topic, b"x" * 100, partition=number % 2)
    assert producer.flush(30) == 0
    fetcher = Fetcher(client, partition_bytes=20_000)
    try:
        starts = {
            await fetcher.open(topic, 0, 0): 0,
            await fetcher.open(topic, 0, 400): 400,
            await fetcher.open(topic, 1, 7): 7,
        }
        found = await read_partition_fetches(fetcher, dict.fromkeys(starts, 1_000))
        assert {partition_fetch: found[partition_fetch] for partition_fetch in starts} == {
            partition_fetch: list(range(at, 1_000)) for partition_fetch, at in starts.items()
        }
        assert {partition_fetch.stable_end for partition_fetch in starts} == {1_000}
    finally:
        await fetcher.close()


async def test_small_parts_of_a_partition_are_asked_for_at_once(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many requests as are allowed are under way, and none brings more than its partition fetch wants."""
    topic = new_topic()
    # no batch goes before it is full, however slowly the loop fills it
    producer = SureProducer(bootstrap, {"batch.num.messages": 20, "linger.ms": 60_000})
    for _ in range(2_000):
        producer.produce(topic, b"x" * 100)
    assert producer.flush(30) == 0
    sizes = [batch for fetched in [f async for f in read_span(client, topic, 0, 0, 2_000)] for batch in fetched.batches]
    whole = max(int(batch["end"] - batch["at"]) for batch in sizes)
    under_way = most = 0

    async def count(*arguments: Any, **more: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await fetch(*arguments, **more)
        finally:
            under_way -= 1

    monkeypatch.setattr("overlay.kafka.fetcher.fetch", count)
    fetcher = Fetcher(client, requests=3)
    try:
        partition_fetches = [await fetcher.open(topic, 0, at, at + 20, whole) for at in range(0, 2_000, 200)]
        found = await read_partition_fetches(
            fetcher, {partition_fetch: partition_fetch.stop for partition_fetch in partition_fetches}
        )
        assert [found[partition_fetch] for partition_fetch in partition_fetches] == [
            list(range(at, at + 20)) for at in range(0, 2_000, 200)
        ]
        assert most == 3 and fetcher.bytes_fetched == 10 * whole
    finally:
        await fetcher.close()


async def test_partition_fetches_at_one_place_share_a_fetch(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two partition fetches at the end of a log wait for records together, as long as one alone would."""
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"] * 5)
    waits_long = asyncio.Event()

    async def note(client: AIOKafkaClient, node: int, request: FetchRequest, **more: Any) -> Any:
        if request._max_wait_ms == LONG_WAIT_MS:
            waits_long.set()
        return await fetch(client, node, request, **more)

    monkeypatch.setattr("overlay.kafka.fetcher.fetch", note)
    fetcher = Fetcher(client)
    try:
        partition_fetches = [await fetcher.open(topic, 0, 3), await fetcher.open(topic, 0, 3)]
        assert await read_partition_fetches(fetcher, dict.fromkeys(partition_fetches, 5)) == {
            partition_fetch: [3, 4] for partition_fetch in partition_fetches
        }
        waits_long.clear()
        async with asyncio.timeout(DEADLINE_S):
            await waits_long.wait()
        await asyncio.to_thread(produce_values, bootstrap, topic, [b"b"])
        assert await read_partition_fetches(fetcher, dict.fromkeys(partition_fetches, 6)) == {
            partition_fetch: [5] for partition_fetch in partition_fetches
        }
    finally:
        await fetcher.close()


async def test_a_partition_fetch_waits_for_what_is_not_there_yet(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    fetcher = Fetcher(client)
    try:
        partition_fetch = await fetcher.open(topic, 0, 0)
        await asyncio.to_thread(produce_values, bootstrap, topic, [b"a"])
        assert (await read_partition_fetches(fetcher, {partition_fetch: 1}))[partition_fetch] == [0]
        await asyncio.to_thread(produce_values, bootstrap, topic, [b"b"])
        assert (await read_partition_fetches(fetcher, {partition_fetch: 2}))[partition_fetch] == [1]
        partition_fetch.seek(0)
        assert (await read_partition_fetches(fetcher, {partition_fetch: 2}))[partition_fetch] == [0, 1]
    finally:
        await fetcher.close()


async def test_a_partition_fetch_learns_that_the_log_ends_where_it_stands(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    await asyncio.to_thread(produce_values, bootstrap, topic, [b"a"])
    fetcher = Fetcher(client)
    try:
        partition_fetch = await fetcher.open(topic, 0, 1)
        async with asyncio.timeout(30):
            await fetcher.changed.wait()
        assert (partition_fetch.stable_end, partition_fetch.ready) == (1, None)
        partition_fetch.seek(0)
        assert (await read_partition_fetches(fetcher, {partition_fetch: 1}))[partition_fetch] == [0]
        partition_fetch.rest()
        await asyncio.to_thread(produce_values, bootstrap, topic, [b"b"])
        other = await fetcher.open(topic, 0, 1)
        assert (await read_partition_fetches(fetcher, {other: 2}))[other] == [1]
        assert partition_fetch.ready is None
    finally:
        await fetcher.close()


async def test_a_position_that_the_log_does_not_have(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"] * 10)
    delete_below(bootstrap, topic, 5)
    fetcher = Fetcher(client)
    try:
        below, above = await fetcher.open(topic, 0, 2), await fetcher.open(topic, 0, 11)
        async with asyncio.timeout(DEADLINE_S):
            while not (below.ready and above.ready):
                fetcher.changed.clear()
                await fetcher.changed.wait()
        assert (below.take(), above.take()) == (Lost(2), Lost(11))
        below.seek(5)
        assert (await read_partition_fetches(fetcher, {below: 10}))[below] == [5, 6, 7, 8, 9]
    finally:
        await fetcher.close()


async def test_uncommitted_records_are_not_fetched(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"x")
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    fetcher = Fetcher(client)
    try:
        partition_fetch = await fetcher.open(topic, 0, 0)
        assert (await read_partition_fetches(fetcher, {partition_fetch: 6}))[partition_fetch] == [0, 4]
        assert partition_fetch.stable_end == 6 and partition_fetch.ready is None
    finally:
        await fetcher.close()
        producer.abort_transaction(30)


async def test_a_topic_that_comes_later(client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture) -> None:
    """An unknown topic is waited for, and does not keep others from being read."""
    known = new_topic()
    produce_values(bootstrap, known, [b"a"] * 3)
    fetcher = Fetcher(client)
    try:
        late, partition_fetch = await fetcher.open(f"{known}-late", 0, 0), await fetcher.open(known, 0, 0)
        assert (await read_partition_fetches(fetcher, {partition_fetch: 3}))[partition_fetch] == [0, 1, 2]
        await asyncio.to_thread(make_topic, bootstrap, f"{known}-late")
        await asyncio.to_thread(produce_values, bootstrap, f"{known}-late", [b"b"])
        assert (await read_partition_fetches(fetcher, {late: 1}))[late] == [0]
    finally:
        await fetcher.close()


@pytest.mark.parametrize(("start", "end"), [(0, 300), (17, 18), (120, 300), (5, 5), (299, 300)])
async def test_a_span_is_read_once(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, start: int, end: int
) -> None:
    topic = new_topic()
    values = [b"%d" % number for number in range(300)]
    values[20] = b""
    produce_values(bootstrap, topic, values, **{"batch.num.messages": 30, "compression.type": "lz4"})
    found = [(offset, value) async for offset, _, value in read_records(client, topic, 0, start, end)]
    assert found == list(enumerate(values))[start:end]


async def test_a_span_that_the_log_has_lost(client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"] * 10)
    delete_below(bootstrap, topic, 5)
    with pytest.raises(SourceChanged, match=f"{topic}-0@2"):
        async for _ in read_span(client, topic, 0, 2, 8):
            pytest.fail("nothing of it can be read")


async def test_the_end_of_the_records_lies_before_markers_and_what_was_aborted(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, admin: Admin
) -> None:
    topic = new_topic()
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)

    def write(records: int, end: Callable[[], object]) -> None:
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, b"x")
        assert producer.flush(30) == 0
        end()

    async def look() -> int:
        await asyncio.to_thread(await_markers, bootstrap, topic)
        (_, end), *_ = (await admin.find_bounds([(topic, 0)])).values()
        return await find_records_end(client, (topic, 0), 0, end)

    assert await look() == 0
    write(3, producer.abort_transaction)
    assert await look() == 0
    write(5, producer.commit_transaction)
    assert await look() == 4 + 5
    for _ in range(LOOK_BACK):
        write(2, producer.abort_transaction)
    assert await look() == 4 + 5
    write(1, producer.commit_transaction)
    assert await look() == 4 + 6 + 3 * LOOK_BACK + 1


async def test_a_batch_larger_than_a_fetch(client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture) -> None:
    """In one of two partitions; brokers hand such a batch out whole only when it comes first."""
    topic = new_topic(partitions=2, max_message_bytes=4_000_000)
    noise = np.random.default_rng(1)
    producer = SureProducer(bootstrap, {"message.max.bytes": 4_000_000})
    for number in range(8):
        producer.produce(topic, noise.bytes(1_000_000 if number % 3 == 0 else 10), partition=number % 2)
        producer.flush(30)
    fetcher = Fetcher(client, partition_bytes=50_000)
    try:
        partition_fetches = {await fetcher.open(topic, 0, 0): 4, await fetcher.open(topic, 1, 0): 4}
        assert list((await read_partition_fetches(fetcher, partition_fetches)).values()) == [[0, 1, 2, 3]] * 2
    finally:
        await fetcher.close()


async def test_every_partition_fetch_gets_its_turn(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six partitions with a backlog a response holds two, and the reader takes what comes at once."""
    monkeypatch.setattr("overlay.kafka.fetcher.RESPONSE_BYTES", 40_000)
    topic = new_topic(partitions=6)
    noise = np.random.default_rng(1)
    producer = SureProducer(bootstrap, {"batch.num.messages": 20})
    for number in range(6 * 400):
        producer.produce(topic, noise.bytes(1_000), partition=number % 6)
    assert producer.flush(30) == 0
    fetcher = Fetcher(client, partition_bytes=20_000)
    taken: list[int] = []
    try:
        partition_fetches = [await fetcher.open(topic, partition, 0) for partition in range(6)]
        async with asyncio.timeout(DEADLINE_S):
            while any(partition_fetch.position < 400 or partition_fetch.ready for partition_fetch in partition_fetches):
                fetcher.changed.clear()
                came = [
                    partition_fetch.partition
                    for partition_fetch in partition_fetches
                    if isinstance(partition_fetch.take(), Fetched)
                ]
                taken += came
                if not came:
                    await fetcher.changed.wait()
    finally:
        await fetcher.close()
    assert len(taken) >= 6 * 15
    last = dict.fromkeys(range(6), 0)
    for turn, partition in enumerate(taken[: 6 * 10]):
        last[partition] = turn
        waited = {other: turn - at for other, at in last.items()}
        assert max(waited.values()) <= 18, f"turn {turn}: a partition was passed over, turns since the last: {waited}"


TRANSIENT = {
    "not leader": 6,
    "leader not available": 5,
    "unknown topic": 3,
    "storage": 56,
    "corrupt message": 2,
    "unknown": -1,
    "fenced epoch": 74,
    "unknown epoch": 75,
}


@pytest.mark.parametrize("code", TRANSIENT.values(), ids=list(TRANSIENT))
async def test_an_error_in_one_partition_is_not_the_others(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """While it lasts the neighbours are read, from the same answers; when it has passed, nothing was lost or passed over."""
    topic = new_topic(partitions=3)
    values = [b"%d" % number for number in range(50)]
    producer = SureProducer(bootstrap, {"batch.num.messages": 10})
    for partition in range(3):
        for value in values:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    refused = {1: True}
    count = 0

    def refuse(_: str, partition: int) -> int:
        nonlocal count
        if not refused.get(partition):
            return 0
        count += 1
        return code

    refuse_fetches(monkeypatch, refuse)
    fetcher = Fetcher(client, partition_bytes=1_000)
    try:
        partition_fetches = [await fetcher.open(topic, partition, 0) for partition in range(3)]
        near = {partition_fetches[0]: 50, partition_fetches[2]: 50}
        assert list((await read_partition_fetches(fetcher, near)).values()) == [list(range(50))] * 2
        assert count > 0 and partition_fetches[1].ready is None and partition_fetches[1].position == 0
        refused[1] = False
        assert (await read_partition_fetches(fetcher, {partition_fetches[1]: 50}))[partition_fetches[1]] == list(
            range(50)
        )
    finally:
        await fetcher.close()


async def test_a_partition_that_may_not_be_read_is_denied_alone(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, free = new_topic(), new_topic()
    produce_values(bootstrap, free, [b"a"] * 10)
    refuse_fetches(monkeypatch, lambda topic, _: 29 if topic == closed else 0)
    fetcher = Fetcher(client)
    try:
        denied, partition_fetch = await fetcher.open(closed, 0, 0), await fetcher.open(free, 0, 0)
        assert (await read_partition_fetches(fetcher, {partition_fetch: 10}))[partition_fetch] == list(range(10))
        async with asyncio.timeout(DEADLINE_S):
            while not denied.ready:
                fetcher.changed.clear()
                await fetcher.changed.wait()
        taken = denied.take()
        assert isinstance(taken, Denied) and closed in taken.reason
    finally:
        await fetcher.close()
    with pytest.raises(CredentialsRefused, match=rf"{closed}: not authorized to read\. Grant Read on the topic"):
        async for _ in read_span(client, closed, 0, 0, 1):
            raise AssertionError


async def test_a_span_behind_an_open_transaction(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers, and has nothing to hand out."""
    monkeypatch.setattr("overlay.kafka.range_reader.PATIENCE_S", 2.0)
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a"] * 3)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    with pytest.raises(SourceUnavailable, match=f"{topic}-0@3: a transaction that began here has been open for 2 s"):
        async for _ in read_span(client, topic, 0, 0, 4):
            pass
    with pytest.raises(StillOpen, match=f"{topic}-0@3: a transaction that began here is open") as caught:
        async for _ in read_span(client, topic, 0, 0, 4, open_s=0.1):
            pass
    assert (caught.value.offset, caught.value.end) == (3, 4)
    producer.abort_transaction(30)
