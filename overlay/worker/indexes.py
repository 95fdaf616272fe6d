"""Opening the indexes that a shard keeps: their topics made, what they hold read back, and that held against the log.

An index is worth keeping only as long as it costs nobody anything: a topic that may not be created or written to leaves
its stream without an index, and says so, while consumers are served as if there were none.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin, TopicFacts, new_topic
from overlay.config import ServiceConfig, StreamConfig
from overlay.deliver.outlets import find_fault
from overlay.logs import get_logger
from overlay.source.check import void
from overlay.source.index import Index, index_topic
from overlay.source.mark import Mark, Source

from .positions import Place
from .roster import Roster

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

    Fills the roster's `index_topics` and `unindexed` for these, and `indexes` for all streams that have one: who is catching
    up reads by it, whoever keeps it. Raises SourceUnavailable.
    """
    topics = {name: index_topic(service.topics.prefix, name) for name in roster.sources}
    roster.unindexed = {name: why for name, why in keeps.items() if why and name in topics}
    refused = await _ensure_topics(admin, service, topics, keeps, roster)
    resumes: dict[Place, Mark] = {}
    for name, topic in topics.items():
        if topic in refused:
            if name in keeps and name not in roster.unindexed:
                roster.unindexed[name] = refused[topic]
                log.error("the stream has no index", stream=name, reason=refused[topic])
            continue
        roster.indexes[name], marks = await _open(client, admin, topic, roster.streams[name], roster)
        if name in keeps and name not in roster.unindexed:
            roster.index_topics[name] = topic
            resumes |= {(name, source): mark for source, mark in marks.items()}
    return resumes


async def _ensure_topics(
    admin: Admin, service: ServiceConfig, topics: Mapping[str, str], keeps: Container[str], roster: Roster
) -> dict[str, str]:
    """Create the index topics that are missing and ours to keep; why for each that is not there or takes nothing."""
    refused: dict[str, str] = {}
    present = await admin.find_topics(topics.values(), denied=refused)
    absent = {name: topic for name, topic in topics.items() if topic not in present and topic not in refused}
    missing = {
        topic: index_config(found for t in roster.streams[name].topic_names if (found := roster.topics.get(t)))
        for name, topic in absent.items()
        if name in keeps
    }
    refused |= {topic: f"topic {topic} is not there yet" for name, topic in absent.items() if name not in keeps}
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
        await void(client, stream.name, source, chunks, bounds[source], compacted=compacted)
        resumes[source] = index.find_resume(source, bounds[source][0])
    held = sum(len(chunks) for chunks in index.chunks.values())
    log.info(
        "index read", stream=stream.name, chunks=held, resumes={f"{t}-{p}": m.position for (t, p), m in resumes.items()}
    )
    return index, resumes
