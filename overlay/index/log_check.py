"""Whether a log is still the one that was read: batches that somebody remembers, held against those that are there.

What is remembered is a log position: a position, with the epoch and the CRC of the batch before it. A log that was
truncated after an unclean election, or a topic that was created again, has another batch there, or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition as KafkaPartition

from overlay.errors import SourceChanged
from overlay.kafka.fetch_response import fetch
from overlay.kafka.fetcher import READ_COMMITTED, log_position_after
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.logs import get_logger
from overlay.scan.header import split
from overlay.waits import run_all

from .skip.chunks import Chunks

log = get_logger(__name__)

AT_ONCE = 8
"""Batches that are looked at side by side."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What one small fetch says of a partition: its bounds, as committed, and the batch that holds an offset."""

    first: int
    end: int
    log_position: LogPosition
    """Behind that batch; `position` alone where there is none."""


async def glimpse(client: AIOKafkaClient, source: TopicPartition, offset: int) -> Glimpse:
    """Fetch no more than the batch that holds an offset, and wait for nothing. The client has to know the topic.

    Raises KafkaError, OffsetOutOfRangeError when the log does not hold the offset, nor ends there.
    """
    return (await _glimpse(client, _find_leader(client, source), {source: offset}))[source]


async def glimpse_all(
    client: AIOKafkaClient, offsets: Mapping[TopicPartition, int], beside: Collection[TopicPartition] = ()
) -> dict[TopicPartition, Glimpse]:
    """A glimpse of each partition, at once. Of those `beside` only the bounds are wanted.

    A broker answers the requests of a connection one after the other, so these come with the answer about another partition
    that it leads. Raises as `glimpse` does.
    """
    leaders = {source: _find_leader(client, source) for source in offsets}
    asked = {source: {source: offset} for source, offset in offsets.items() if source not in beside}
    for source in beside:
        first = next((other for other in asked if leaders[other] == leaders[source]), source)
        asked.setdefault(first, {})[source] = offsets[source]
    answers = await asyncio.gather(*(_glimpse(client, leaders[first], some) for first, some in asked.items()))
    return {source: found for answer in answers for source, found in answer.items()}


def _find_leader(client: AIOKafkaClient, source: TopicPartition) -> int:
    node: int | None = client.cluster.leader_for_partition(KafkaPartition(*source))
    if node is None or node < 0:
        raise kafka_errors.LeaderNotAvailableError(f"{source[0]}-{source[1]} has no leader")
    return node


async def _glimpse(
    client: AIOKafkaClient, node: int, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Glimpse]:
    # brokers send the first batch of the first partition whole, however little is asked for, and then no more
    wanted = [(topic, [(partition, offset, 1)]) for (topic, partition), offset in offsets.items()]
    response = await fetch(client, node, FetchRequest(0, 0, 1, READ_COMMITTED, wanted))
    found = {}
    for topic, rows in response.topics:
        for partition, code, _, end, first, _, *_, data in rows:
            error, offset = kafka_errors.for_code(code), offsets[topic, partition]
            if error is not kafka_errors.NoError:
                raise error(f"{topic}-{partition}@{offset}")
            log_position = log_position_after(split(np.frombuffer(data or b"", np.uint8)).batches[:1], offset)
            found[topic, partition] = Glimpse(first, end, log_position)
    return found


async def check_log_position(
    client: AIOKafkaClient,
    stream: str,
    source: TopicPartition,
    log_position: LogPosition,
    bounds: tuple[int, int],
    *,
    compacted: bool,
) -> None:
    """Read the batch before a log position again and compare. Raises SourceChanged when the log is not the one that was read.

    `bounds`: log start and high watermark. Compaction rewrites batches or removes them altogether, but leaves their borders
    and epochs: those are compared of a compacted topic, if the batch is still there. A batch that retention has removed
    cannot be compared.
    """
    first, end = bounds
    if log_position.position > end:
        raise SourceChanged(
            f"{source[0]}-{source[1]}: the log ends at {end}, below the position {log_position.position}: it was truncated. Run"
            f" `overlay stream reset {stream}` to start anew"
        )
    if log_position.crc < 0 or log_position.position <= first:
        return
    found = await _batch_before(client, source, log_position.position)
    if found is None:
        return
    same_crc = compacted or found.crc == log_position.crc
    if found.position != log_position.position or found.epoch != log_position.epoch or not same_crc:
        raise SourceChanged(
            f"{source[0]}-{source[1]}@{log_position.position - 1}: the batch before the position is not the one that was read"
            f" (epoch {found.epoch}, was {log_position.epoch}): the log was truncated. Run `overlay stream reset {stream}`"
            " to start anew"
        )


async def _batch_before(client: AIOKafkaClient, source: TopicPartition, position: int) -> LogPosition | None:
    """The log position behind the batch that holds the offset before a position; None where there is no such batch any more."""
    try:
        async for fetched in read_span(client, *source, position - 1, position):
            batches = split(fetched.data).batches
            covering = batches[batches["last_offset"] >= position - 1][:1]
            if not covering.size or covering[0]["base_offset"] >= position:
                return None  # it was compacted away
            return log_position_after(covering, position - 1)
    except SourceChanged:
        return None
    return None


async def void(
    client: AIOKafkaClient,
    stream: str,
    source: TopicPartition,
    chunks: Chunks,
    bounds: tuple[int, int],
    *,
    compacted: bool,
) -> None:
    """Drop the chunks of a log that is not there any more: above the last one whose last batch is still the same.

    A log that is cut goes on in another leader epoch. So of the chunks of one epoch a beginning holds, and if the last of them
    does, all of them do. A log that was cut while it was indexed may have chunks that do not hold below others that do: the
    last one of each epoch is compared. What holds of the first epoch that does not hold as a whole is found by bisection.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def holds(row: int) -> bool:
        try:
            async with gate:
                await check_log_position(client, stream, source, chunks.log_position(row), bounds, compacted=compacted)
        except SourceChanged:
            return False
        return True

    lasts = [*np.flatnonzero(np.diff(chunks.epoch)).tolist(), len(chunks) - 1] if len(chunks) else []
    held = await run_all(map(holds, lasts))
    if all(held):
        return
    first = held.index(False)
    low, high = lasts[first - 1] + 1 if first else 0, lasts[first]  # rows below `low` hold, `high` does not
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            low = middle + 1
        else:
            high = middle
    voided = len(chunks) - low
    chunks.truncate(int(chunks.next_offset[low - 1]) if low else 0)
    log.warning(
        "chunks voided: the log is not the one they were made from", stream=stream, partition=source, chunks=voided
    )
