"""The assignment of a session: which streams and consumers it serves, with their topics, and which
it cannot serve and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiokafka.client import AIOKafkaClient

from overlay.config import ConsumerConfig, DeliverPolicy, Loaded, LogEnds, StreamConfig
from overlay.config.consumer import AckPolicy
from overlay.config.filters import compile_filter
from overlay.consumer.pace import is_replayed
from overlay.errors import CredentialsRefused, OverlayError, SourceChanged, SourceUnavailable
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import check_log_position
from overlay.index.start_positions import Bounds, Start, find_first, find_replay_end, find_start, patterns
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, TopicFacts
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic
from overlay.kafka.passed_over import PassedOver
from overlay.logs import get_logger
from overlay.match import choose_values
from overlay.output.batch_builder import OutputBatch
from overlay.output.side_topics import ensure_side_topics, list_side_topics
from overlay.output.topics import ensure_topics, make_dead_letter_topic, make_output_topic
from overlay.state.handover import TakenBack, take_back
from overlay.state.leases import find_held, may_be_a_jobs
from overlay.state.partitions import Sources, list_sources
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState

from .kept.blocked import Blocked
from .round.deliveries import share_outputs
from .round.task import Reader

log = get_logger(__name__)

TURN = 100
"""Consumers that are prepared in one go, before the event loop does other work."""


@dataclass(slots=True)
class Assignment:
    """What a session serves. `stopped` streams and `stalled` consumers are not in `sources` and
    `readers`; their values are the reasons."""

    streams: dict[str, StreamConfig] = field(default_factory=dict)
    sources: dict[str, Sources] = field(default_factory=dict)
    readers: dict[ConsumerId, Reader] = field(default_factory=dict)
    machines: dict[ConsumerId, ConsumerConfig] = field(default_factory=dict)
    """The consumers among `readers` that have a machine."""
    heard: set[str] = field(default_factory=set)
    """Streams whose ack topics the session reads."""
    stopped: dict[str, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """Stopped streams whose ledger still numbers records of a log that was cut: the worker that keeps it restarts it."""
    blocked: dict[str, Blocked] = field(default_factory=dict)
    """Stopped streams whose ledger is behind an open transaction. They go on when that has ended."""
    held: dict[str, str] = field(default_factory=dict)
    """Streams that are not stopped and whose ledger, which another shard keeps, is behind an open transaction, with the
    reason for operators."""
    stalled: dict[ConsumerId, str] = field(default_factory=dict)
    kept_policies: dict[ConsumerId, AckPolicy] = field(default_factory=dict)
    """The ack policies with which consumers were delivered whose config says another one now. They are stalled."""
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """The log start of every partition."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """The high watermark of every partition when the session began."""
    topics: dict[str, TopicFacts | None] = field(default_factory=dict)
    """The facts of every source topic and ledger topic when the session began, None for a missing
    one."""
    outputs: dict[str, TopicFacts] = field(default_factory=dict)
    """The facts of every output topic, and of the consumers' other topics, when the session
    began."""
    apart: set[ConsumerId] = field(default_factory=set)
    """Consumers among `readers` that share no output, since they have come or got another one while the session ran."""
    index_topics: dict[str, str] = field(default_factory=dict)
    """By stream whose chunk index is kept here, its index topic."""
    indexes: dict[str, Index] = field(default_factory=dict)
    """The chunk indexes of all streams that have one, whichever shard keeps them."""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    """The ledgers of the streams that have one. In all other streams a sequence is offset + 1."""
    ledger_topics: dict[str, str] = field(default_factory=dict)
    """By stream, the topic of its ledger."""
    heads: dict[str, Mapping[TopicPartition, LogPosition]] = field(default_factory=dict)
    """By stream whose ledger is kept here, the log positions up to which sequences are given out,
    including the entries in `opening`."""
    opening: list[OutputBatch] = field(default_factory=list)
    """Batches for index topics that the session's first transaction must contain."""
    passed_over: list[tuple[str, PassedOver]] = field(default_factory=list)
    """Records of index topics that could not be read, each with its stream."""
    unindexed: dict[str, str] = field(default_factory=dict)
    """Streams whose index should be kept here and cannot be, with the reason."""

    @property
    def output_partitions(self) -> int:
        """How many partitions the output and dead letter topics have together, each topic counted
        once."""
        output_topics = [
            each for reader in self.readers.values() for each in (reader.output_topic, reader.dead_letter_topic) if each
        ]
        return sum({output_topic.topic: output_topic.partitions for output_topic in output_topics}.values())

    def take_up(
        self,
        readers: Mapping[ConsumerId, Reader],
        machines: Mapping[ConsumerId, ConsumerConfig],
        gone: Collection[ConsumerId],
    ) -> None:
        """Serve consumers with these readers, in place of those they had, and those in `gone` no more. `machines`: the
        configs of those with machines."""
        self.machines.update(machines)
        for consumer, reader in readers.items():
            before = self.readers.get(consumer)
            if reader.has_machine:
                continue  # its batches are its own in any case
            if before is None or before.output_topic is not reader.output_topic:
                self.apart.add(consumer)
        self.readers.update(readers)
        for consumer in gone:
            self.readers.pop(consumer, None)
            self.machines.pop(consumer, None)
        self.apart.difference_update(gone)

    def is_served(self, topic: str) -> bool:
        """Return whether a topic is a source of a stream that is being read, or holds its
        ledger."""
        is_source = any(topic in stream.topic_names for stream in self.streams.values())
        return is_source or topic in self.ledger_topics.values()

    def is_compacted(self, topic: str) -> bool:
        """Return whether compaction removes records of a source topic, by its settings when the
        session began. False if they are unknown."""
        facts = self.topics.get(topic)
        return facts is not None and "compact" in facts.config.get("cleanup.policy", "")

    def stop(self, stream: str, reason: str) -> None:
        """Leave a stream out, and log the reason. The stream must be in `streams`. Call only before
        consumers are added (`enlist`): `readers` is left as it is."""
        del self.streams[stream], self.sources[stream]
        self.stopped[stream] = reason
        log.error("stream stopped", stream=stream, reason=reason)

    def block(self, stream: str, ledger: Blocked) -> None:
        """Stop a stream, as `stop` does, until the transaction has ended behind which its ledger is."""
        self.blocked[stream] = ledger
        self.stop(stream, ledger.explain(stream))

    def find_starts(self, stream: str) -> dict[TopicPartition, int]:
        """Return the log start of each partition of a stream that is served."""
        return {source: self.starts[source] for source in self.sources[stream].partitions}

    def members(self, stream: str) -> list[ConsumerId]:
        """Return the consumers of a stream that are served."""
        return [consumer for consumer in self.readers if consumer[0] == stream]


