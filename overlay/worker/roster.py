"""Who a session serves: streams with their partitions, consumers with their outlets, and who cannot be served and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import structlog
from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin, TopicFacts
from overlay.config import ConsumerConfig, Loaded, StreamConfig
from overlay.config.filters import compile_filter
from overlay.deliver.outlets import ensure_topics, make_outlet
from overlay.deliver.state import ConsumerId, ConsumerState, Delta, ShardState
from overlay.errors import CredentialsRefused, OverlayError, SourceChanged, SourceUnavailable
from overlay.source.check import check_mark
from overlay.source.index import Index
from overlay.source.mark import Mark, Source
from overlay.source.start import find_start, patterns

from .pipeline import Reader
from .sources import Sources, list_sources

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Roster:
    """`stopped` streams and `stalled` consumers are left out of `sources` and `readers`, with the reason."""

    streams: dict[str, StreamConfig] = field(default_factory=dict)
    sources: dict[str, Sources] = field(default_factory=dict)
    readers: dict[ConsumerId, Reader] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    stalled: dict[ConsumerId, str] = field(default_factory=dict)
    starts: dict[Source, int] = field(default_factory=dict)
    """The log start of every partition."""
    topics: dict[str, TopicFacts | None] = field(default_factory=dict)
    """Every source topic as it was found, None for those that were not there."""
    outputs: dict[str, TopicFacts] = field(default_factory=dict)
    """Every output topic as it was found."""
    index_topics: dict[str, str] = field(default_factory=dict)
    """Of the streams whose chunk index is kept here."""
    indexes: dict[str, Index] = field(default_factory=dict)
    """What these indexes hold so far."""
    unindexed: dict[str, str] = field(default_factory=dict)
    """Streams whose index is to be kept here and cannot be, and why."""

    @property
    def output_partitions(self) -> int:
        """How many partitions of output topics there are to write to."""
        outlets = [reader.outlet for reader in self.readers.values()]
        return sum({outlet.topic: outlet.partitions for outlet in outlets}.values())

    def is_served(self, topic: str) -> bool:
        """Whether a stream that is being read has this topic."""
        return any(topic in stream.topic_names for stream in self.streams.values())

    def members(self, stream: str) -> list[ConsumerId]:
        return [consumer for consumer in self.readers if consumer[0] == stream]


async def make_roster(
    client: AIOKafkaClient,
    admin: Admin,
    loaded: Loaded,
    mine: Mapping[ConsumerId, ConsumerConfig],
    keeps: Collection[str],
    state: ShardState,
    stalled: Mapping[ConsumerId, str],
    stopped: Mapping[str, str],
) -> tuple[Roster, Delta]:
    """Look at everything the consumers of this shard need, create what is missing, and find where new ones start.

    `keeps`: streams whose index this shard keeps. `stalled`, `stopped`: consumers and streams that are to be left out for
    now, and why.

    The delta says what of that the state has to remember before the first record is delivered. Raises SourceUnavailable.
    """
    roster = Roster(stalled=dict(stalled))
    wanted = {name: loaded.streams[name] for name in dict.fromkeys([*(name for name, _ in mine), *keeps])}
    denied: dict[str, str] = {}
    topics = [topic for stream in wanted.values() for topic in stream.topic_names]
    facts = await admin.find_topics(topics, denied=denied)
    roster.topics = {topic: facts.get(topic) for topic in topics}
    delta = Delta()
    for name, stream in wanted.items():
        try:
            if reason := stopped.get(name) or next((denied[t] for t in stream.topic_names if t in denied), ""):
                raise SourceChanged(reason)
            sources = list_sources(stream, facts, state)
            bounds = await admin.find_bounds(sources.partitions, committed=False)
            for source in sources.partitions:
                compacted = "compact" in facts[source[0]].config.get("cleanup.policy", "")
                for mark in _marks(state, name, source):
                    await check_mark(client, name, source, mark, bounds[source], compacted=compacted)
        except (SourceChanged, CredentialsRefused) as error:
            roster.stopped[name] = str(error)
            log.error("stream stopped", stream=name, reason=str(error))
            continue
        if sources.unread:
            log.error("partitions are not read until `overlay stream extend`", stream=name, partitions=sources.unread)
        roster.streams[name], roster.sources[name] = stream, sources
        roster.starts.update({source: first for source, (first, _) in bounds.items()})
        delta.topics.update({(name, topic): identity for topic, identity in sources.identities.items()})
    ready = [c for c in mine.values() if c.stream in roster.sources and c.id not in roster.stalled]
    roster.outputs, refused = await ensure_topics(admin, ready, loaded.service.topics.replication)
    for config in ready:
        try:
            if why := refused.get(config.deliver_subject):
                raise OverlayError(why)
            await _enlist(client, admin, config, roster.outputs[config.deliver_subject], state, roster, delta)
        except SourceUnavailable:
            raise
        except OverlayError as error:
            roster.stalled[config.id] = str(error)
            log.error("consumer stalled", stream=config.stream, consumer=config.id[1], reason=str(error))
    delta.consumers.update(_pin_absent(state, roster))
    return roster, delta


def _marks(state: ShardState, stream: str, source: Source) -> set[Mark]:
    """Every position that someone of the stream has in a partition."""
    own = {c.own[source] for (name, _), c in state.consumers.items() if name == stream and source in c.own}
    cursor = state.cursors.get((stream, source))
    return own | ({cursor} if cursor else set())


async def _enlist(
    client: AIOKafkaClient,
    admin: Admin,
    config: ConsumerConfig,
    output: TopicFacts,
    state: ShardState,
    roster: Roster,
    delta: Delta,
) -> None:
    """Make ready one consumer, and find its start if it is new."""
    sources = roster.sources[config.stream]
    if config.id not in state.consumers:
        start = await find_start(client, admin, config, roster.streams[config.stream], sources.partitions)
        own = {source: Mark(position) for source, position in start.positions.items()}
        delta.consumers[config.id] = ConsumerState(0, own, start.snapshot, start.floor)
        log.info("consumer starts", stream=config.stream, consumer=config.id[1], policy=str(config.deliver_policy))
    outlet = make_outlet(output, config, sequenced=sources.is_sequenced)
    accepts = compile_filter(config.filter, roster.streams[config.stream])
    roster.readers[config.id] = Reader(config.id, patterns(config), outlet, accepts)


def _pin_absent(state: ShardState, roster: Roster) -> dict[ConsumerId, ConsumerState]:
    """Give positions of their own to consumers that are not served now, before the cursor moves on without them."""
    pinned = {}
    for consumer, known in state.consumers.items():
        if consumer in roster.readers or consumer[0] not in roster.sources:
            continue
        sources = roster.sources[consumer[0]].partitions
        now = state.pin(consumer, {source: roster.starts[source] for source in sources})
        if now.own != known.own:
            pinned[consumer] = replace(now, snapshot=known.snapshot)
    return pinned
