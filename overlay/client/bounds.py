"""Which partitions a reading reads, and from where to where."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka.admin import OffsetSpec

from overlay.admin import Admin
from overlay.config.stream import StreamConfig
from overlay.connection import Properties, check_reachable
from overlay.deliver.state import ShardState
from overlay.errors import OverlayError
from overlay.inspect.reading import check_topics, look_around
from overlay.source.mark import Source
from overlay.worker.sources import Sources, list_sources

from .question import Request
from .sieve import Stretch

DEADLINE_S = 5.0
"""How long Kafka may take to answer at all: somebody waits for it."""


class NoSequence(OverlayError):
    """A sequence was asked for where there is none. The caller acts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there is to read now, and where each partition goes on afterwards."""

    stretches: tuple[Stretch, ...]
    sources: Sources

    @property
    def further(self) -> tuple[Stretch, ...]:
        """From the ends on, without an end."""
        return tuple(Stretch(each.source, each.stop, floor=each.floor) for each in self.stretches)


async def find_bounds(kafka: Properties, request: Request) -> Bounds:
    """Ask Kafka. Ends are the last stable offsets of this moment.

    Raises CredentialsRefused, SourceUnavailable, TopicNotFound, SourceChanged, or NoSequence for a sequence in a
    stream of several partitions.
    """
    await asyncio.to_thread(check_reachable, kafka, DEADLINE_S)
    admin = Admin(kafka)
    sources = await _find_sources(kafka, admin, request.stream)
    bounds = await admin.find_bounds(sources.partitions)
    starts = {source: first for source, (first, _) in bounds.items()}
    floor = 0
    if request.since is not None:
        starts = await _find_starts(admin, bounds, request.since)
    if request.from_seq is not None:
        if not sources.is_sequenced:
            raise NoSequence(
                f"stream {request.stream.name} has {len(sources.partitions)} partitions and no order over them yet, so there"
                " is no sequence to begin at. Begin at a time instead"
            )
        floor = request.from_seq - 1
        starts = {source: min(max(floor, first), end) for source, (first, end) in bounds.items()}
    return Bounds(tuple(Stretch(source, starts[source], end, floor) for source, (_, end) in bounds.items()), sources)


async def _find_sources(kafka: Properties, admin: Admin, stream: StreamConfig) -> Sources:
    topics = await admin.find_topics(stream.topic_names, with_config=False)
    if len(topics) < len(stream.topic_names):
        # only an error is worth asking for every topic of the cluster
        check_topics(await asyncio.to_thread(look_around, kafka, DEADLINE_S), stream.topic_names)
    return list_sources(stream, topics, ShardState())


async def _find_starts(admin: Admin, bounds: Mapping[Source, tuple[int, int]], since: int) -> dict[Source, int]:
    """The first offset at or after a time; before it every record is older, whatever the order of the timestamps."""
    # Kafka gives negative times a meaning of their own
    found = await admin.find_offsets(bounds, OffsetSpec.for_timestamp(max(0, since)))
    return {source: at if at >= 0 else bounds[source][1] for source, at in found.items()}
