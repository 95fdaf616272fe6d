"""Connections to Kafka, kept from one reading to the next, because opening them takes longer than
many readings.

A `Connection` is what one reading works with: a client that fetches, a client for metadata
requests, and what was learnt with them. It belongs to an event loop. A synchronous reading runs in
a thread of its own, and a loop may run in one thread after another. So at the end of such a reading
the loop is stopped and kept together with its connection, and the next reading takes both. Nothing
runs in between. A reading in the caller's loop has a connection that is closed with it.
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
from overlay.kafka.connection import open_client
from overlay.kafka.fetch_response import hang_up
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.properties import Properties
from overlay.match import Addressing, make_addressing
from overlay.state.partitions import Sources

KEPT = 4
"""Most connections that are kept. If more readings run at once, they open further ones and close them."""
FRESH_S = 1.0
"""Seconds for which the number of a topic's partitions is cached."""


@dataclass(frozen=True, slots=True)
class KnownStream:
    """A stream's partitions and their bounds, as they were when they were last looked up."""

    sources: Sources
    counts: dict[str, int]
    """Number of partitions by topic."""
    bounds: dict[TopicPartition, tuple[int, int]]
    """Log start and last stable offset, by partition."""


@dataclass(slots=True)
class Connection:
    """The Kafka clients of one reading, and what it has learnt of streams. Two readings must not use it at once."""

    kafka: Properties
    admin: Admin
    known: dict[object, KnownStream] = field(default_factory=dict)
    """What was last looked up of each stream, by the `topics` of its config."""
    _addressing: dict[str, Addressing] = field(default_factory=dict)
    _client: AIOKafkaClient | None = None
    _looked: float = 0.0

    async def open(self) -> AIOKafkaClient:
        """Return the client that fetches. The first call connects it; later calls return the same
        one, until `close`. Raises SourceUnavailable if it cannot be connected.
        """
        if self._client is None:
            self._client, self._looked = await open_client(self.kafka), time.monotonic()
        return self._client

    async def refresh(self) -> bool:
        """Ask Kafka for new metadata for the client that fetches. Return True if it has come; False
        if the request failed, or if none was sent: there is no open client, or less than FRESH_S
        seconds have passed since the last request or since the client was connected.
        """
        if self._client is None or time.monotonic() - self._looked < FRESH_S:
            return False
        self._looked = time.monotonic()
        updated: bool = await self._client.force_metadata_update()
        return updated

    def is_divided(self, stream: StreamConfig) -> bool:
        """Return whether the stream has several partitions, as far as this connection knows: False if it has not looked
        the stream up yet.
        """
        known = self.known.get(stream.topics)
        return known is not None and not known.sources.is_sequenced

    def find_addressing(self, stream: StreamConfig) -> Addressing:
        """Return the decoder of a stream's records. The first call makes it; later calls return the
        same one, with its buffers and the subjects that it has seen.
        """
        if stream.name not in self._addressing:
            self._addressing[stream.name] = make_addressing(stream)
        return self._addressing[stream.name]

    async def rest(self) -> None:
        """Drop the fetch requests that have no answer yet, by closing their TCP connections.
        Otherwise the next reading would wait for those answers. Both clients can be used on, and
        what is known of streams stays.
        """
        if self._client is not None:
            hang_up(self._client)
            await asyncio.sleep(0)  # sockets close in the loop's next iteration

    async def close(self) -> None:
        """Close both clients and clear `known`. A later `open` connects a new client."""
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
    """The connections of a Client that no reading uses at the moment, at most KEPT, each with the
    event loop that it belongs to.

    They are closed when this object is garbage-collected.
    """

    def __init__(self, kafka: Properties) -> None:
        self._kafka = kafka
        self._free: list[tuple[asyncio.Runner, Connection]] = []
        self._finalizer = weakref.finalize(self, _close_all, self._free)

    def open(self) -> Connection:
        """Return a new connection for the caller's event loop, never one that is kept here. Nothing
        is sent yet. The caller closes it.
        """
        return Connection(self._kafka, Admin(self._kafka))

    def run(self, work: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine `work(connection)` to its end, blocking this thread, in an event loop
        of this thread. The connection is one that was kept, or a new one.

        Afterwards connection and loop are kept for the next call, unless KEPT are kept already or
        `work` raised; then they are closed. Raises what `work` raises, but returns normally if
        `work` was cancelled.
        """
        try:
            runner, line = self._free.pop()
        except IndexError:
            runner, line = asyncio.Runner(), self.open()
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the reading was stopped
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
        """Close the connections that are kept, and their loops; those of readings that run stay open."""
        _close_all(self._free)


def _close_all(lines: list[tuple[asyncio.Runner, Connection]]) -> None:
    while True:
        try:
            pair = lines.pop()
        except IndexError:  # another thread may have taken the last one just now
            return
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
