"""Fetch responses without copies: read from the socket into the buffer that the scan goes on to read.

aiokafka's connections pass what they receive through a stream: into the stream's buffer, out of it, into a BytesIO and out
of that, four copies of every byte, all of them on the event loop. For the small answers of a client that is nothing; for a
scan it is a third of the time that the loop has.

So fetches get connections of their own (aiokafka keeps a connection for each pair of broker and group, and opens, signs in
and closes them as it does the others), and on these the receiving side is taken over: `Frames` is told by asyncio where
the next bytes shall go, and that is the frame they belong to (asyncio.BufferedProtocol). The frame is then decoded
by aiokafka's own schemas, from a reader that hands out record batches as views. Everything but the data goes on to
aiokafka's protocol: writing, the end of the connection, and through it the errors of what is still waiting.

A response stays whole in memory as long as one of its partitions' data is held. Names with an underscore are aiokafka's, whose
minor version is pinned; tests/source/test_wire.py holds what is assumed of them.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol
from aiokafka.errors import CorrelationIdError, NodeNotReadyError
from aiokafka.protocol.fetch import FetchRequest

GROUP = 100
"""Of connections: aiokafka's own groups count from 0."""
VIEW_BYTES = 4 << 10
"""What is shorter is copied: schemas want bytes for names and numbers."""

_SIZE = struct.Struct(">i")


async def fetch(client: AIOKafkaClient, node: int, request: FetchRequest, *, apart: int = 0) -> Any:
    """A broker's response, whose record batches are views of one buffer. Raises KafkaError.

    Brokers answer a connection's requests one after the other. With another number in `apart` it is another connection, where
    no fetch that waits for new records is in front of this one.
    """
    group = GROUP + apart
    connection = await client._get_conn(node, group=group)
    if connection is None:
        raise NodeNotReadyError(f"no connection to broker {node}")
    Frames.take_over(connection)
    return await client.send(node, request, group=group)


def hang_up(client: AIOKafkaClient) -> None:
    """Close the connections on which answers are awaited that nobody wants any more: they would delay those to come."""
    for (_, group), connection in list(client._conns.items()):
        if group >= GROUP and connection._requests:
            connection.close()


class Frames(asyncio.BufferedProtocol):
    """The receiving side of one connection: frames of a size and a body, each an answer to the oldest request."""

    def __init__(self, connection: AIOKafkaConnection) -> None:
        self._connection = connection
        self._inner: AIOKafkaProtocol = connection._protocol
        self._in_body = False
        self._frame = self._rest = memoryview(b"")
        self._expect(_SIZE.size)

    @classmethod
    def take_over(cls, connection: AIOKafkaConnection) -> None:
        """Receive for a connection on which nothing is under way, unless that is done already."""
        transport = connection._writer.transport
        if not isinstance(transport.get_protocol(), cls):
            transport.set_protocol(cls(connection))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        self._rest = self._rest[nbytes:]
        if self._rest:
            return
        done = self._frame
        self._in_body = not self._in_body
        self._expect(_SIZE.unpack(done)[0] if self._in_body else _SIZE.size)
        if not self._in_body:
            self._answer(Body(done.toreadonly()))

    def _expect(self, size: int) -> None:
        # numpy's memory is not zeroed, which for a response of megabytes takes as long as receiving it
        self._frame = np.empty(size, np.uint8).data
        self._rest = self._frame

    def _answer(self, body: Body) -> None:
        """Resolve the oldest request, as the connection would; what goes wrong here ends the connection."""
        correlation_id, request, future = self._connection._requests[0]
        found = request.parse_response_header(body).correlation_id
        if found != correlation_id:
            raise CorrelationIdError(f"sent {correlation_id}, received {found}")
        if not future.done():
            future.set_result(request.RESPONSE_TYPE.decode(body))
        # only now: whatever is still there when the connection ends gets its error from aiokafka
        self._connection._requests.popleft()
        self._connection._last_action = time.monotonic()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class Body:
    """What aiokafka's schemas read from: like BytesIO, without copies of what is long."""

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def read(self, size: int) -> bytes | memoryview:
        """The next bytes; fewer at the end, as of a file."""
        piece = self._view[self._at : self._at + size]
        self._at += len(piece)
        return piece if size >= VIEW_BYTES else bytes(piece)
