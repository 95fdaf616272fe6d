"""Facts from Kafka alone: positions from the state topic and the plans of Spark jobs, ends from the logs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from overlay.clock import now_ms, now_ns
from overlay.config import ConsumerConfig, Loaded, StreamConfig
from overlay.config.consumer import Engine
from overlay.control.tail import read_registry
from overlay.errors import SourceChanged
from overlay.kafka.admin import Admin, TopicFacts
from overlay.kafka.connection import open_client, reach
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import shard_of
from overlay.state.amend import read_states
from overlay.state.partitions import list_sources
from overlay.state.shard_state import ConsumerId, ShardState
from overlay.units import format_time

from .facts import ConsumerFacts, OverlayFacts, PartitionFacts, StreamFacts

if TYPE_CHECKING:
    from aiokafka.client import AIOKafkaClient

    from overlay.control.registry import Registry
    from overlay.state.job_plan import BatchPlan
    from overlay.state.job_positions import InJob

DEADLINE_S = 5.0
"""Seconds to wait for Kafka. Short, because a user waits at the terminal."""
NEW, WAITING, STOPPED, REMOVED, SPARK = "new", "waiting", "stopped", "removed", "spark"
REMOVED_REASON = "its file is gone and its state is kept until `overlay consumer rm {} {}`"


@dataclass(frozen=True, slots=True)
class Memory:
    """What was read from Kafka at one time: the states of all shards, the topics of all streams, and
    partition bounds.

    `bounds`: log start and committed end of each existing partition.
    """

    states: list[ShardState]
    topics: Mapping[str, TopicFacts]
    bounds: Mapping[TopicPartition, tuple[int, int]]
    cluster: str = ""
    """Kafka's id of the cluster."""
    loaded: Loaded | None = None
    """The config of the files and the control topic together.

    None if the control topic was not read.
    """
    jobs: Mapping[str, BatchPlan] = field(default_factory=dict)
    """The last plan of each Spark job, by the job's name."""

    def state_for(self, consumer: ConsumerId) -> ShardState:
        """Return the state of the shard that owns a consumer; an empty one if no service has run yet."""
        return self.states[shard_of(consumer, len(self.states))] if self.states else ShardState()

    def find_in_jobs(self, consumer: ConsumerId) -> InJob | None:
        """Return a consumer as a Spark job has it; None if no job delivers it."""
        known = self.state_for(consumer).consumers.get(consumer)
        if not self.jobs and (known is None or not known.job):
            return None
        # loaded only where there are Spark jobs, as in _read_plans
        from overlay.state.job_positions import find_in_jobs

        return find_in_jobs(consumer, known, self.jobs)

    def known_consumers(self) -> list[ConsumerId]:
        """Return the ids of all consumers with a state, sorted."""
        return sorted({consumer for state in self.states for consumer in state.consumers})


async def read_memory(loaded: Loaded) -> Memory:
    """Read from Kafka the states of all shards, the topics and bounds of all streams in the config, what the control
    topic has, and, if there may be Spark jobs, their plans. Raises SourceUnavailable and CredentialsRefused, and
    another OverlayError for a state or a plan that cannot be read.
    """
    kafka = loaded.service.kafka
    await reach(kafka, DEADLINE_S)
    async with Admin(kafka) as admin:
        # at once with the logs: most of the time of a command goes to one question after the other
        looking = asyncio.create_task(_read_bounds(admin, loaded.streams.values()))
        try:
            states, jobs, registry = await _read_logs(loaded, admin)
            topics, bounds, cluster = await looking
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    return Memory(states, topics, bounds, cluster, registry.effective(), jobs)


async def _read_bounds(
    admin: Admin, streams: Collection[StreamConfig]
) -> tuple[dict[str, TopicFacts], dict[TopicPartition, tuple[int, int]], str]:
    """Return the topics of the streams by name, the log start and the committed end of each of their partitions, and the
    cluster's id. Raises SourceUnavailable, CredentialsRefused."""
    names = {topic for stream in streams for topic in stream.topic_names}
    topics = await admin.find_topics(names, with_config=False)
    sources = {source for stream in streams for source in find_partitions(stream, topics)}
    return topics, await admin.find_bounds(sorted(sources)), await admin.find_cluster()


