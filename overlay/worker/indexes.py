"""Opening the indexes that a shard keeps: their topics made, what they hold read back, and that held against the log.

An index is worth keeping only as long as it costs nobody anything: a topic that may not be created or written to leaves
its stream without an index, and says so, while consumers are served as if there were none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin, TopicFacts, new_topic
from overlay.config import ServiceConfig, StreamConfig
from overlay.deliver.outlets import find_fault
from overlay.errors import SourceChanged
from overlay.index.chunks import Chunks
from overlay.logs import get_logger
from overlay.source.index import Index, index_topic
from overlay.source.mark import Mark, Source

from .positions import Place
from .roster import Roster
from .sources import check_mark

log = get_logger(__name__)

_SEGMENT_BYTES = 64 << 20


def index_config(sources: Iterable[TopicFacts]) -> dict[str, str]:
    """The properties with which an index topic is created: what a chunk was written anew for goes, the rest stays as long
    as the records may."""
    kept = [int(facts.config.get("retention.ms", -1)) for facts in sources]
    config = {"cleanup.policy": "compact", "segment.bytes": str(_SEGMENT_BYTES)}
    if kept and min(kept) >= 0:
        config |= {"cleanup.policy": "compact,delete", "retention.ms": str(max(kept))}
    return config


async def open_indexes(
    client: AIOKafkaClient, admin: Admin, service: ServiceConfig, keeps: Mapping[str, str], roster: Roster
) -> dict[Place, Mark]:
    """Where indexing goes on in each partition of the streams `keeps`, whose values say why one is left out for now.

    Fills the roster's `index_topics`, `indexes` and `unindexed`. Raises SourceUnavailable.
    """
    wanted = {name: index_topic(service.topics.prefix, name) for name in keeps if name in roster.sources}
    roster.unindexed = {name: why for name, why in keeps.items() if why and name in wanted}
    refused = await _ensure_topics(admin, service, wanted, roster)
    resumes: dict[Place, Mark] = {}
    for name, topic in wanted.items():
        if name not in roster.unindexed and topic in refused:
            roster.unindexed[name] = refused[topic]
            log.error("the stream has no index", stream=name, reason=refused[topic])
        if name not in roster.unindexed:
            index, marks = await _open(client, admin, topic, roster.streams[name], roster)
            roster.index_topics[name], roster.indexes[name] = topic, index
            resumes |= {(name, source): mark for source, mark in marks.items()}
    return resumes


async def _ensure_topics(
    admin: Admin, service: ServiceConfig, wanted: Mapping[str, str], roster: Roster
) -> dict[str, str]:
    """Create the index topics that are missing; why for each that cannot be written to."""
    refused: dict[str, str] = {}
    present = await admin.find_topics(wanted.values(), denied=refused)
    missing = {
        topic: index_config(found for t in roster.streams[name].topic_names if (found := roster.topics.get(t)))
        for name, topic in wanted.items()
        if topic not in present and topic not in refused
    }
    refused |= await admin.create_topics(
        new_topic(topic, 1, service.topics.replication, config) for topic, config in missing.items()
    )
    present |= await admin.await_topics(topic for topic in missing if topic not in refused)
    return refused | {name: f"topic {name}: {fault}" for name, facts in present.items() if (fault := find_fault(facts))}


async def _open(
    client: AIOKafkaClient, admin: Admin, topic: str, stream: StreamConfig, roster: Roster
) -> tuple[Index, dict[Source, Mark]]:
    index = Index(stream)
    first, end = (await admin.find_bounds([(topic, 0)]))[topic, 0]
    index.position = first
    await index.read(client, topic, end)
    sources = roster.sources[stream.name].partitions
    bounds = await admin.find_bounds(sources, committed=False)
    resumes = {}
    for source in sources:
        chunks = index.of(source)
        chunks.drop(bounds[source][0])
        facts = roster.topics.get(source[0])
        compacted = facts is not None and "compact" in facts.config.get("cleanup.policy", "")
        await _void(client, stream.name, source, chunks, bounds[source], compacted=compacted)
        resumes[source] = index.find_resume(source, bounds[source][0])
    held = sum(len(chunks) for chunks in index.chunks.values())
    log.info(
        "index read", stream=stream.name, chunks=held, resumes={f"{t}-{p}": m.position for (t, p), m in resumes.items()}
    )
    return index, resumes


async def _void(
    client: AIOKafkaClient, stream: str, source: Source, chunks: Chunks, bounds: tuple[int, int], *, compacted: bool
) -> None:
    """Drop the chunks of a log that is not there any more: above the last one whose last batch is still the same.

    A log is cut at one place, so what holds is a beginning of the chunks, and its end is found by bisection.
    """

    async def holds(row: int) -> bool:
        mark = Mark(int(chunks.next_offset[row]), int(chunks.epoch[row]), int(chunks.crc[row]))
        try:
            await check_mark(client, stream, source, mark, bounds, compacted=compacted)
        except SourceChanged:
            return False
        return True

    if not len(chunks) or await holds(len(chunks) - 1):
        return
    low, high = 0, len(chunks) - 1  # rows below `low` hold, `high` does not
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
