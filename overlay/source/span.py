"""Reading a part of a partition once, from one offset to another: state logs, last messages, samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from overlay.errors import SourceChanged, SourceUnavailable
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.kernel import open_bodies

from .feed import READ_COMMITTED, Denied, Feed, Fetched, Lost

PATIENCE_S = 30.0


async def read_span(
    client: AIOKafkaClient, topic: str, partition: int, start: int, end: int
) -> AsyncIterator[Fetched]:
    """Fetches that together hold the offsets start <= offset < end; `end` at or below the last stable offset.

    Raises SourceChanged when `start` is not in the log, SourceUnavailable when nothing comes for a while.
    """
    if start >= end:
        return
    feed = Feed(client)
    try:
        lane = await feed.open(topic, partition, start)
        position = start
        while position < end:
            feed.changed.clear()
            match lane.take():
                case Fetched() as fetched:
                    yield fetched
                    position = fetched.next_offset
                    if position == fetched.position:
                        return  # a batch that cannot be read; whoever decodes it says so
                case Lost(at):
                    raise SourceChanged(f"{topic}-{partition}@{at}: the log does not hold this offset any more")
                case Denied(reason):
                    raise SourceChanged(reason)
                case None:
                    await _wait(feed, topic, partition, position)
    finally:
        await feed.close()


async def _wait(feed: Feed, topic: str, partition: int, position: int) -> None:
    try:
        await asyncio.wait_for(feed.changed.wait(), PATIENCE_S)
    except TimeoutError:
        raise SourceUnavailable(f"{topic}-{partition}@{position}: no answer within {PATIENCE_S:.0f} s") from None


async def read_values(
    client: AIOKafkaClient, topic: str, partition: int, start: int, end: int
) -> AsyncIterator[tuple[int, bytes]]:
    """Offset and value of each record with a value; for small topics, where a Python object a record does not matter."""
    decoder = Decoder(make_plan())
    async for fetched in read_span(client, topic, partition, start, end):
        for piece in decoder.decode(fetched.data, fetched.position, stop=end, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                raise SourceChanged(f"{topic}-{partition}@{piece.base_offset}: {piece.fault.text}")
            columns = [np.empty(len(piece), np.int64) for _ in range(5)]
            open_bodies(piece.buf, piece.body, piece.end, *columns)
            _, _, at, size, _ = columns
            for offset, first, length in zip(piece.offset.tolist(), at.tolist(), size.tolist(), strict=True):
                if length >= 0:
                    yield offset, piece.buf[first : first + length].tobytes()


async def find_end(client: AIOKafkaClient, topic: str, partition: int) -> tuple[int, int]:
    """Log start and high watermark of a partition, committed or not, by an empty-handed fetch. Raises SourceUnavailable."""
    await client.add_topic(topic)
    await client.force_metadata_update()
    node = client.cluster.leader_for_partition(TopicPartition(topic, partition))
    if node is None or node < 0:
        raise SourceUnavailable(f"{topic}-{partition}: has no leader now")
    request = FetchRequest(0, 0, 1, READ_COMMITTED, [(topic, [(partition, 0, 1)])])
    try:
        response = await client.send(node, request)
    except (KafkaError, OSError) as error:
        raise SourceUnavailable(f"{topic}-{partition}: {error}") from error
    _, _, high_watermark, _, log_start, *_ = response.topics[0][1][0]
    return log_start, high_watermark


__all__ = ["Records", "find_end", "read_span", "read_values"]
