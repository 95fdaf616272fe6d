"""Checks that a log is still the one that was read, by comparing remembered batches with the log.

A log position remembers an offset with the epoch and the CRC of the batch before it. If the log was
truncated after an unclean election, or the topic was created anew, that offset follows another
batch, or none.
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

from overlay.errors import CredentialsRefused, SourceChanged
from overlay.kafka.fetch_response import READ_COMMITTED, fetch
from overlay.kafka.fetched import log_position_after
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.logs import get_logger
from overlay.scan.header import split
from overlay.waits import run_all

from .skip.chunks import Chunks

log = get_logger(__name__)

AT_ONCE = 8
"""Batches that are compared at the same time."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What one small fetch has told of a partition: its log start offset (`first`), its last stable
    offset (`end`), and the position after the batch that `glimpse` has found for the requested
    offset (`log_position`).
    """

    first: int
    end: int
    log_position: LogPosition
    """Position after that batch; the offset itself, without epoch and CRC, if there is no such
    batch.
    """


async def glimpse(client: AIOKafkaClient, source: TopicPartition, offset: int) -> Glimpse:
    """Fetch one batch, the one that holds `offset` (the next one if compaction has removed that),
    and return where it ends, the log start and the last stable offset. The broker answers at once,
    even if there is no such batch below the last stable offset yet: then `log_position` is `offset`
    itself, without epoch and CRC. The client has to know the topic.

    Raises KafkaError, in particular OffsetOutOfRangeError if the log neither holds the offset nor
    ends there.
    """
    return (await _glimpse(client, _find_leader(client, source), {source: offset}))[source]


async def glimpse_all(
    client: AIOKafkaClient, offsets: Mapping[TopicPartition, int], beside: Collection[TopicPartition] = ()
) -> dict[TopicPartition, Glimpse]:
    """Return a glimpse of each partition of `offsets`, in requests that are sent at the same time.
    `beside`: those partitions of `offsets` of which only the bounds are needed; the `log_position`
    of their glimpses means nothing.

    A broker answers the requests of a connection one after the other. So a partition in `beside`
    shares the request of another partition that the same broker leads, if there is one. Raises
    KafkaError, as `glimpse` does, if one of the partitions has no leader or answers with an error,
    one in `beside` too.
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
    # A broker sends the first batch of the first partition whole, however few bytes are asked for,
    # and then nothing more.
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
    """Fetch the batch before a log position again and compare its end, epoch and CRC with those
    that the position remembers. Return if they are equal or cannot be compared; raise SourceChanged
    if they differ, or if the log now ends below the position.

    `bounds`: log start and high watermark. If the topic is compacted, the CRC is not compared:
    compaction rewrites batches but keeps their borders and epochs. If the position's CRC is
    unknown, if compaction or retention has removed the batch, or if this user may not read the
    partition, nothing is compared. Raises SourceUnavailable if the partition cannot be read.
    `stream`: its name, for the message.
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
    """Fetch the batch that holds offset `position - 1`, and return the log position at its end.
    None if compaction or retention has removed that batch, if reading it raises SourceChanged for
    another reason, or if this user may not read it. Raises SourceUnavailable.
    """
    try:
        async for fetched in read_span(client, *source, position - 1, position):
            batches = split(fetched.data).batches
            covering = batches[batches["last_offset"] >= position - 1][:1]
            if not covering.size or covering[0]["base_offset"] >= position:
                return None  # compaction has removed it
            return log_position_after(covering, position - 1)
    except (SourceChanged, CredentialsRefused):
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
    """Remove from `chunks`, in memory, the headers that describe a log that no longer exists: the
    first chunk whose last batch is not the one in the log, and all chunks after it. `bounds`: log
    start and high watermark. Raises SourceUnavailable.

    A chunk holds if its last batch is still the one in the log, or cannot be compared
    (check_log_position). A log that was cut continues in another leader epoch. So among the chunks
    of one epoch, those that hold come first; if the last of them holds, all do. A log that was cut
    while it was indexed may have chunks that do not hold below others that do. Therefore the last
    chunk of every epoch is compared, and the first epoch that does not hold as a whole is searched
    by bisection.
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
    # rows below `low` hold, row `high` does not
    low, high = lasts[first - 1] + 1 if first else 0, lasts[first]
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
