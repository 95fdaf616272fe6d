"""The state topic of a Spark job, on a real Kafka."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from confluent_kafka import Producer

from overlay.kafka.admin import connect
from overlay.state import job_log
from overlay.state.job_log import await_settled, read_last
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
