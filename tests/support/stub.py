"""A broker that says what a test tells it to, in Kafka's protocol: for moments that a real one passes through too quickly."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import (
    ApiVersionRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.api import RequestHeader_v1, RequestHeader_v2, ResponseHeader_v0, ResponseHeader_v1
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from overlay.kafka.protocol import (
    NO_TAGS,
    Code,
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    ListOffsetsRequest,
    TopicsRequest,
)

_REQUESTS: tuple[Any, ...] = (
    TopicsRequest,
    ListOffsetsRequest,
    DescribeGroupsRequest,
    ConsumerGroupDescribeRequest,
    FindCoordinatorRequest,
    OffsetFetchRequest,
    DescribeConfigsRequest,
    CreateTopicsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
)
# those that are written in one version are known in that one, the others in the newest that aiokafka writes
_CLASSES = {kind.API_KEY: kind._CLASSES[-1] for kind in _REQUESTS} | {18: ApiVersionRequest._CLASSES[0]}

Handler = Callable[[Any], tuple[Any, ...] | None]
"""Returns the fields of the answer, or None to give none. Raises Cut to break the connection."""


class Cut(Exception):
    """The connection breaks instead of an answer."""


class Stub:
    """One broker. `on` says what answers a request; `asked` counts requests by class of request."""

    def __init__(self, node: int = 1) -> None:
        self.node, self.host, self.port = node, "127.0.0.1", 0
        self.others: list[Stub] = []
        """Further brokers of the cluster, as metadata tells them."""
        self.opened = 0
        self.is_silent = False
        """Connections stay open and nothing is answered any more, as after a power failure."""
        self._handlers: dict[int, Handler] = {}
        self.asked: dict[int, int] = {}
        self._writers: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        self.on(TopicsRequest, lambda _: self.tell_topics({}))
        self.on(FindCoordinatorRequest, lambda _: (0, 0, None, self.node, self.host, self.port))

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def on(self, kind: Any, handler: Handler) -> None:
        self._handlers[kind.API_KEY] = handler

    def count(self, kind: Any) -> int:
        """Return how many requests of a class have come."""
        return self.asked.get(kind.API_KEY, 0)

    def tell_topics(self, codes: dict[str, int]) -> tuple[Any, ...]:
        """Return the fields of metadata with these topics, of one partition each, which this broker leads."""
        brokers = [(stub.node, stub.host, stub.port, None, NO_TAGS) for stub in (self, *self.others) if stub.port]
        topics: list[tuple[Any, ...]] = [
            (code, topic, "A" * 22, False, [(0, 0, self.node, 0, [1], [1], [], NO_TAGS)], 0, NO_TAGS)
            for topic, code in codes.items()
        ]
        return 0, brokers, "a-cluster", self.node, topics, 0, NO_TAGS

    def drop(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def end(self) -> None:
        """Break all connections, and wait until nothing of them is left."""
        self.drop()
        if serving := [task for task in self._writers.values() if task is not None]:
            await asyncio.wait(serving)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._writers[writer] = asyncio.current_task()
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                answer = self._answer(await reader.readexactly(size))
                if answer is not None:
                    writer.write(len(answer).to_bytes(4) + answer)
        except (Cut, OSError, EOFError):
            pass
        finally:
            del self._writers[writer]
            writer.transport.abort()

    def _answer(self, frame: bytes) -> bytes | None:
        key = int.from_bytes(frame[:2])
        kind = _CLASSES[key]
        read = BytesIO(frame)
        header = RequestHeader_v2 if kind.FLEXIBLE_VERSION else RequestHeader_v1
        _, _, correlation, *_ = header.SCHEMA.decode(read)
        if self.is_silent:
            return None
        self.asked[key] = self.asked.get(key, 0) + 1
        fields = self._tell_versions(frame) if key == 18 else self._handlers[key](kind.decode(read))
        if fields is None:
            return None
        head = ResponseHeader_v1(correlation, NO_TAGS) if kind.FLEXIBLE_VERSION else ResponseHeader_v0(correlation)
        return bytes(head.encode() + kind.RESPONSE_TYPE(*fields).encode())

    def _tell_versions(self, frame: bytes) -> tuple[Any, ...]:
        if (
            int.from_bytes(frame[2:4]) != ApiVersionRequest._CLASSES[0].API_VERSION
        ):  # librdkafka asks again with the oldest
            return Code.UNSUPPORTED_VERSION, []
        return 0, [(key, kind.API_VERSION, kind.API_VERSION) for key, kind in _CLASSES.items() if key != 18]


@contextlib.asynccontextmanager
async def run_stub(node: int = 1, *, context: ssl.SSLContext | None = None) -> AsyncIterator[Stub]:
    """Run a broker for the block."""
    stub = Stub(node)
    server = await asyncio.start_server(stub.serve, stub.host, 0, ssl=context)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
        await stub.end()
