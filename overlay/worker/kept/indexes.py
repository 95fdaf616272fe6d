"""Opening of the indexes that a shard keeps: creates their topics, reads them back, and compares
them with the log.

Chunk headers are worth keeping only as long as they harm no consumer. If the index topic cannot be
created or written to, the stream has no index and reports the reason; consumers are served without
one.

A ledger is different, for without it the stream has no sequences. If it cannot be opened
(ledgers.py), the stream stops. Behind an open transaction it waits (blocked.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from aiokafka.client import AIOKafkaClient

from overlay.config import ServiceConfig
from overlay.index.log_check import void
from overlay.index.retention import index_config
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, TopicFacts, new_topic
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic
from overlay.kafka.range_reader import StillOpen
from overlay.logs import get_logger
from overlay.output.topics import find_fault
from overlay.state.shard_state import Delta, ShardState, StreamPartition
from overlay.worker.assignment import Assignment
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.round.indexing import Reach

from . import blocked, ledgers
from .merging import merge_small

log = get_logger(__name__)


async def open_indexes(
    client: AIOKafkaClient,
    admin: Admin,
    service: ServiceConfig,
    keeps: Mapping[str, str],
    assignment: Assignment,
    state: ShardState,
    delta: Delta,
    waited: Container[str] = (),
) -> dict[StreamPartition, LogPosition]:
    """Open the indexes of the assignment's streams. Return the log position from which indexing goes on in each
    partition of the streams whose index is kept here.

    `keeps`: the streams whose index this shard keeps, each with the reason if it is left out for now, else "". `waited`:
    streams whose ledgers were behind an open transaction already in the last session, so that no time is left for them.

    Fills the assignment's `index_topics` and `unindexed` for these streams, and `opening` with batches for their
    topics. Fills `indexes` for all streams whose index topic can be used and that are not stopped, since catching-up
    consumers read by it whichever shard keeps it. Opens the ledgers of the streams that need or have one, or stops
    these streams; `delta` gets the identities of their topics. Raises SourceUnavailable.
    """
    topics = {name: index_topic(service.topics.prefix, name) for name in assignment.sources}
    known = {name: state.topics[name, topic] for name, topic in topics.items() if (name, topic) in state.topics}
    assignment.unindexed = {name: why for name, why in keeps.items() if why and name in topics}
    present, refused = await _ensure_topics(
        admin, service, topics, {name for name in keeps if name not in known}, assignment
    )
    resumes: dict[StreamPartition, LogPosition] = {}
    for name, topic in topics.items():
        # a ledger that the state knows, or several partitions: then the stream needs the topic
        is_kept = name in keeps and name not in assignment.unindexed
        needs_ledger = name in known or len(assignment.sources[name].partitions) > 1
        if needs_ledger:
            # watched like the source topics: a change ends the session
            assignment.topics[topic] = present.get(topic)
        # without the topic: no ledger stops the stream, no index only costs speed
        if topic in refused:
            if needs_ledger:
                assignment.stop(name, ledgers.explain_refusal(name, topic, refused[topic], known))
            elif is_kept:
                assignment.unindexed[name] = refused[topic]
                log.error("the stream has no index", stream=name, reason=refused[topic])
            continue
        bound = {source for source in assignment.streams[name].topic_names if (name, source) in state.topics}
        open_s = _find_patience(name, waited, assignment) if is_kept and needs_ledger else None
        try:
            index, log_positions = await _open(client, admin, topic, name, assignment, bound, open_s)
        except StillOpen as error:
            assignment.block(name, blocked.Blocked(topic, error.offset, error.end))
            continue
        if needs_ledger or index.ledger.next_sequence > 1:
            # a ledger in the topic counts even if the stream did not seem to need one
            opening = ledgers.Opening(name, topic, present[topic].identity, index, is_kept)
            if not await _open_ledger(client, admin, opening, assignment, state, delta):
                continue
        assignment.indexes[name] = index
        if is_kept:
            assignment.index_topics[name] = topic
            assignment.opening += await merge_small(client, admin, topic, index, log_positions)
            resumes |= {(name, source): log_position for source, log_position in log_positions.items()}
    return resumes


def _find_patience(stream: str, waited: Container[str], assignment: Assignment) -> float:
    """Return for how many seconds an open transaction in a stream's ledger is waited for: 0 after the first such ledger, and
    for a stream in `waited`, as the other streams of the shard wait meanwhile."""
    return 0.0 if stream in waited or assignment.blocked else blocked.PATIENCE_S


async def _open_ledger(
    client: AIOKafkaClient,
    admin: Admin,
    opening: ledgers.Opening,
    assignment: Assignment,
    state: ShardState,
    delta: Delta,
) -> bool:
    """Open the ledger of a stream, or stop the stream in the assignment, with the reason. Return
    whether the ledger is open. Raises SourceUnavailable."""
    stream = opening.stream
    if why := ledgers.find_trouble(opening, state, assignment) or assignment.unindexed.get(stream, ""):
        # the ledger of another shard was read up to an open transaction only, and its rounds may all be behind it
        is_bare = not opening.is_kept and opening.index.ledger.next_sequence == 1
        if is_bare and (found := await blocked.find_blocked(admin, opening.topic)) is not None:
            assignment.block(stream, found)
        else:
            assignment.stop(stream, why)
        return False
    if not opening.is_kept and (why := await ledgers.find_outdated(client, admin, opening, assignment)):
        assignment.stop(stream, why)
        assignment.waiting.add(stream)
        return False
    await ledgers.open_ledger(client, admin, opening, assignment, delta)
    return True


async def _ensure_topics(
    admin: Admin, service: ServiceConfig, topics: Mapping[str, str], ours: Container[str], assignment: Assignment
) -> tuple[dict[str, TopicFacts], dict[str, str]]:
    """Return the facts of the index topics that exist, and by topic the reason why it cannot be
    used: it is missing, may not be read or created, or accepts no records now. A topic that exists
    and accepts no records is in both.

    `topics`: the index topic of each stream. Missing topics of the streams in `ours` are created
    first.
    """
    refused: dict[str, str] = {}
    present = await admin.find_topics(topics.values(), denied=refused)
    absent = {name: topic for name, topic in topics.items() if topic not in present and topic not in refused}
    missing = {
        topic: index_config(found for t in assignment.streams[name].topic_names if (found := assignment.topics.get(t)))
        for name, topic in absent.items()
        if name in ours
    }
    refused |= {topic: f"topic {topic} is not there" for name, topic in absent.items() if name not in ours}
    created, more = await create_topics(admin, service, missing)
    present, refused = present | created, refused | more
    refused |= {name: f"topic {name}: {fault}" for name, facts in present.items() if (fault := find_fault(facts))}
    return present, refused


async def create_topics(
    admin: Admin, service: ServiceConfig, configs: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, TopicFacts], dict[str, str]]:
    """Create index topics with these properties, and wait until Kafka knows them. Return their
    facts, and by topic the reason why it could not be created."""
    return await admin.create_topics(
        new_topic(topic, 1, service.topics.replication, config) for topic, config in configs.items()
    )


async def _open(
    client: AIOKafkaClient,
    admin: Admin,
    topic: str,
    name: str,
    assignment: Assignment,
    bound: Container[str],
    open_s: float | None,
) -> tuple[Index, dict[TopicPartition, LogPosition]]:
    """Read the index of the stream `name` from its topic and drop the chunks whose records the log no longer has as they
    were. Return the index, and the log position in each partition from which indexing goes on.

    `open_s`: seconds for which an open transaction is waited for; StillOpen is raised then. None to read without what is not
    committed yet.

    `bound`: the source topics whose ids the state knows. A compacted topic that is not among them
    may have been created again. Its batches cannot tell, since compaction changes them, so its
    chunks are dropped and made anew.
    """
    index = Index(assignment.streams[name])
    first, end = (await admin.find_bounds([(topic, 0)], committed=open_s is None))[topic, 0]
    index.position = first
    await index.read(client, topic, end, open_s)
    assignment.passed_over += ((name, found) for found in index.passed_over.values())
    sources = assignment.sources[name].partitions
    bounds = await admin.find_bounds(sources, committed=False)
    resumes = {}
    for source in sources:
        chunks = index.of(source)
        chunks.drop(bounds[source][0])
        compacted = assignment.is_compacted(source[0])
        if compacted and source[0] not in bound and len(chunks):
            log.warning("chunks of a compacted topic are made anew", stream=name, partition=source, chunks=len(chunks))
            chunks.truncate(0)
        await void(client, name, source, chunks, bounds[source], compacted=compacted)
        resumes[source] = index.find_resume(source, bounds[source][0])
    count = sum(len(chunks) for chunks in index.chunks.values())
    log.info("index read", stream=name, chunks=count, resumes={f"{t}-{p}": m.position for (t, p), m in resumes.items()})
    return index, resumes


def find_reaches(assignment: Assignment, cursors: Cursors) -> dict[StreamPartition, Reach]:
    """Return how far the index of each partition that is indexed here reaches as a session begins."""
    found: dict[StreamPartition, Reach] = {}
    for (stream, source), cursor in cursors.all():
        if cursor.indexed:
            index = assignment.indexes[stream]
            made = index.count_made(source, cursor.position)
            found[stream, source] = Reach(made, cursor.position, index.of(source).count_addresses(made))
    return found
