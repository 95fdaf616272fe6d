"""How often a fetcher asks a broker that does not answer. Without Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import NodeNotReadyError

from overlay.kafka import fetcher as module
from overlay.kafka.fetcher import Fetcher
from overlay.waits import Backoff, until


class Client:
    """A client of two brokers, which lead a partition each."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(leader_for_partition=lambda tp: tp.partition)

    async def add_topic(self, topic: str) -> None:
        pass

    async def force_metadata_update(self) -> None:
        pass


async def test_pauses_grow_while_a_broker_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker has pauses of its own, and an answer ends them."""
    pauses: dict[int, list[float]] = {0: [], 1: []}
    asked: list[int] = []

    async def rest(self: Backoff, stop: object = None) -> None:
        if stop is None:
            pauses[asked[-1]].append(min(self.shortest_s * 2**self.failures, self.longest_s))
            self.failures += 1
        await asyncio.sleep(0)

    async def fetch(client: object, node: int, request: object, **_: Any) -> Any:
        asked.append(node)
        if node == 1 or asked.count(0) != 8:
            raise NodeNotReadyError("away")
        return SimpleNamespace(topics=[])

    monkeypatch.setattr(Backoff, "rest", rest)
    monkeypatch.setattr(module, "fetch", fetch)
    fetcher = Fetcher(cast(Any, Client()))
    try:
        await fetcher.open("t", 0, 0)
        async with asyncio.timeout(20):
            await until(lambda: asked.count(0) > 10, pause_s=0)
            await fetcher.open("t", 1, 0)
            await until(lambda: asked.count(1) > 2, pause_s=0)
    finally:
        await fetcher.close()
    assert pauses[0][:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 0.05, 0.1]
    assert pauses[1][:2] == [0.05, 0.1]


async def test_requests_that_fail_together_double_the_pause_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks ends all that are in flight."""
    pauses: list[float] = []
    asked: list[asyncio.Future[None]] = []
    client = Client()
    client.cluster = SimpleNamespace(leader_for_partition=lambda _: 0)

    async def rest(self: Backoff, stop: object = None) -> None:
        if stop is None:
            pauses.append(min(self.shortest_s * 2**self.failures, self.longest_s))
        await asyncio.sleep(0)

    async def fetch(*_: object, **__: object) -> Any:
        asked.append(asyncio.get_running_loop().create_future())
        await asked[-1]
        raise NodeNotReadyError("away")

    monkeypatch.setattr(Backoff, "rest", rest)
    monkeypatch.setattr(module, "fetch", fetch)
    fetcher = Fetcher(cast(Any, client), requests=3)
    try:
        for number in range(3):
            await fetcher.open("t", number, 0)
            async with asyncio.timeout(20):
                await until(lambda: len(asked) > number, pause_s=0)  # noqa: B023 - awaited here
        for each in asked[:3]:
            each.set_result(None)
        async with asyncio.timeout(20):
            await until(lambda: len(pauses) == 3 and len(asked) > 3, pause_s=0)
            asked[3].set_result(None)
            await until(lambda: len(pauses) == 4, pause_s=0)
    finally:
        await fetcher.close()
    assert pauses == [0.05, 0.05, 0.05, 0.1]