async def make_assignment(
    client: AIOKafkaClient,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    keeps: Collection[str],
    state: ShardState,
    stalled: Mapping[ConsumerId, str],
    stopped: Mapping[str, str],
) -> tuple[Assignment, Delta]:
    """Find the streams of this shard and check that their logs are the ones that were read. Return the
    assignment, without consumers (`enlist` adds them when the indexes are open), and what the state
    must record of it before the first record is delivered.

    `mine`: the shard's consumers. `keeps`: streams whose index this shard keeps. `stalled`, `stopped`:
    consumers and streams that are left out for now, with the reasons. A stream that cannot be read, or
    whose log is another one, is not an error: it is in `Assignment.stopped`. Raises SourceUnavailable.
    """
    assignment = Assignment(stalled=dict(stalled), kept_policies=_find_kept_policies(mine, state))
    wanted = {name: loaded.streams[name] for name in dict.fromkeys([*(name for name, _ in mine), *keeps])}
    denied: dict[str, str] = {}
    topics = [topic for stream in wanted.values() for topic in stream.topic_names]
    facts = await admin.find_topics(topics, denied=denied)
    assignment.topics = {topic: facts.get(topic) for topic in topics}
    delta = Delta()
    for name, stream in wanted.items():
        try:
            if reason := stopped.get(name) or next((denied[t] for t in stream.topic_names if t in denied), ""):
                raise SourceChanged(reason)
            is_extended = (name, index_topic(loaded.service.topics.prefix, name)) in state.topics
            sources = list_sources(stream, facts, state, is_extended=is_extended)
            bounds = await admin.find_bounds(sources.partitions, committed=False)
            for source in sources.partitions:
                compacted = "compact" in facts[source[0]].config.get("cleanup.policy", "")
                for log_position in _log_positions(state, name, source):
                    await check_log_position(client, name, source, log_position, bounds[source], compacted=compacted)
        except (SourceChanged, CredentialsRefused) as error:
            assignment.stopped[name] = str(error)
            log.error("stream stopped", stream=name, reason=str(error))
            continue
        if sources.unread:
            log.error("partitions are not read until `overlay stream extend`", stream=name, partitions=sources.unread)
        assignment.streams[name], assignment.sources[name] = stream, sources
        assignment.starts.update({source: first for source, (first, _) in bounds.items()})
        assignment.ends.update({source: end for source, (_, end) in bounds.items()})
        delta.topics.update({(name, topic): identity for topic, identity in sources.identities.items()})
    return assignment, delta


