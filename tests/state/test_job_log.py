"""The state topic of a Spark job, on a real Kafka."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from overlay.kafka.admin import connect
from overlay.state import job_log
from overlay.state.job_log import AT_ONCE, KEPT, await_settled, forget_old, read_last
from tests.support.kafka import NewTopicFixture, await_markers

WORD = b"committed"


def open_transaction(bootstrap: str, topic: str) -> Producer:
    """A producer whose transaction has one record in the topic, and is open."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, WORD)
    assert producer.flush(60) == 0
    return producer


async def test_what_is_being_committed_is_waited_for(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """Kafka answers a commit before its marker is in the log; a reader does not see the record until then."""
    topic = new_topic()
    producer = open_transaction(bootstrap, topic)
    async with connect({"bootstrap.servers": bootstrap}) as (admin, client):
        waiting = asyncio.create_task(await_settled(admin, topic, 0))
        assert await read_last(client, admin, topic, 0) is None
        assert not waiting.done()
        await asyncio.to_thread(producer.commit_transaction, 60)
        await waiting
        assert await read_last(client, admin, topic, 0) == WORD


async def test_a_transaction_that_does_not_end_is_waited_for_with_a_limit(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    producer = open_transaction(bootstrap, topic)
    monkeypatch.setattr(job_log, "SETTLED_S", 0.1)
    async with connect({"bootstrap.servers": bootstrap}) as (admin, client):
        await await_settled(admin, topic, 0)
        assert await read_last(client, admin, topic, 0) is None
    await asyncio.to_thread(producer.abort_transaction, 60)
    await_markers(bootstrap, topic)


async def test_old_records_of_several_partitions_are_deleted_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of AT_ONCE and no more. A partition that is short is not read."""
    under_way, most, is_full = 0, 0, asyncio.Event()
    deleted: dict[int, int] = {}
    long, end = 3 * AT_ONCE, 5 * KEPT

    async def find_topics(names: object, *, with_config: bool) -> dict[str, object]:
        return {"o": SimpleNamespace(partitions=long + 1)}

    async def find_bounds(sources: list[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        return {source: (0, end if source[1] < long else KEPT) for source in sources}

    async def delete_records(topic: str, partition: int, before: int) -> None:
        deleted[partition] = before

    async def find_last(client: object, topic: str, partition: int, first: int, end: int) -> tuple[int, bytes]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == AT_ONCE:
            is_full.set()
        await asyncio.wait_for(is_full.wait(), 20)
        under_way -= 1
        return KEPT + partition, WORD

    monkeypatch.setattr(job_log, "_find_last", find_last)
    admin = SimpleNamespace(find_topics=find_topics, find_bounds=find_bounds, delete_records=delete_records)
    await forget_old(cast("Any", None), cast("Any", admin), "o")
    assert most == AT_ONCE
    assert deleted == {partition: KEPT + partition for partition in range(long)}
