"""Fetch responses without copies: the socket writes into the buffer that the decoder reads.

aiokafka's connections receive through an asyncio stream: into the stream's buffer, out of it, into
a BytesIO and out of that. These are four copies of every byte, all on the event loop. That does not
matter for small responses. For a scan it takes a third of the event loop's time.

So fetches have connections of their own. aiokafka keeps a connection for each pair of broker and
group, and opens, authenticates and closes these like the others. On these connections `Frames`
replaces the receiving side (asyncio.BufferedProtocol): asyncio asks it for the buffer of the next
bytes and gets the frame that they belong to. aiokafka's schemas then decode the frame from a reader
that returns record batches as views, except short ones. Everything else is passed to aiokafka's
protocol: writing, and the end of the connection, which gives each unanswered request its error.

A response stays in memory as a whole while a view of one partition's data is referenced. Names with
an underscore are aiokafka's, whose minor version is pinned; tests/kafka/test_fetch_response.py
checks what is assumed about them.
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

READ_COMMITTED = 1
"""Isolation level of a fetch that ends at the last stable offset."""
GROUP = 100
"""First connection group for fetches. aiokafka's own groups count from 0."""
VIEW_BYTES = 4 << 10
"""Shorter parts of a response are copied: the schemas need bytes for names and numbers."""

INBOX_BYTES = 128 << 10

_SIZE = struct.Struct(">i")
_NOTHING = memoryview(b"")


async def fetch(client: AIOKafkaClient, node: int, request: FetchRequest, *, apart: int = 0) -> Any:
    """Send a fetch request to the broker with the node id `node` and return the response. Record batches in it are
    views of one buffer, or copies if they are shorter than VIEW_BYTES. Raises KafkaError if no answer arrives; error
    codes of partitions are in the response.

    A broker answers the requests of a connection one after the other. Fetches with different `apart` use different
    connections, so that one does not wait behind another's long poll.
    """
    group = GROUP + apart
    connection = await client._get_conn(node, group=group)
    if connection is None:
        raise NodeNotReadyError(f"no connection to broker {node}")
    Frames.take_over(connection)
    return await client.send(node, request, group=group)


def hang_up(client: AIOKafkaClient) -> None:
    """Close the fetch connections with unanswered requests. The caller no longer needs those
    answers, and they would delay later ones.
    """
    for (_, group), connection in list(client._conns.items()):
        if group >= GROUP and connection._requests:
            connection.close()


class Frames(asyncio.BufferedProtocol):
    """The receiving side of one connection. It reads frames (size, then body), each the answer to
    the oldest request.

    Bytes arrive in an inbox, which may get several small frames at once. If a frame is longer than
    its part in the inbox, the rest is received directly into the frame's own buffer.
    """

    def __init__(self, connection: AIOKafkaConnection) -> None:
        self._connection = connection
        self._inner: AIOKafkaProtocol = connection._protocol
        self._inbox = _allocate(INBOX_BYTES)
        self._held = 0  # bytes in the inbox: part of a frame's size field, fewer than 4
        self._frame = self._rest = _NOTHING

    @classmethod
    def take_over(cls, connection: AIOKafkaConnection) -> None:
        """Make a connection receive through `Frames`, unless it does already. No request may be in
        flight on it.
        """
        transport = connection._writer.transport
        if not isinstance(transport.get_protocol(), cls):
            transport.set_protocol(cls(connection))

    # asyncio.BufferedProtocol: the buffer for the next bytes, and how many were received into it

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._rest or self._inbox[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        if not self._rest:
            self._open(self._inbox[: self._held + nbytes])
            return
        self._rest = self._rest[nbytes:]
        if not self._rest:
            self._answer(FetchBody(self._frame.toreadonly()))
            self._frame = _NOTHING

    def _open(self, received: memoryview) -> None:
        """Cut the received bytes into frames; keep an incomplete size field in the inbox."""
        while len(received) >= _SIZE.size:
            size = _SIZE.unpack_from(received)[0]
            part = received[_SIZE.size : _SIZE.size + size]
            frame = _allocate(size)
            frame[: len(part)] = part
            received = received[_SIZE.size + len(part) :]
            if len(part) < size:
                self._frame, self._rest = frame, frame[len(part) :]
            else:
                self._answer(FetchBody(frame.toreadonly()))
        self._held = len(received)
        self._inbox[: self._held] = bytes(received)

    def _answer(self, body: FetchBody) -> None:
        """Resolve the oldest request, as aiokafka's connection would. An error raised here ends the
        connection.
        """
        correlation_id, request, future = self._connection._requests[0]
        found = request.parse_response_header(body).correlation_id
        if found != correlation_id:
            raise CorrelationIdError(f"sent {correlation_id}, received {found}")
        if not future.done():
            future.set_result(request.RESPONSE_TYPE.decode(body))
        # Remove the request last: if the connection ends before, aiokafka gives the request its
        # error.
        self._connection._requests.popleft()
        self._connection._last_action = monotonic()

    # everything else is handled by aiokafka's protocol

    def eof_received(self) -> None:
        self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def _allocate(size: int) -> memoryview:
    # numpy does not zero its memory; zeroing a response of megabytes takes as long as receiving it.
    return np.empty(size, np.uint8).data


class FetchBody:
    """The input of aiokafka's schemas: reads like BytesIO, but returns long parts as views, without
    a copy.
    """

    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def read(self, size: int) -> bytes | memoryview:
        """Return the next `size` bytes, fewer at the end: a view if `size` is VIEW_BYTES or more,
        else a copy.
        """
        piece = self._view[self._at : self._at + size]
        self._at += len(piece)
        return piece if size >= VIEW_BYTES else bytes(piece)
