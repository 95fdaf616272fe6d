"""Which partitions a reading reads, and from where to where.

The first reading of a line asks Kafka everything, and gets good answers to what is wrong: an address, a password, a
topic. Those that follow ask no more than has to be known anew: one small fetch for the bounds of each partition, and now
and then which partitions there are, all at once. That fetch looks at the batch behind which the chunk index ends, so it also
says whether the index still holds. When anything is not as it was, everything is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.client.connection import Connection, Known
from overlay.config.stream import StreamConfig
from overlay.errors import OverlayError
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import Glimpse, glimpse_all
from overlay.inspect.reading import check_topics, look_around
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.connection import Properties, reach
from overlay.kafka.log_position import TopicPartition
from overlay.state.partitions import Sources, list_sources
from overlay.state.shard_state import ShardState

from .offset_ranges import Stretch
from .question import Request
from .sequences import Order

DEADLINE_S = 5.0
"""How long Kafka may take to answer at all: somebody waits for it."""


class NoSequence(OverlayError):
    """A sequence was asked for where there is none. The caller acts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there is to read now, and where each partition goes on afterwards."""

    stretches: tuple[Stretch, ...]
    sources: Sources
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    seen: Mapping[TopicPartition, Glimpse] = field(default_factory=dict)
    """What was asked for beside, where it could be had."""
    order: Order | None = None
    """Of a stream of several partitions, if it has a ledger."""

    @property
    def ledger(self) -> Ledger | None:
        return self.order.ledger if self.order else None

    @property
    def further(self) -> tuple[Stretch, ...]:
        """From the ends on, without an end."""
        return tuple(Stretch(each.source, each.stop, floor=each.floor) for each in self.stretches)


async def find_bounds(line: Connection, request: Request, offsets: Mapping[TopicPartition, int]) -> Bounds:
    """Ask Kafka. Ends are the last stable offsets of this moment. `offsets`: those to look at beside, at no further cost.

    Where offsets give no sequences, the stretches begin at the logs' starts; see `begin_in_order`.

    Raises CredentialsRefused, SourceUnavailable, TopicNotFound, SourceChanged.
    """
    key = request.stream.topics
    seen = await _look_again(line, line.known.get(key), offsets)
    if not seen:
        if key in line.known:
            await line.close()  # whatever it was, a new connection is none the worse
        line.known[key] = await _look(line, request.stream)
    sources = line.known[key].sources
    bounds = line.known[key].bounds | {s: (seen[s].first, seen[s].end) for s in sources.partitions if s in seen}
    line.known[key] = replace(line.known[key], bounds=bounds)
    starts = {source: first for source, (first, _) in bounds.items()}
    floor = 0
    if request.from_seq is not None and sources.is_sequenced:
        floor = request.from_seq - 1
        starts = {source: min(max(floor, first), end) for source, (first, end) in bounds.items()}
    stretches = tuple(Stretch(source, starts[source], end, floor) for source, (_, end) in bounds.items())
    return Bounds(stretches, sources, {source: first for source, (first, _) in bounds.items()}, seen)


def begin_in_order(bounds: Bounds, request: Request, order: Order | None) -> Bounds:
    """With the order of a stream of several partitions, and from the sequence that is asked for. Raises NoSequence."""
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
        stretches=tuple(
            replace(each, start=min(max(each.start, place), each.stop), floor=place)
            for each in bounds.stretches
            for place in (places.get(each.source, each.start),)
        ),
    )


async def _look(line: Connection, stream: StreamConfig) -> Known:
    await reach(line.kafka, DEADLINE_S)
    sources = await _find_sources(line.kafka, line.admin, stream)
    bounds = await line.admin.find_bounds(sources.partitions)
    client = await line.open()
    for topic in stream.topic_names:
        await client.add_topic(topic)
    return Known(sources, {topic: _count(client, topic) for topic in stream.topic_names}, bounds)


async def _look_again(
    line: Connection, known: Known | None, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Glimpse]:
    """What has to be known anew; nothing when it is not certain that all else is as it was."""
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
        # only an error is worth asking for every topic of the cluster
        check_topics(await asyncio.to_thread(look_around, kafka, DEADLINE_S), stream.topic_names)
    return list_sources(stream, topics, ShardState())


def _count(client: AIOKafkaClient, topic: str) -> int:
    return len(client.cluster.partitions_for_topic(topic) or ())


async def begin_at(line: Connection, stretches: Iterable[Stretch], since: int) -> list[Stretch]:
    """Begin at the first offset at or after a time: before it every record is older, whatever the order of timestamps."""
    asked = {each.source: each for each in stretches}
    # Kafka gives negative times a meaning of their own
    found = await line.admin.find_offsets(asked, OffsetSpec.for_timestamp(max(0, since)))
    # where the first such record was deleted, brokers say that there is none, though later ones are there
    return [each.begin_at(at) if (at := found[each.source]) >= 0 else _doubt(each) for each in asked.values()]


def _doubt(stretch: Stretch) -> Stretch:
    return stretch if stretch.start > 0 else stretch.begin_at(stretch.stop)
