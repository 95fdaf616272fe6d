"""Fetch responses without copies: read from the socket into the buffer that the scan goes on to read.

aiokafka's connections pass what they receive through a stream: into the stream's buffer, out of it, into a BytesIO and out
of that, four copies of every byte, all of them on the event loop. For the small answers of a client that is nothing; for a
scan it is a third of the time that the loop has.

So fetches get connections of their own (aiokafka keeps a connection for each pair of broker and group, and opens, signs in
and closes them as it does the others), and on these the receiving side is taken over: asyncio asks `Frames` where the next
bytes shall go, and that is the frame they belong to (asyncio.BufferedProtocol). The frame is then decoded by aiokafka's own
schemas, from a reader that hands out record batches as views. Everything but the data goes on to aiokafka's protocol:
writing, the end of the connection, and through it the errors of what is still waiting.

A response stays whole in memory as long as one of its partitions' data is held. Names with an underscore are aiokafka's, whose
minor version is pinned; tests/kafka/test_fetch_response.py holds what is assumed of them.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol
from aiokafka.errors import CorrelationIdError, NodeNotReadyError
from aiokafka.protocol.fetch import FetchRequest

from overlay.clock import monotonic

GROUP = 100
"""Of connections: aiokafka's own groups count from 0."""
VIEW_BYTES = 4 << 10
"""What is shorter is copied: schemas want bytes for names and numbers."""

INBOX_BYTES = 128 << 10

_SIZE = struct.Struct(">i")
_NOTHING = memoryview(b"")


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
    """The receiving side of one connection: frames of a size and a body, each an answer to the oldest request.

    What comes is received into an inbox, where several small frames may arrive at once. As soon as one is known to be longer
    than what is there of it, the rest of it is received where it belongs.
    """

    def __init__(self, connection: AIOKafkaConnection) -> None:
        self._connection = connection
        self._inner: AIOKafkaProtocol = connection._protocol
        self._inbox = _allocate(INBOX_BYTES)
        self._held = 0  # bytes in the inbox: less than a size
        self._frame = self._rest = _NOTHING

    @classmethod
    def take_over(cls, connection: AIOKafkaConnection) -> None:
        """Receive for a connection on which nothing is under way, unless that is done already."""
        transport = connection._writer.transport
        if not isinstance(transport.get_protocol(), cls):
            transport.set_protocol(cls(connection))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._rest or self._inbox[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._rest:
            self._open(self._inbox[: self._held + nbytes])
            return
        self._rest = self._rest[nbytes:]
        if not self._rest:
            self._answer(Body(self._frame.toreadonly()))
            self._frame = _NOTHING

    def _open(self, received: memoryview) -> None:
        """Take frames out of the inbox."""
        while len(received) >= _SIZE.size:
            size = _SIZE.unpack_from(received)[0]
            part = received[_SIZE.size : _SIZE.size + size]
            frame = _allocate(size)
            frame[: len(part)] = part
            received = received[_SIZE.size + len(part) :]
            if len(part) < size:
                self._frame, self._rest = frame, frame[len(part) :]
            else:
                self._answer(Body(frame.toreadonly()))
        self._held = len(received)
        self._inbox[: self._held] = bytes(received)

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
        self._connection._last_action = monotonic()

    def eof_received(self) -> None:
        self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _allocate(size: int) -> memoryview:
    # numpy's memory is not zeroed, which for a response of megabytes takes as long as receiving it
    return np.empty(size, np.uint8).data


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
