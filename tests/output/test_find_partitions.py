"""How a new owner looks up the topics whose partitions it asks for open transactions. The client's answers are made up here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from aiokafka.structs import TopicPartition

from overlay.errors import SourceUnavailable
from overlay.output import transaction
from overlay.output.transaction import Transactions

STATE, OUT = TopicPartition("state", 0), TopicPartition("out", 0)


@pytest.fixture
async def owner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Transactions]:
    made = Transactions({"bootstrap.servers": "127.0.0.1:1"}, "overlay.shard.0", "state", 0)
    monkeypatch.setattr(made._producer.client, "force_metadata_update", AsyncMock(return_value=True))
    yield made
    await made.close()


async def test_topics_are_not_looked_up_by_a_request_that_does_not_name_them(owner: Transactions) -> None:
    """aiokafka would have the caller wait for an update of metadata that is under way."""
    client = owner._producer.client
    client._md_update_fut = asyncio.get_running_loop().create_future()
    looking = asyncio.create_task(owner.look_up(["out"]))
    for _ in range(5):
        await asyncio.sleep(0)
    client.force_metadata_update.assert_not_awaited()
    client._md_update_fut.set_result(True)
    client._md_update_fut = None
    await looking
    client.force_metadata_update.assert_awaited_once()
    assert "out" in client._topics


async def test_partitions_are_asked_for_until_kafka_tells(owner: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its partitions, an output would not be asked what is open there."""
    client = owner._producer.client
    monkeypatch.setattr(
        client.cluster,
        "partitions_for_topic",
        lambda topic: {0} if topic == "state" or client.force_metadata_update.await_count > 2 else None,
    )
    assert await owner.find_partitions(["state", "out"]) == {STATE, OUT}
    client.force_metadata_update.reset_mock()
    monkeypatch.setattr(transaction, "DEADLINE_S", 0.0)
    with pytest.raises(SourceUnavailable, match=r"partitions of out$"):
        await owner.find_partitions(["state", "out"])
