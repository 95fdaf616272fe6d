"""What beginning a stream anew means: where its consumers stand now, and where they will."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from overlay.config import DeliverPolicy, Loaded
from overlay.errors import SourceChanged
from overlay.kafka.log_position import TopicPartition
from overlay.state.amend import Change, reset_stream
from overlay.state.shard_state import ConsumerId

from .stored import Memory, find_change, find_partitions


class Where(enum.StrEnum):
    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class Rewind:
    """`reason`: why the stream cannot be read as it is; the positions until now mean nothing then. Else empty."""

    stream: str
    reason: str
    positions: Mapping[TopicPartition, int]
    consumers: Mapping[ConsumerId, Mapping[TopicPartition, int]]
    """The consumers that the state knows, and their positions now."""
    snapshots: Mapping[ConsumerId, Mapping[TopicPartition, int]]

    @property
    def change(self) -> Change:
        return functools.partial(reset_stream, stream=self.stream, positions=self.positions, snapshots=self.snapshots)

    def is_needed(self, memory: Memory) -> bool:
        """Whether the state remembers anything that the reset would change."""
        return any(self.change(state) for state in memory.states)


def plan_rewind(loaded: Loaded, memory: Memory, stream: str, where: Where) -> Rewind:
    """The reset of a stream. Raises SourceChanged when a topic of it is missing: there is nowhere to begin."""
    config = loaded.streams[stream]
    for entry in config.topics:
        if entry.topic not in memory.topics:
            raise SourceChanged(f"topic {entry.topic} does not exist. Create it, then reset stream {stream}")
    sources = find_partitions(config, memory.topics)
    starts = {source: memory.bounds[source][0] for source in sources}
    ends = {source: memory.bounds[source][1] for source in sources}
    consumers = {
        consumer: {
            s: log_position.position
            for s in sources
            if (log_position := memory.state_for(consumer).log_position_of(consumer, s))
        }
        for consumer in memory.known_consumers()
        if consumer[0] == stream
    }
    snapshots = {
        consumer: ends
        for consumer in consumers
        if where is Where.START
        and consumer in loaded.consumers
        and loaded.consumers[consumer].deliver_policy is DeliverPolicy.LAST_PER_SUBJECT
    }
    return Rewind(stream, find_change(config, memory), starts if where is Where.START else ends, consumers, snapshots)
