"""Cuts a partition into chunks before it is indexed, so that many tasks can seal chunks at the same time.

Where a chunk ends depends on everything before it (overlay/index/skip/seal.py): it is full with the
first record batch with which it has enough records or bytes. The headers of the batches alone tell
that. So tasks first read parts of the partition from any offset, and note the number of committed
records in each batch. The driver then applies the rule to these numbers. After that each task gets
whole chunks, and seals what one sealer would have made from the first offset to the last.

One case cannot be foreseen: a batch whose values turn out not to decompress. A sealer begins a new
chunk after it, and so does a task, up to the next task's first offset. The index is equally good;
its chunks are only cut at other offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.config.stream import IndexConfig, StreamConfig
from overlay.index.skip.contents import Contents
from overlay.index.skip.encode import encode
from overlay.index.skip.seal import Sealer
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.match import Addressing, make_addressing
from overlay.scan import crc
from overlay.scan.commit import Sight, judge
from overlay.schemas.gate import open_gate


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of a partition, start <= offset < stop."""

    source: TopicPartition
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Record batches of a partition, in order, as arrays with one item per batch.

    `records` (int64): the committed ones; 0 for control batches, aborted batches and those that cannot
    be read. `broken`: whether the batch cannot be read. `bytes` (int64): the size of any batch in the
    log.
    """

    last_offset: Ints
    records: Ints
    bytes: Ints
    broken: np.ndarray[tuple[int], np.dtype[np.bool_]]


def count_batches(kafka: Mapping[str, str], part: Range) -> Batches:
    """Fetch a range from Kafka, and return the record batches whose last offset is in it. Records
    are counted by the batches' headers, without decompressing any.

    Raises SourceChanged, SourceUnavailable.
    """
    return asyncio.run(_count_batches(kafka, part))


async def _count_batches(kafka: Mapping[str, str], part: Range) -> Batches:
    async with _connect(kafka, part.source) as client:
        span = read_span(client, *part.source, part.start, part.stop)
        return join_batches([note_batches(fetched, part) async for fetched in span])


def note_batches(fetched: Fetched, part: Range) -> Batches:
    """Return those batches of a fetch whose last offset is in the range. Those before the fetch's
    position are left out.
    """
    batches = fetched.batches
    sound = crc.matches(fetched.data, batches)
    sight = judge(fetched.data, batches, sound, fetched.aborted)
    inside = (batches["last_offset"] >= max(part.start, fetched.position)) & (batches["last_offset"] < part.stop)
    shown = sound & (sight == int(Sight.SHOWN))
    records = np.where(shown, batches["count"], 0).astype(np.int64)
    sizes = (batches["end"] - batches["at"]).astype(np.int64)
    broken = ~sound | (sight == int(Sight.UNREADABLE))
    return Batches(batches["last_offset"][inside].astype(np.int64), records[inside], sizes[inside], broken[inside])


def join_batches(parts: Sequence[Batches]) -> Batches:
    """Return the batches of neighbouring ranges of one partition as one. `parts`: in the order of
    offsets; may be empty.
    """
    nothing = np.empty(0, np.int64)
    none = Batches(nothing, nothing, nothing, np.empty(0, np.bool_))
    each = [none, *parts]
    return Batches(
        np.concatenate([part.last_offset for part in each]),
        np.concatenate([part.records for part in each]),
        np.concatenate([part.bytes for part in each]),
        np.concatenate([part.broken for part in each]),
    )


def find_ends(batches: Batches, index: IndexConfig) -> list[int]:
    """Return the offset after each complete chunk, ascending. `batches`: all of them from the beginning
    of a chunk on.

    A chunk ends after the batch that fills it by `index.chunk_records` or `index.chunk_bytes`, or after
    a broken batch. Batches after the last end do not fill a chunk.
    """
    ends: list[int] = []
    first = 0
    records, sizes = np.cumsum(batches.records), np.cumsum(batches.bytes)
    breaks = np.append(np.flatnonzero(batches.broken), batches.last_offset.size)
    while first < batches.last_offset.size:
        before = (int(records[first - 1]), int(sizes[first - 1])) if first else (0, 0)
        by_records = int(np.searchsorted(records, before[0] + index.chunk_records))
        by_bytes = int(np.searchsorted(sizes, before[1] + index.chunk_bytes))
        broken = int(breaks[np.searchsorted(breaks, first)])
        last = max(min(by_records, by_bytes), first)
        if broken <= last:
            last = broken
        if last >= batches.last_offset.size:
            break
        ends.append(int(batches.last_offset[last]) + 1)
        first = last + 1
    return ends


def deal_chunks(
    source: TopicPartition, start: int, stop: int, ends: Sequence[int], batches: Batches, size: int
) -> list[Range]:
    """Return ranges that together are start:stop, in order, one for each task. Each has at least
    `size` bytes and ends with the first chunk that fills it; the last one has the rest up to `stop`,
    which may be less and may end within a chunk. Empty if `start` is `stop`.

    `batches`: those of start:stop. `ends`: as `find_ends` returned them for `batches`.
    """
    weights = np.cumsum(batches.bytes)
    parts: list[Range] = []
    at, weighed = start, 0
    for end in ends:
        row = int(np.searchsorted(batches.last_offset, end - 1, side="right"))
        weight = int(weights[row - 1]) if row else 0
        if weight - weighed >= size:
            parts.append(Range(source, at, end))
            at, weighed = end, weight
    if at < stop:
        parts.append(Range(source, at, stop))
    return parts


def seal(kafka: Mapping[str, str], stream: StreamConfig, part: Range) -> list[tuple[bytes, bytes]]:
    """Read a range from Kafka, and return the index records (key, value) of its chunks. The last one may be a chunk
    that is not full: what is left at the end of the range. So may one before a batch that cannot be read.

    The range has to begin where a chunk begins.

    Raises SourceChanged, SourceUnavailable.
    """
    return asyncio.run(_seal(kafka, stream, part))


async def _seal(kafka: Mapping[str, str], stream: StreamConfig, part: Range) -> list[tuple[bytes, bytes]]:
    contents, addressing = Contents(stream), make_addressing(stream)
    sealer = Sealer(contents, *part.source, part.start)
    sealed: list[tuple[bytes, bytes]] = []
    async with _connect(kafka, part.source) as client:
        async for fetched in read_span(client, *part.source, part.start, part.stop, gate=open_gate(stream)):
            # a job seals no chunk because of its age: every chunk is complete
            sealed += await asyncio.to_thread(
                lambda fetched=fetched: list(_seal_fetch(sealer, contents, addressing, part, fetched))  # type: ignore[misc]
            )
    return sealed + [encode(header) for header in sealer.flush()]


def _seal_fetch(
    sealer: Sealer, contents: Contents, addressing: Addressing, part: Range, fetched: Fetched
) -> Iterator[tuple[bytes, bytes]]:
    pieces = addressing.read(
        *part.source, fetched.data, fetched.position, more=contents.fields, stop=part.stop, aborted=fetched.aborted
    )
    for piece in pieces:
        yield from map(encode, sealer.add(piece, fetched.batches, 0))


@asynccontextmanager
async def _connect(kafka: Mapping[str, str], source: TopicPartition) -> AsyncIterator[AIOKafkaClient]:
    client = await open_client(kafka)
    try:
        await client.add_topic(source[0])
        yield client
    finally:
        await client.close()
