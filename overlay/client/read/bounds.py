"""The partitions of a reading, and its first and last offset in each.

The first reading of a connection looks up everything at Kafka, and reports clearly what is wrong:
an address, a password, a topic. Later readings look up only what may have changed. They make one
small fetch per partition for its bounds, and sometimes a metadata request, all at once. The fetch
also returns the batch at which the chunk index ends, so it shows whether the index is still valid.
If anything has changed, everything is looked up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.client.connection import Connection, KnownStream
from overlay.config.stream import StreamConfig
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import Glimpse, glimpse_all
from overlay.inspect.reading import check_topics, look_around
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.connection import reach
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.properties import Properties
from overlay.state.partitions import Sources, list_sources
from overlay.state.shard_state import ShardState

from .offset_ranges import OffsetRange
from .question import CheckedQuestion
from .sequences import LedgerOrder

DEADLINE_S = 5.0
"""Seconds that Kafka may take to answer at all, because a caller waits for it."""


class NoSequence(OverlayError):
    """A reading is to begin (in `spark` perhaps to end) at a stream sequence, and its stream has none: it has several
    partitions and no ledger that can be read. The caller acts.
    """


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """The offsets that a reading covers in each partition, and what was found when they were looked up."""

    offset_ranges: tuple[OffsetRange, ...]
    sources: Sources
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    seen: Mapping[TopicPartition, Glimpse] = field(default_factory=dict)
    """The batches looked at and the bounds that came with them, by partition. Empty if everything
    was looked up anew.
    """
    order: LedgerOrder | None = None
    """The order of all partitions, if the stream has several and a ledger."""

    @property
    def ledger(self) -> Ledger | None:
        return self.order.ledger if self.order else None

    @property
    def further(self) -> tuple[OffsetRange, ...]:
        """For each of `offset_ranges`, the range of its partition that begins at its stop and has no end."""
        return tuple(OffsetRange(each.source, each.stop, floor=each.floor) for each in self.offset_ranges)


async def find_bounds(line: Connection, request: CheckedQuestion, offsets: Mapping[TopicPartition, int]) -> ReadBounds:
    """Return the present bounds of the partitions of a request's stream. Ranges end at the last stable
    offsets. They begin at the logs' starts. If the stream has one partition and the request has
    `from_seq`, its range begins at the offset of that sequence instead (from_seq - 1), kept within the
    log. For several partitions `begin_in_order` applies `from_seq`.

    `offsets`: by partition, an offset whose batch is looked at as well, at no extra cost. What is
    found there is in `seen` of the result, which is empty if everything had to be looked up anew.

    Raises CredentialsRefused, SourceUnavailable, TopicNotFound, SourceChanged.
    """
    key = request.stream.topics
    seen = await _look_again(line, line.known.get(key), offsets)
    if not seen:
        if key in line.known:
            await line.close()  # a new connection does no harm, whatever the reason was
        line.known[key] = await _look(line, request.stream)
    sources = line.known[key].sources
    bounds = line.known[key].bounds | {s: (seen[s].first, seen[s].end) for s in sources.partitions if s in seen}
    line.known[key] = replace(line.known[key], bounds=bounds)
    starts = {source: first for source, (first, _) in bounds.items()}
    floor = 0
    if request.from_seq is not None and sources.is_sequenced:
        floor = request.from_seq - 1
        starts = {source: min(max(floor, first), end) for source, (first, end) in bounds.items()}
    offset_ranges = tuple(OffsetRange(source, starts[source], end, floor) for source, (_, end) in bounds.items())
    return ReadBounds(offset_ranges, sources, {source: first for source, (first, _) in bounds.items()}, seen)


def begin_in_order(bounds: ReadBounds, request: CheckedQuestion, order: LedgerOrder | None) -> ReadBounds:
    """Return a copy of the bounds of a stream of several partitions, with `order` in it. If the
    request has `from_seq`, each range begins at its partition's first offset with that sequence or
    a higher one; if the ledger has none, where the ledger ends; but never outside the range. The
    range of a partition that the ledger does not know stays as it is.

    Raises NoSequence if the request has `from_seq` and `order` is None.
    """
    bounds = replace(bounds, order=order)
    if request.from_seq is None:
        return bounds
    if order is None:
        raise NoSequence(
            f"stream {request.stream.name} has {len(bounds.sources.partitions)} partitions and no ledger that gives an order"
            " over them, so there is no sequence to begin at. A service makes one; or begin at a time instead"
        )
    places = order.ledger.positions_at(request.from_seq)
    return replace(
        bounds,
        offset_ranges=tuple(
            replace(each, start=min(max(each.start, place), each.stop), floor=place)
            for each in bounds.offset_ranges
            for place in (places.get(each.source, each.start),)
        ),
    )


async def _look(line: Connection, stream: StreamConfig) -> KnownStream:
    """Check that Kafka answers, have the connection's client that fetches learn the leaders of the
    stream's partitions, and return these partitions and their bounds. Raises CredentialsRefused,
    SourceUnavailable, TopicNotFound, SourceChanged.
    """
    await reach(line.kafka, DEADLINE_S)
    sources = await _find_sources(line.kafka, line.admin, stream)
    bounds = await line.admin.find_bounds(sources.partitions)
    client = await line.open()
    for topic in stream.topic_names:
        await client.add_topic(topic)
    return KnownStream(sources, {topic: _count(client, topic) for topic in stream.topic_names}, bounds)


async def _look_again(
    line: Connection, known: KnownStream | None, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Glimpse]:
    """Return a Glimpse (bounds and one batch) of each partition in `known` and in `offsets`, by small
    fetches at the same time. The batch is that at the offset in `offsets`, or at the last known
    offset if that is higher. Of a partition that is only in `offsets`, only the bounds mean something.

    Empty if `known` is None, if a fetch fails or takes longer than DEADLINE_S seconds, or if a topic
    has another number of partitions now.
    """
    if known is None:
        return {}
    at = {source: max(first, end - 1) for source, (first, end) in known.bounds.items()}
    at |= {source: max(at.get(source, 0), offset) for source, offset in offsets.items()}
    try:
        client = await line.open()
        async with asyncio.timeout(DEADLINE_S):
            beside = [source for source in at if source not in known.bounds]
            found, _ = await asyncio.gather(glimpse_all(client, at, beside), line.refresh())
    except (OverlayError, KafkaError, OSError, TimeoutError):
        return {}
    if any(_count(client, topic) != count for topic, count in known.counts.items()):
        return {}
    return found


async def _find_sources(kafka: Properties, admin: Admin, stream: StreamConfig) -> Sources:
    topics = await admin.find_topics(stream.topic_names, with_config=False)
    if len(topics) < len(stream.topic_names):
        # looking up every topic of the cluster is only worth it for an error message
        check_topics(await asyncio.to_thread(look_around, kafka, DEADLINE_S), stream.topic_names)
    return list_sources(stream, topics, ShardState())


def _count(client: AIOKafkaClient, topic: str) -> int:
    return len(client.cluster.partitions_for_topic(topic) or ())


async def begin_at(line: Connection, offset_ranges: Sequence[OffsetRange], since: int) -> list[OffsetRange]:
    """Return the ranges, in the same order, each beginning at its partition's first offset with a
    timestamp at or after `since` (ms since 1970), if that is above its start. A partition may have
    several ranges.

    All records before that offset are older, in whatever order the timestamps are. If Kafka finds no
    such offset, the range is empty; but it stays as it is if it does not start at offset 0, since
    records before it may be deleted, and Kafka then be wrong.
    """
    sources = {each.source for each in offset_ranges}
    # negative times have a special meaning in Kafka
    found = await line.admin.find_offsets(sources, OffsetSpec.for_timestamp(max(0, since)))
    # if the first such record was deleted, brokers find none, although later ones may exist
    return [each.begin_at(at) if (at := found[each.source]) >= 0 else _doubt(each) for each in offset_ranges]


def _doubt(offset_range: OffsetRange) -> OffsetRange:
    return offset_range if offset_range.start > 0 else offset_range.begin_at(offset_range.stop)
