"""Merging of small neighbouring chunks when an index is opened; overlay/index/skip/merge.py says
what may merge.

Chunks in memory show which of them would fit into one with a neighbour. Their headers are read from
the index topic again, since memory does not keep whole headers. So nothing is done if only a small
share of the chunks is small. The last chunk of a partition is not merged while it still grows.

The merged headers are written in the first transaction of a session, and the keys of the headers
they replace are deleted in it. A reader of the index topic sees all of that or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.clock import now_ms
from overlay.config.stream import IndexConfig
from overlay.errors import CredentialsRefused, SourceChanged
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.encode import decode, decode_key, encode, encode_key, parse_values
from overlay.index.skip.merge import Merged, merge
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.range_reader import read_records
from overlay.logs import get_logger
from overlay.output.batch_builder import OutputBatch
from overlay.output.record import Record
from overlay.worker.round.indexing import pack

log = get_logger(__name__)

LEAST_PART = 0.01
"""The share of an index's chunks that must be small for their headers to be read again."""


async def merge_small(
    client: AIOKafkaClient, admin: Admin, topic: str, index: Index, resumes: Mapping[TopicPartition, LogPosition]
) -> list[OutputBatch]:
    """Merge the small chunks of an index kept here, in memory. Return the records that replace
    their headers, as batches for the index topic, which the caller has to write. If fewer than the
    share LEAST_PART of all chunks are small, or none can be merged, change nothing and return none.

    `resumes`: where indexing goes on, by partition; chunks that end after it are left alone. Raises
    SourceUnavailable.
    """
    config = index.stream.index
    small = {
        source: find_small(index.of(source), config, log_position.position) for source, log_position in resumes.items()
    }
    wanted = {(source, first) for source, found in small.items() for first in found.tolist()}
    if len(wanted) < LEAST_PART * sum(map(len, index.chunks.values())) or not wanted:
        return []
    headers = await _read_headers(client, admin, topic, index, wanted)
    records = list[Record]()
    for source, found in small.items():
        held = [header for first in found.tolist() if (header := headers.get((source, first))) is not None]
        merged = list(merge(held, config))
        if merged:
            index.of(source).extend(parse_values([encode(one.header)[1] for one in merged]), np.arange(len(merged)))
            records += _write(merged)
            log.info(
                "small chunks merged", partition=f"{source[0]}-{source[1]}", into=len(merged),
                chunks=sum(len(one.replaced) for one in merged),
            )  # fmt: skip
    return pack(topic, records, now_ms())


def find_small(chunks: Chunks, config: IndexConfig, stop: int) -> Ints:
    """Return the first offsets (int64, ascending) of the chunks that would fit into one chunk with
    the chunk right before or after it. Chunks that end after the offset `stop` do not count."""
    first, after = chunks.first_offset, chunks.next_offset
    fits = (first[1:] == after[:-1]) & (after[1:] <= stop)
    fits &= chunks.records[1:] + chunks.records[:-1] <= config.chunk_records
    fits &= chunks.bytes[1:] + chunks.bytes[:-1] <= config.chunk_bytes
    small = np.zeros(len(chunks), np.bool_)
    small[1:] |= fits
    small[:-1] |= fits
    found: Ints = first[small]
    return found


async def _read_headers(
    client: AIOKafkaClient, admin: Admin, topic: str, index: Index, wanted: set[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], Header]:
    """Read the index topic and return the current headers of the wanted chunks, by partition and first offset. A
    header that cannot be read is left out. Empty if reading the records raises SourceChanged or CredentialsRefused.
    Raises SourceUnavailable.
    """
    first, _ = (await admin.find_bounds([(topic, 0)]))[topic, 0]
    headers = dict[tuple[TopicPartition, int], Header]()
    try:
        async for _, key, value in read_records(client, topic, 0, first, index.position, compacted=True):
            named = decode_key(key) if key is not None else None
            if named is None or (place := (named[:2], named[2])) not in wanted:
                continue
            header, chunks = decode(value), index.of(place[0])
            row = chunks.find(place[1])
            if isinstance(header, Header) and row >= 0 and header.next_offset == chunks.next_offset[row]:
                headers[place] = header
    except (SourceChanged, CredentialsRefused) as error:
        log.warning("small chunks are not merged", reason=str(error))
        return {}
    return headers


def _write(merged: list[Merged]) -> Iterator[Record]:
    """Yield a record for each merged header, and a tombstone for each other header that it
    replaces."""
    for one in merged:
        yield Record(*encode(one.header))
        for header in one.replaced[1:]:
            yield Record(encode_key(header.topic, header.partition, header.first_offset), None)
