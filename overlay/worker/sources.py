"""The partitions of a stream: which there are, whether they are still the ones that the state was written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiokafka.client import AIOKafkaClient

from overlay.admin import TopicFacts
from overlay.config.stream import StreamConfig
from overlay.deliver.state import ShardState
from overlay.errors import SourceChanged
from overlay.scan.header import split
from overlay.source.feed import mark_after
from overlay.source.mark import Mark, Source
from overlay.source.span import read_span


@dataclass(frozen=True, slots=True)
class Sources:
    """`partitions` to read, and the Kafka ids of the stream's topics."""

    partitions: tuple[Source, ...]
    identities: Mapping[str, str]
    unread: tuple[Source, ...] = ()
    """Partitions that were added to a stream of one; they wait for `overlay stream extend`."""

    @property
    def is_sequenced(self) -> bool:
        """Whether offsets give sequences: only one partition does."""
        return len(self.partitions) == 1


def list_sources(stream: StreamConfig, topics: Mapping[str, TopicFacts], state: ShardState) -> Sources:
    """The stream's partitions as Kafka has them. Raises SourceChanged for missing or recreated topics."""
    found: list[Source] = []
    for entry in stream.topics:
        facts = topics.get(entry.topic)
        if facts is None:
            raise SourceChanged(
                f"topic {entry.topic} does not exist; the stream waits for it. Create it, or name another in the stream's file"
            )
        known = state.topics.get((stream.name, entry.topic))
        if known is not None and known != facts.identity:
            raise SourceChanged(
                f"topic {entry.topic} was deleted and created again (id {facts.identity}, was {known}): its old positions"
                f" mean nothing. Run `overlay stream reset {stream.name}` to start anew"
            )
        wanted = entry.partitions if entry.partitions is not None else range(facts.partitions)
        if missing := [p for p in wanted if p >= facts.partitions]:
            raise SourceChanged(
                f"topic {entry.topic} has no partition {missing[0]}; it has {facts.partitions}, and they count from 0. Change"
                " `partitions` in the stream's file"
            )
        found.extend((entry.topic, p) for p in wanted)
    identities = {entry.topic: topics[entry.topic].identity for entry in stream.topics}
    before = [source for source in _known_partitions(stream, state) if source in found]
    if len(before) == 1 and len(found) > 1:
        return Sources(tuple(before), identities, tuple(s for s in found if s not in before))
    return Sources(tuple(found), identities)


def _known_partitions(stream: StreamConfig, state: ShardState) -> list[Source]:
    """Partitions in which the stream, or a consumer of it, has a position."""
    own = {source for (name, _), c in state.consumers.items() if name == stream.name for source in c.own}
    return sorted(own | {source for name, source in state.cursors if name == stream.name})


async def check_mark(
    client: AIOKafkaClient, stream: str, source: Source, mark: Mark, bounds: tuple[int, int], *, compacted: bool
) -> None:
    """Read the batch before a mark again and compare. Raises SourceChanged when the log is not the one that was read.

    `bounds`: log start and high watermark. Compaction rewrites batches or removes them altogether, so of a compacted topic
    only the epoch is compared, if the batch is still there. A batch that retention has removed cannot be compared.
    """
    first, end = bounds
    if mark.position > end:
        raise SourceChanged(
            f"{source[0]}-{source[1]}: the log ends at {end}, below the position {mark.position}: it was truncated. Run"
            f" `overlay stream reset {stream}` to start anew"
        )
    if mark.crc < 0 or mark.position <= first:
        return
    found = await _batch_before(client, source, mark.position)
    if found is None or (compacted and found.position != mark.position):
        return
    same_crc = compacted or found.crc == mark.crc
    if found.position != mark.position or found.epoch != mark.epoch or not same_crc:
        raise SourceChanged(
            f"{source[0]}-{source[1]}@{mark.position - 1}: the batch before the position is not the one that was read"
            f" (epoch {found.epoch}, was {mark.epoch}): the log was truncated. Run `overlay stream reset {stream}` to start"
            " anew"
        )


async def _batch_before(client: AIOKafkaClient, source: Source, position: int) -> Mark | None:
    try:
        async for fetched in read_span(client, *source, position - 1, position):
            batches = split(fetched.data).batches
            covering = batches[batches["last_offset"] >= position - 1][:1]
            return mark_after(covering, position - 1)
    except SourceChanged:
        return None
    return None
