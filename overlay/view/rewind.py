"""The plan of a stream's reset: its consumers' positions now and afterwards."""

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
    """The place in the topics' logs at which a stream begins anew: their start or their end."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The plan of a reset, which sets a stream's consumers to the start or the end of its logs.

    `reason`: why the stream cannot be read as it is, "" if it can. If there is a reason, the
    current positions mean nothing. `positions`: where the consumers begin again. `snapshots`:
    offsets below which a last_per_subject consumer gets only the last message of each subject.
    """

    stream: str
    reason: str
    positions: Mapping[TopicPartition, int]
    consumers: Mapping[ConsumerId, Mapping[TopicPartition, int]]
    """The consumers that the state knows, with their current positions; without those of Spark
    jobs, which a reset leaves alone."""
    snapshots: Mapping[ConsumerId, Mapping[TopicPartition, int]]

    @property
    def change(self) -> Change:
        return functools.partial(reset_stream, stream=self.stream, positions=self.positions, snapshots=self.snapshots)

    def is_needed(self, memory: Memory) -> bool:
        """Return whether the reset would change the state of any shard."""
        return any(self.change(state) for state in memory.states)


def plan_rewind(loaded: Loaded, memory: Memory, stream: str, where: Where) -> RewindPlan:
    """Return the plan to reset a stream. Nothing is changed or asked of Kafka; `memory` has what was read.

    Raises SourceChanged if a topic of the stream is missing, because there is no log to begin at.
    """
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
        if consumer[0] == stream and not memory.state_for(consumer).consumers[consumer].job
    }
    snapshots = {
        consumer: ends
        for consumer in consumers
        if where is Where.START
        and consumer in loaded.consumers
        and loaded.consumers[consumer].deliver_policy is DeliverPolicy.LAST_PER_SUBJECT
    }
    return RewindPlan(
        stream, find_change(config, memory), starts if where is Where.START else ends, consumers, snapshots
    )
