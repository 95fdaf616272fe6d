"""Connections to Kafka that are kept from one reading to the next: opening them takes longer than many a reading.

A line is what one reading works with: a connection that fetches, another that asks, and what was learnt by them. It
belongs to an event loop. A synchronous reading runs in a thread of its own, and a loop may run in one thread after the other;
so when such a reading ends, the loop stands still with its line until the next one takes both. Nothing runs meanwhile. A
reading in a loop of the caller's has a line that ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiokafka.client import AIOKafkaClient

from overlay.config.stream import StreamConfig
from overlay.kafka.admin import Admin
from overlay.kafka.connection import Properties, open_client
from overlay.kafka.fetch_response import hang_up
from overlay.kafka.log_position import TopicPartition
from overlay.match import Addressing
from overlay.state.partitions import Sources

KEPT = 4
"""Lines that are kept at most; more readings at once open more, and close them."""
FRESH_S = 1.0
"""How long what is known of a topic's partitions is believed."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a line learnt of a stream's partitions when it last asked."""

    sources: Sources
    counts: dict[str, int]
    """Partitions by topic."""
    bounds: dict[TopicPartition, tuple[int, int]]
    """Log start and last stable offset."""


@dataclass(slots=True)
class Connection:
    """Not for two readings at once."""

    kafka: Properties
    admin: Admin
    known: dict[object, Known] = field(default_factory=dict)
    """By what a stream's file says of its topics."""
    _addressing: dict[str, Addressing] = field(default_factory=dict)
    _client: AIOKafkaClient | None = None
    _looked: float = 0.0

    async def open(self) -> AIOKafkaClient:
        """The client that fetches. Raises SourceUnavailable."""
        if self._client is None:
            self._client, self._looked = await open_client(self.kafka), time.monotonic()
        return self._client

    async def refresh(self) -> bool:
        """Learn of partitions that were added, if the last time is a while ago."""
        if self._client is None or time.monotonic() - self._looked < FRESH_S:
            return False
        self._looked = time.monotonic()
        updated: bool = await self._client.force_metadata_update()
        return updated

    def is_divided(self, stream: StreamConfig) -> bool:
        """Whether a stream is known to have several partitions."""
        known = self.known.get(stream.topics)
        return known is not None and not known.sources.is_sequenced

    def find_addressing(self, stream: StreamConfig) -> Addressing:
        """What decodes and addresses the records of a stream of the client's: its buffers, and the subjects it has met."""
        if stream.name not in self._addressing:
            self._addressing[stream.name] = Addressing(stream.subject.rule, stream.patterns)
        return self._addressing[stream.name]

    async def rest(self) -> None:
        """End what is still under way: it would hold up the next reading."""
        if self._client is not None:
            hang_up(self._client)
            await asyncio.sleep(0)  # sockets close in the loop's next round

    async def close(self) -> None:
        client, self._client = self._client, None
        self.known.clear()
        await self.admin.close()
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Connections:
    """The lines of a client that no reading has at the moment, each with its loop; they close with the last who holds this."""

    def __init__(self, kafka: Properties) -> None:
        self._kafka = kafka
        self._free: list[tuple[asyncio.Runner, Connection]] = []
        self._finalizer = weakref.finalize(self, _close_all, self._free)

    def open(self) -> Connection:
        """A line for a loop of the caller's, who closes it."""
        return Connection(self._kafka, Admin(self._kafka))

    def run(self, work: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
        """Run something in this thread with a line, which is kept unless it raises. A cancelled one ends quietly."""
        try:
            runner, line = self._free.pop()
        except IndexError:
            runner, line = asyncio.Runner(), self.open()
        try:
            with contextlib.suppress(asyncio.CancelledError):  # somebody has had enough
                runner.run(work(line))
            runner.run(line.rest())
        except BaseException:
            _close(runner, line)
            raise
        if len(self._free) < KEPT:
            self._free.append((runner, line))
        else:
            _close(runner, line)

    def close(self) -> None:
        """Close those that are free."""
        _close_all(self._free)


def _close_all(lines: list[tuple[asyncio.Runner, Connection]]) -> None:
    while lines:
        pair = lines.pop()
        if asyncio._get_running_loop() is None:
            _close(*pair)
        else:  # a thread runs one loop at a time
            closing = threading.Thread(target=_close, args=pair)
            closing.start()
            closing.join()


def _close(runner: asyncio.Runner, line: Connection) -> None:
    try:
        runner.run(line.close())
    finally:
        runner.close()