def _find_kept_policies(mine: Mapping[ConsumerId, ConsumerConfig], state: ShardState) -> dict[ConsumerId, AckPolicy]:
    """Return the ack policies in the state, for consumers whose configs say another one."""
    known = {
        id: state.consumers[id].policy or config.ack_policy for id, config in mine.items() if id in state.consumers
    }
    return {id: AckPolicy(policy) for id, policy in known.items() if policy != mine[id].ack_policy}


async def enlist(
    client: AIOKafkaClient,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    state: ShardState,
    assignment: Assignment,
    delta: Delta,
    record: Callable[[Delta], Awaitable[None]],
) -> None:
    """Prepare the consumers whose streams are served (`prepare_readers`), and have those share their outputs that can.
    Adds to `delta` also what the state must record of consumers in it that are not served now (`_pin_absent`). The
    arguments and errors are those of `prepare_readers`.
    """
    await prepare_readers(client, admin, loaded, mine, state, assignment, delta, record)
    assignment.readers.update(share_outputs(assignment.readers))
    delta.consumers.update(_pin_absent(state, assignment))


async def prepare_readers(
    client: AIOKafkaClient,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    state: ShardState,
    assignment: Assignment,
    delta: Delta,
    record: Callable[[Delta], Awaitable[None]],
) -> None:
    """Create the topics that these consumers lack, and find where new consumers and those of Spark jobs start.

    Adds them to the assignment, and to `delta` what the state must record of them. `record`: commits the delta that it is
    given at once, and applies that to `state`. A consumer that cannot be served is stalled with the reason. Raises
    SourceUnavailable, and what `record` raises.
    """
    ready = [c for c in mine.values() if c.stream in assignment.sources and c.id not in assignment.stalled]
    refused = await _find_refused(admin, loaded, ready, state, assignment)
    free = [config for config in ready if config.id not in refused and may_be_a_jobs(config, state)]
    starts = {config.id: assignment.find_starts(config.stream) for config in free}
    service = loaded.service
    taken = await take_back(service.kafka, client, admin, service.topics.prefix, starts, state, record)
    bounds: dict[str, Bounds] = {}
    for count, config in enumerate(ready, 1):
        if count % TURN == 0:
            await asyncio.sleep(0)
        try:
            if why := refused.get(config.id):
                raise OverlayError(why)
            if (found := taken.get(config.id)) is not None:
                _take(config, found, delta)
            if config.needs_machine:
                assignment.machines[config.id] = config
            await _enlist(client, admin, config, loaded.ends.get(config.id), bounds, state, assignment, delta)
        except SourceUnavailable:
            raise
        except OverlayError as error:
            assignment.stalled[config.id] = str(error)
            assignment.machines.pop(config.id, None)
            log.error("consumer stalled", stream=config.stream, consumer=config.id[1], reason=str(error))


