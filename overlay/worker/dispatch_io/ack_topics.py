"""The ack topics of a session's streams: their new records, and up to which time all acks are read.

A deadline may fire only when every ack sent before it has been read. Kafka does not say when a
record was sent. But a high watermark that is requested after the deadline is above all those acks.
Once reading has passed it, no ack is missing. So the ends of an ack topic are requested only when a
deadline waits for them. An unfinished transaction keeps the readable part of a log below its end:
until it ends, redelivery of that stream's messages is suspended.

An ack topic may lose its end in an unclean election. The records that replace the lost ones are
acks that have not been read, even if the topic has grown past the position since. The leader epoch
of the last batch that was read shows the loss (kafka/log_cut.py), and the state keeps that epoch.
Reading goes on at the offset where the log was cut off.

A consumer that was not served has not processed the acks that arrived meanwhile. A partition is
read from the lowest position of its consumers, and each consumer gets only the records that are new
for it (ack_offsets.py). Deadlines wait until reading has passed the shared position as well.

A fetch of two megabytes may have more than a million records, compressed, and a client may write
such as have to be parsed one by one. So a step of the dispatcher takes only a part of such a fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from overlay.clock import monotonic, now_ns
from overlay.dispatch.ack_offsets import AckOffsets
from overlay.errors import SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.fetched import Changed, Denied, Fetched, Lost, cut_front
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import ConsumerId, StreamPartition

log = get_logger(__name__)

STALL_S = 5.0
"""Deadlines that wait for longer than this are reported in the metrics."""
MOST_RECORDS = 100_000
"""Most records of a partition that are taken at once, if its first batch has no more."""


@dataclass(slots=True)
class _Probe:
    """A question whether all acks sent before the time `at` (ns since 1970) have been read. They
    have once reading has reached the offset in `ends` in every partition. `since`: when the
    question was put, in monotonic seconds.
    """

    at: int
    ends: Mapping[TopicPartition, int]
    since: float = field(default_factory=monotonic)


@dataclass(slots=True)
class AckTopics:
    """Reads the ack topics of a session's streams, and says up to which time all acks have been
    read.

    `since`: by stream and partition of its ack topic, from which offset each consumer still has to
    process the records. `log_positions`: where the consumers that share a position begin. `topics`:
    Kafka's id of each ack topic, by its name.
    """

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
    _rests: dict[StreamPartition, Fetched] = field(default_factory=dict)
    """What was fetched and not taken yet, where a fetch was taken in part."""
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
        """The next log position in each partition of the ack topics, for consumers that share a
        position. While older records are read again for a consumer that is behind, it is where the
        session began.
        """
        return {
            partition: at if at.position >= self.since[partition].shared else self.log_positions[partition]
            for partition, at in self.positions.items()
        }

    def find_behind(self) -> dict[tuple[str, str], dict[TopicPartition, int]]:
        """Return, by stream and consumer name, the next offsets of consumers that are behind the
        shared position, for the partitions in which they are.
        """
        behind: dict[tuple[str, str], dict[TopicPartition, int]] = {}
        for partition, since in self.since.items():
            if since.own and (at := self.positions[partition].position) < since.shared:
                for name, first in since.own.items():
                    behind.setdefault((partition[0], name), {})[partition[1]] = max(at, first)
        return {c: {s: at for s, at in own.items() if at < self.since[c[0], s].shared} for c, own in behind.items()}

    def forget(self, consumer: ConsumerId) -> None:
        """Forget from where a consumer still had to process acks. One that is made again under its name has none there:
        all acks so far are of the former one's deliveries.
        """
        for partition, since in self.since.items():
            if partition[0] == consumer[0] and consumer[1] in since.own:
                own = {name: at for name, at in since.own.items() if name != consumer[1]}
                self.since[partition] = replace(since, own=own)

    async def open(self, fetcher: Fetcher) -> None:
        """Start a fetch of each partition at its position, and set `up_to` of each stream to 0.
        Call once, before `take`.
        """
        self._fetcher = fetcher
        for partition, log_position in self.positions.items():
            self._partition_fetches[partition] = await fetcher.open(
                *partition[1], log_position.position, epoch=log_position.epoch
            )
            self.up_to[partition[0]] = 0

    async def take(self) -> list[tuple[StreamPartition, Fetched]]:
        """Return what was fetched since the last call, at most one fetch for each partition or a part
        of one, and move the positions past it. Does not wait for new data.

        If a log does not have its position any more, reading goes on at the log's start if
        retention has deleted the position, or where the log has lost its end. Raises
        SourceUnavailable if a position is missing because the topic was deleted or created again:
        the next session reads it from its start. Raises SourceChanged if Kafka denies Read, and the
        errors of Admin.
        """
        taken: list[tuple[StreamPartition, Fetched]] = []
        for partition, partition_fetch in self._partition_fetches.items():
            match self._rests.pop(partition, None) or partition_fetch.take():
                case Fetched() as fetched:
                    front = self._take_front(partition, fetched)
                    taken.append((partition, front))
                    self.positions[partition] = front.log_position
                    if front.unreadable >= 0:
                        # the header of a batch cannot be read, so it is unknown where the next one begins
                        self.positions[partition] = LogPosition(front.reach)
                        partition_fetch.seek(front.reach)
                case Lost(position):
                    await self._go_on(partition, partition_fetch, position)
                case Changed(position, cut):
                    self._go_back(partition, partition_fetch, position, cut)
                case Denied(reason):
                    raise SourceChanged(reason, partition[0])
        self._settle()
        return taken

    def _take_front(self, partition: StreamPartition, fetched: Fetched) -> Fetched:
        """Return the batches of a fetch that have MOST_RECORDS together, at least one, and keep the rest
        for the next `take`.
        """
        batches = fetched.batches[fetched.batches["last_offset"] >= fetched.position]
        sums = np.maximum(batches["count"], 0).cumsum()
        count = max(1, int(sums.searchsorted(MOST_RECORDS, side="right")))
        if count >= batches.size:
            return fetched
        front = cut_front(fetched, int(batches["last_offset"][count]))
        assert front is not None
        # all bytes: a marker in front tells where an aborted transaction ends
        self._rests[partition] = replace(fetched, position=front.log_position.position)
        return front

    async def _go_on(self, partition: StreamPartition, partition_fetch: PartitionFetch, position: int) -> None:
        """Move reading from `position`, which the log does not have, to where the log has records.

        If retention has deleted up to a later offset, go on at the log's start, and count and log
        the acks in between as lost. If the log has lost its end, go on where it was cut off. Raises
        SourceUnavailable if the topic was deleted or created again, and the errors of Admin.
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
        """Move reading from `position` back to `cut`, where the log lost its end, and count and log
        that. All records from `cut` on are new acks for every consumer.
        """
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
        """Ask Kafka for the ends (high watermarks) of these streams' ack topics, except for streams
        that wait for such ends already. Once reading has passed them, `up_to` of the stream becomes
        the time of this call.
        """
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
        """Set `up_to` for each stream whose reading has passed the ends that it waits for."""
        for stream, probe in list(self._probes.items()):
            if all(self.positions[stream, source].position >= end for source, end in probe.ends.items()):
                self.up_to[stream] = probe.at
                del self._probes[stream]

    def find_suspended(self) -> dict[str, bool]:
        """Return, for each stream, whether its last `probe` has waited for longer than STALL_S until
        all acks sent before it are read."""
        late = monotonic() - STALL_S
        return {stream: stream in self._probes and self._probes[stream].since < late for stream in self.up_to}
