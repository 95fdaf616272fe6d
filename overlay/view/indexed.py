"""A stream's chunk index as its topic has it, with the ends of the log, read without a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.config import Loaded, StreamConfig
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import void
from overlay.index.skip.chunks import Chunks
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, connect
from overlay.kafka.connection import reach
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic

from .facts import IndexFacts, IndexPartFacts, LedgerFacts
from .stored import DEADLINE_S, find_partitions, name_source

ABSENT = "there is no index topic yet. A service makes it, or `overlay index build {}`"


@dataclass(frozen=True, slots=True, eq=False)
class StoredIndex:
    """A chunk index as its topic has it.

    `bounds`: log start and committed end of each existing partition of the stream. `reason`: why
    there is no index, "" if there is one.
    """

    stream: StreamConfig
    topic: str
    index: Index
    bounds: Mapping[TopicPartition, tuple[int, int]]
    reason: str = ""

    def chunks_of(self, source: TopicPartition) -> Chunks:
        """Return the chunks of one partition."""
        return self.index.of(source)


async def read_indexes(loaded: Loaded, names: Iterable[str]) -> dict[str, StoredIndex]:
    """Read the chunk indexes of these streams from Kafka, and return them by stream. Entries for
    records that have left the log are left out.

    Raises SourceUnavailable, CredentialsRefused.
    """
    kafka = loaded.service.kafka
    await reach(kafka, DEADLINE_S)
    async with connect(kafka) as (admin, client):
        prefix = loaded.service.topics.prefix
        return {name: await _read(admin, client, loaded.streams[name], index_topic(prefix, name)) for name in names}


async def _read(admin: Admin, client: AIOKafkaClient, stream: StreamConfig, topic: str) -> StoredIndex:
    denied: dict[str, str] = {}
    topics = await admin.find_topics([*stream.topic_names, topic], denied=denied)
    index = Index(stream)
    if topic in topics:
        index.position, end = (await admin.find_bounds([(topic, 0)]))[topic, 0]
        await index.read(client, topic, end)
    # bounds are read after the headers, so that no header covers records beyond them
    sources = find_partitions(stream, topics)
    bounds, written = await admin.find_bounds(sources), await admin.find_bounds(sources, committed=False)
    index.ledger.drop({source: first for source, (first, _) in bounds.items()})
    for source in sources:
        chunks = index.of(source)
        chunks.drop(bounds[source][0])
        compacted = "compact" in topics[source[0]].config.get("cleanup.policy", "")
        await void(client, stream.name, source, chunks, written[source], compacted=compacted)
    reason = denied.get(topic, "" if topic in topics else ABSENT.format(stream.name))
    return StoredIndex(stream, topic, index, bounds, reason)


def describe_index(found: StoredIndex, running: IndexFacts | None = None) -> IndexFacts:
    """Return the facts about an index.

    `running`: what the service says of it, None if it does not answer. Only the service knows the
    rate, and why an index is not kept up to date.
    """
    partitions = {
        name_source(source): _describe_part(found.chunks_of(source), *bounds) for source, bounds in found.bounds.items()
    }
    reason = running.reason if running is not None and running.reason else found.reason
    rate = None if running is None else running.rate
    ledger = describe_ledger(found.index.ledger)
    return IndexFacts(reason, partitions, rate, found.topic, found.index.bytes, found.index.foreign, ledger)


def describe_ledger(ledger: Ledger) -> LedgerFacts | None:
    """Return the facts about a ledger; None if it has not assigned a sequence yet."""
    if ledger.next_sequence == 1:
        return None
    return LedgerFacts(ledger.first_sequence, ledger.next_sequence - 1, len(ledger))


def _describe_part(chunks: Chunks, first: int, end: int) -> IndexPartFacts:
    counts = chunks.count_addresses()
    held = int((chunks.next_offset - np.maximum(chunks.first_offset, first)).sum())
    return IndexPartFacts(
        len(chunks),
        int(chunks.next_offset[-1]) if len(chunks) else first,
        end,
        start=max(int(chunks.first_offset[0]), first) if len(chunks) else first,
        unindexed=end - first - held,
        outdated=int(np.count_nonzero(~chunks.made)),
        records=counts.records,
        unaddressed=counts.unaddressed,
        unaddressed_in=counts.last,
    )