async def _find_refused(
    admin: Admin, loaded: Loaded, ready: Sequence[ConsumerConfig], state: ShardState, assignment: Assignment
) -> dict[ConsumerId, str]:
    """Return, by consumer that cannot be served, the reason: a Spark pipeline runs it, or one of its topics
    refuses. Creates the topics of the `ready` consumers that are missing (for output, acks, events and dead
    letters), and sets `assignment.outputs` to the facts of those that exist then. Raises SourceUnavailable."""
    prefix = loaded.service.topics.prefix
    pushing = [config for config in ready if config.is_push]
    assignment.outputs, refused = await ensure_topics(admin, pushing, loaded.service.topics.replication)
    found, lacking = await ensure_side_topics(admin, loaded, ready, assignment.topics)
    assignment.outputs |= found
    reasons = await find_held(admin, prefix, ready, state)
    for config in ready:
        side = [lacking[name] for name in sorted(list_side_topics(prefix, config)) if name in lacking]
        why = next((why for why in (refused.get(config.deliver_subject), *side) if why), "")
        if why:
            reasons.setdefault(config.id, why)
    return reasons


def _take(config: ConsumerConfig, taken: TakenBack, delta: Delta) -> None:
    """Record in `delta` that the service has a consumer now that a Spark job had, at its position there; add
    nothing if it begins as a new consumer. Raises OverlayError if it stays the job's."""
    if taken.reason:
        raise OverlayError(taken.reason)
    if taken.state is not None:
        delta.consumers[config.id] = taken.state
    log.info("consumer taken over from a Spark job", stream=config.stream, consumer=config.id[1], job=taken.job)


def _log_positions(state: ShardState, stream: str, source: TopicPartition) -> set[LogPosition]:
    """Return every log position that the state has in a partition of a stream. Those with which Spark
    jobs once began do not matter."""
    served = [c for (name, _), c in state.consumers.items() if name == stream and not c.job]
    own = {c.own[source] for c in served if source in c.own}
    cursor = state.cursors.get((stream, source))
    return own | ({cursor} if cursor else set())