async def _read_logs(loaded: Loaded, admin: Admin) -> tuple[list[ShardState], dict[str, BatchPlan], Registry]:
    """Return the states of all shards, the plans of Spark jobs by name, and the consumers by file and by request. Raises as
    `read_memory`."""
    kafka, prefix = loaded.service.kafka, loaded.service.topics.prefix
    # one client for all that is read: connecting takes several requests
    client = await open_client(kafka)
    try:
        reading = asyncio.create_task(read_registry(kafka, admin, loaded, client=client))
        try:
            states = await read_states(client, admin, prefix)
            has_jobs = len(loaded.served) < len(loaded.consumers)
            has_jobs |= any(known.job for state in states for known in state.consumers.values())
            jobs = await _read_plans(client, admin, prefix) if has_jobs else {}
            return states, jobs, await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    finally:
        await client.close()


async def _read_plans(client: AIOKafkaClient, admin: Admin, prefix: str) -> dict[str, BatchPlan]:
    # most folders have no Spark jobs, and loading this takes as long as all questions to Kafka
    from overlay.state.handover import read_plans

    return await read_plans(client, admin, prefix)


def find_partitions(stream: StreamConfig, topics: Mapping[str, TopicFacts]) -> list[TopicPartition]:
    """Return the stream's partitions that exist now, whether or not this user may read them."""
    found: list[TopicPartition] = []
    for entry in stream.topics:
        count = topics[entry.topic].partitions if entry.topic in topics else 0
        wanted = entry.partitions if entry.partitions is not None else range(count)
        found.extend((entry.topic, partition) for partition in wanted if partition < count)
    return found


def describe_memory(loaded: Loaded, memory: Memory) -> OverlayFacts:
    """Return facts about the streams and consumers of the config, and about consumers that only the
    state has. Only consumers of Spark jobs have rates.
    """
    loaded = memory.loaded or loaded
    reasons = {name: find_change(stream, memory) for name, stream in loaded.streams.items()}
    streams = {name: _stream(loaded, stream, memory, reasons[name]) for name, stream in loaded.streams.items()}
    consumers = {c: _consumer(c, config, memory, reasons[c[0]]) for c, config in loaded.consumers.items()}
    for consumer in memory.known_consumers():
        if consumer not in consumers:
            consumers[consumer] = _removed(consumer, memory, known=consumer[0] in reasons)
    return OverlayFacts(streams, dict(sorted(consumers.items())))


def find_change(stream: StreamConfig, memory: Memory) -> str:
    """Return why the state's positions do not fit the stream's topics any more; "" if they do."""
    for state in memory.states or [ShardState()]:
        try:
            list_sources(stream, memory.topics, state)
        except SourceChanged as error:
            return str(error)
    return ""


def _stream(loaded: Loaded, stream: StreamConfig, memory: Memory, reason: str) -> StreamFacts:
    partitions = {}
    for source in find_partitions(stream, memory.topics):
        log_positions = [
            log_position
            for state in memory.states
            if (log_position := _foremost(state, stream.name, source)) is not None
        ]
        # positions in the old log say nothing about the new one
        position = max(log_positions, default=None) if not reason else None
        partitions[name_source(source)] = PartitionFacts(position, memory.bounds[source][1])
    consumers = tuple(name for of, name in sorted(loaded.consumers) if of == stream.name)
    known = any(facts.position is not None for facts in partitions.values())
    state = STOPPED if reason else WAITING if known else NEW
    return StreamFacts(stream.name, stream.topic_names, stream.subjects, state, reason, consumers, partitions)


def _foremost(state: ShardState, stream: str, source: TopicPartition) -> int | None:
    """Return the highest position in a partition of a stream's shared cursor and of the stream's
    consumers in one shard, without those of Spark jobs; None if there is none.
    """
    served = [c for (name, _), c in state.consumers.items() if name == stream and not c.job]
    own = [c.own[source].position for c in served if source in c.own]
    cursor = state.cursors.get((stream, source))
    return max(own + ([cursor.position] if cursor else []), default=None)


