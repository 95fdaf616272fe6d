"""The ack topics of a session's streams: what has come, and up to when all that was sent has come.

A deadline may fire only when every ack sent before it has been read. Kafka does not say when a record was sent, but a high
watermark that is asked for after the deadline lies behind all of them; once the reading has passed it, nothing is missing. So
the ends of the ack topics are asked for when a deadline waits for them, and not before. An unfinished transaction
keeps the readable part of a log below its end: until it ends, redelivery of that stream's messages is suspended.

An ack topic may lose its end in an unclean election. What comes in the place of the lost records are acks that have not
been read, also where the topic has grown past the position since. The leader epoch of the last batch that was read tells
(kafka/fetcher.py), and the state keeps it. Reading goes on at the cut.

A consumer that was away has not heard what was said meanwhile. A partition is read from where the last of the consumers
stands, and each of them is told what is news to it (overlay/dispatch/ack_offsets.py). Until all have met, deadlines wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from overlay.clock import monotonic, now_ns
from overlay.errors import SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.fetcher import Changed, Denied, Fetched, Fetcher, Lost, PartitionFetch
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import StreamPartition

from .ack_offsets import AckOffsets

log = get_logger(__name__)

STALL_S = 5.0
"""Deadlines that wait for longer than this are reported in the metrics."""


@dataclass(slots=True)
class _Probe:
    """The ends that reading has to pass so that all acks sent before `at`, ns since 1970, are read.
    `since`: monotonic seconds."""

    at: int
    ends: Mapping[TopicPartition, int]
    since: float = field(default_factory=monotonic)


@dataclass(slots=True)
class AckTopics:
    """`since`: by stream and partition of its ack topic, from where on records are news. `log_positions`: where the
    session begins, of the consumers that share a position. `topics`: Kafka's ids of these topics."""

    admin: Admin
    metrics: Metrics
    since: dict[StreamPartition, AckOffsets]
    log_positions: Mapping[StreamPartition, LogPosition]
    topics: Mapping[str, str]
    positions: dict[StreamPartition, LogPosition] = field(init=False)
    """What was taken lies before it."""
    up_to: dict[str, int] = field(default_factory=dict)
    """By stream, the time up to which all acks have been taken, ns."""
    _fetcher: Fetcher = field(init=False)
    _partition_fetches: dict[StreamPartition, PartitionFetch] = field(default_factory=dict)
    _probes: dict[str, _Probe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.positions = {
            partition: log_position
            if (first := self.since[partition].first) == log_position.position
            else LogPosition(first)
            for partition, log_position in self.log_positions.items()
        }

    @property
    def shared(self) -> dict[StreamPartition, LogPosition]:
        """The position in each partition of the ack topics, for consumers without one of their own."""
        return {
            partition: at if at.position >= self.since[partition].shared else self.log_positions[partition]
            for partition, at in self.positions.items()
        }

    def find_behind(self) -> dict[tuple[str, str], dict[TopicPartition, int]]:
        """Return the positions of consumers that are behind the shared ones, by stream and consumer
        name."""
        behind: dict[tuple[str, str], dict[TopicPartition, int]] = {}
        for partition, since in self.since.items():
            if since.own and (at := self.positions[partition].position) < since.shared:
                for name, first in since.own.items():
                    behind.setdefault((partition[0], name), {})[partition[1]] = max(at, first)
        return {c: {s: at for s, at in own.items() if at < self.since[c[0], s].shared} for c, own in behind.items()}

    async def open(self, fetcher: Fetcher) -> None:
        """Begin to read."""
        self._fetcher = fetcher
        for partition, log_position in self.positions.items():
            self._partition_fetches[partition] = await fetcher.open(
                *partition[1], log_position.position, epoch=log_position.epoch
            )
            self.up_to[partition[0]] = 0

    async def take(self) -> list[tuple[StreamPartition, Fetched]]:
        """Return what was fetched since the last call, and move the positions past it.

        Raises SourceUnavailable if a topic was created again: the next session reads it from its
        start. Raises SourceChanged if Kafka denies access.
        """
        taken: list[tuple[StreamPartition, Fetched]] = []
        for partition, partition_fetch in self._partition_fetches.items():
            match partition_fetch.take():
                case Fetched() as fetched:
                    taken.append((partition, fetched))
                    self.positions[partition] = fetched.log_position
                case Lost(position):
                    await self._go_on(partition, partition_fetch, position)
                case Changed(position, cut):
                    self._go_back(partition, partition_fetch, position, cut)
                case Denied(reason):
                    raise SourceChanged(reason, partition[0])
        self._settle()
        return taken

    async def _go_on(self, partition: StreamPartition, partition_fetch: PartitionFetch, position: int) -> None:
        """Go on at the log's start or end if it does not have the position, and count the acks that
        were lost.

        The topic's retention may be shorter than the time that no session ran, or the log may have
        lost its end. Raises SourceUnavailable if the topic was deleted or created again.
        """
        stream, source = partition
        facts = (await self.admin.find_topics([source[0]], with_config=False)).get(source[0])
        if facts is None or facts.identity != self.topics[source[0]]:
            raise SourceUnavailable(f"topic {source[0]} was deleted or created again: a new session reads what it says")
        first, end = (await self.admin.find_bounds([source], committed=False))[source]
        if position >= first:
            self._go_back(
                partition,
                partition_fetch,
                position,
                await self._fetcher.find_cut(partition_fetch, first, min(position, end)),
            )
        else:
            self.metrics.acks_lost.labels(stream).inc(first - position)
            log.error("acks have gone unread", stream=stream, topic=source[0], at=position, goes_on_at=first)
            self.positions[partition] = LogPosition(first)
            partition_fetch.seek(first)

    def _go_back(self, partition: StreamPartition, partition_fetch: PartitionFetch, position: int, cut: int) -> None:
        """Go on where a log was cut off: what was written since are acks that have not been read."""
        self.metrics.ack_logs_lost.labels(partition[0]).inc()
        log.error(
            "the ack topic has lost its end",
            stream=partition[0],
            topic=partition_fetch.topic,
            at=position,
            goes_on_at=cut,
        )
        self.positions[partition], self.since[partition] = LogPosition(cut), self.since[partition].clip(cut)
        partition_fetch.seek(cut)

    async def probe(self, streams: Iterable[str]) -> None:
        """Request the ends of the ack topics, for streams without a probe under way. Once reading
        has passed them, `up_to` rises to now."""
        wanted = [stream for stream in streams if stream not in self._probes and stream in self.up_to]
        if not wanted:
            return
        at = now_ns()
        sources = {source: stream for stream, source in self._partition_fetches if stream in wanted}
        ends = await self.admin.find_offsets(sources, OffsetSpec.latest(), committed=False)
        for stream in wanted:
            self._probes[stream] = _Probe(at, {s: end for s, end in ends.items() if sources[s] == stream})
        self._settle()

    def _settle(self) -> None:
        """Finish the probes whose ends have been passed, and report streams whose probes take
        long."""
        for stream, probe in list(self._probes.items()):
            if all(self.positions[stream, source].position >= end for source, end in probe.ends.items()):
                self.up_to[stream] = probe.at
                del self._probes[stream]
        for stream in self.up_to:
            probe_of = self._probes.get(stream)
            is_stalled = probe_of is not None and monotonic() - probe_of.since > STALL_S
            self.metrics.redelivery_suspended.labels(stream).set(is_stalled)