def _limit_to_logs(known: ConsumerState, config: ConsumerConfig, ends: Mapping[TopicPartition, int]) -> ConsumerState:
    """Return a consumer's state with the offsets of its snapshot and its floor limited to `ends`, the ends of
    the logs. If the consumer begins at a start sequence, its floor is kept: that may lie ahead of the log.

    A log may have lost its end since the state was written. A search for last messages would wait for the
    lost records, and new records at their offsets are not part of the snapshot, nor older than the consumer.
    """

    def limit(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {source: min(at, ends.get(source, at)) for source, at in offsets.items()}

    is_ahead = config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
    return replace(known, snapshot=limit(known.snapshot), floor=known.floor if is_ahead else limit(known.floor))


async def _enlist(
    client: AIOKafkaClient,
    admin: Admin,
    config: ConsumerConfig,
    ends: LogEnds | None,
    bounds: dict[str, Bounds],
    state: ShardState,
    assignment: Assignment,
    delta: Delta,
) -> None:
    """Add one consumer to the assignment's readers, and to `delta` what the state must record of it. If it
    is new, or a Spark job had it without a known position, find its start.

    `ends`: the ends of the stream's logs when the consumer was created, None if unknown. `bounds`: by
    stream, what Kafka has said of the logs; a stream that a new consumer needs is added. Raises
    OverlayError if the consumer cannot be served.
    """
    sources, ledger = assignment.sources[config.stream], assignment.ledgers.get(config.stream)
    known = delta.consumers.get(config.id) or state.consumers.get(config.id)
    if known is None or known.job:
        start = await _find_start(client, admin, config, ends, bounds, assignment)
        own = {source: LogPosition(position) for source, position in start.positions.items()}
        delta.consumers[config.id] = known = ConsumerState(0, own, start.snapshot, start.floor)
        log.info("consumer starts", stream=config.stream, consumer=config.id[1], policy=str(config.deliver_policy))
    if (kept := assignment.kept_policies.get(config.id)) is not None:
        raise OverlayError(
            f"it was delivered with ack_policy {kept}, and its config says {config.ack_policy}: what waits for an ack would"
            f" count as done, or the other way round. Put {kept} back, or remove its state with `overlay consumer rm`"
        )
    if not known.policy:
        delta.consumers[config.id] = known = replace(known, policy=str(config.ack_policy))
    limited = _limit_to_logs(known, config, assignment.ends)
    if limited != known:
        delta.consumers[config.id] = known = limited
    if is_replayed(config) and known.replay_until is None:
        end = await find_replay_end(admin, sources.partitions, assignment.starts, ledger)
        delta.consumers[config.id] = replace(known, replay_until=end)
    output = assignment.outputs.get(config.deliver_subject)
    dead_letters = assignment.outputs[config.dead_letter_topic] if config.dead_letter_topic else None
    output_topic = make_output_topic(output, config) if output else None
    accepts = compile_filter(config.filter, assignment.streams[config.stream])
    begins = ledger is not None and config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE
    first = find_first(config) if begins else 0
    assignment.readers[config.id] = Reader(
        config.id,
        patterns(config),
        output_topic,
        accepts,
        first,
        has_machine=config.id in assignment.machines,
        values=choose_values(config.filter, assignment.streams[config.stream]),
        dead_letter_topic=make_dead_letter_topic(dead_letters, config) if dead_letters else None,
    )


async def _find_start(
    client: AIOKafkaClient,
    admin: Admin,
    config: ConsumerConfig,
    ends: LogEnds | None,
    bounds: dict[str, Bounds],
    assignment: Assignment,
) -> Start:
    """Return where a new consumer begins. `ends`: the ends of the stream's logs when it was created, None if
    unknown. `bounds`: by stream, the first offset and the end of each of its logs. Raises SourceChanged,
    SourceUnavailable.

    Kafka is asked for the bounds once for all new consumers of a stream, of which there may be thousands,
    and `bounds` keeps the answer. It is asked anew for a consumer that begins at a time, or at the end of
    logs whose ends at its creation are unknown: that answer has to be of now.
    """
    stream, sources = assignment.streams[config.stream], assignment.sources[config.stream]
    created = None
    if ends is not None:
        created = {source: ends.find(*source, sources.identities[source[0]]) for source in sources.partitions}
    is_of_now = config.deliver_policy is DeliverPolicy.BY_START_TIME or (
        config.deliver_policy.begins_at_end and created is None
    )
    if not is_of_now and stream.name not in bounds:
        bounds[stream.name] = await admin.find_bounds(sources.partitions)
    return await find_start(
        client,
        admin,
        config,
        stream,
        sources.partitions,
        assignment.ledgers.get(stream.name),
        assignment.indexes.get(stream.name),
        created,
        None if is_of_now else bounds[stream.name],
    )


def _pin_absent(state: ShardState, assignment: Assignment) -> dict[ConsumerId, ConsumerState]:
    """Return new states for consumers of served streams that the state knows and that are not served
    now. All positions are copied into the consumer's own state, so that it stays there when the
    stream's position moves on. States that would not change are left out, and so are consumers of
    Spark jobs, whose positions are in the plans of the jobs.
    """
    pinned = {}
    for consumer, known in state.consumers.items():
        if consumer in assignment.readers or consumer[0] not in assignment.sources or known.job:
            continue
        now = state.pin(consumer, assignment.find_starts(consumer[0]))
        if now.own != known.own:
            pinned[consumer] = replace(now, snapshot=known.snapshot)
    return pinned