def _consumer(consumer: ConsumerId, config: ConsumerConfig, memory: Memory, reason: str) -> ConsumerFacts:
    """Return the facts about a consumer of the config. `reason`: why its stream cannot be read, "" if it can."""
    facts = _placed(consumer, memory, with_lag=not reason) or _Placed(None, {}, None)
    state = STOPPED if reason else NEW if facts.sequence is None else WAITING
    if not reason and (config.pause_until or 0) > now_ns():
        assert config.pause_until is not None
        reason = f"paused until {format_time(config.pause_until)}"
    found = ConsumerFacts(
        *consumer,
        config.deliver_subject,
        config.filters,
        state,
        reason,
        facts.sequence,
        facts.positions,
        facts.lag,
        config=config,
    )
    return _name_job(found, memory.find_in_jobs(consumer)) if config.engine is Engine.SPARK else found


def _name_job(found: ConsumerFacts, job: InJob | None) -> ConsumerFacts:
    """Return the facts about a consumer that is left to Spark jobs, with what is known by its job; None if none has begun
    with it."""
    if job is None:
        from overlay.state.job_positions import NOT_BEGUN

        return replace(found, state=SPARK, reason=NOT_BEGUN)
    rate = job.find_rate(now_ms())
    return replace(found, state=SPARK, reason=job.describe(), rate=rate, job=job.job, owner=job.owner)


def _removed(consumer: ConsumerId, memory: Memory, *, known: bool) -> ConsumerFacts:
    """Return the facts about a consumer that only the state knows.

    `known`: whether its stream is still in the config; only then there are ends to compute a lag
    from.
    """
    facts = _placed(consumer, memory, with_lag=known)
    assert facts is not None  # the caller took this consumer from the state
    reason = REMOVED_REASON.format(*consumer)
    return ConsumerFacts(*consumer, "", (), REMOVED, reason, facts.sequence, facts.positions, facts.lag)


@dataclass(frozen=True, slots=True)
class _Placed:
    sequence: int | None
    positions: dict[str, int]
    lag: int | None


def _placed(consumer: ConsumerId, memory: Memory, *, with_lag: bool) -> _Placed | None:
    """Return a consumer's sequence, positions and lag; None if neither the state nor the plan of a
    Spark job knows it. The lag is None without `with_lag`, or if no end is known.
    """
    state = memory.state_for(consumer)
    known = state.consumers.get(consumer)
    if (of_job := memory.find_in_jobs(consumer)) is not None:
        return _measure(of_job.position.sequence, of_job.position.offsets, memory, with_lag=with_lag)
    if known is None:
        return None
    log_positions = {source: state.log_position_of(consumer, source) for source in _sources_of(state, consumer)}
    positions = {
        source: log_position.position for source, log_position in log_positions.items() if log_position is not None
    }
    return _measure(known.sequence, positions, memory, with_lag=with_lag)


def _measure(sequence: int, positions: Mapping[TopicPartition, int], memory: Memory, *, with_lag: bool) -> _Placed:
    """Return what is shown of a consumer at these positions; the lag is None without `with_lag`, or if no end is known."""
    ends = {source: memory.bounds[source][1] for source in positions if source in memory.bounds}
    lag = sum(max(0, end - positions[source]) for source, end in ends.items()) if with_lag and ends else None
    return _Placed(sequence, {name_source(source): at for source, at in positions.items()}, lag)


def _sources_of(state: ShardState, consumer: ConsumerId) -> Iterable[TopicPartition]:
    """Return the partitions that a consumer has positions in: its stream's cursors and its own."""
    shared = {source for stream, source in state.cursors if stream == consumer[0]}
    return sorted(shared | set(state.consumers[consumer].own))


def name_source(source: TopicPartition) -> str:
    """Return `topic-partition`, as Kafka's tools write it."""
    return f"{source[0]}-{source[1]}"
