"""The reset of a stream: its consumers' positions now and afterwards, and the change of their states."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from overlay.config import DeliverPolicy, Loaded
from overlay.errors import SourceChanged
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.state.amend import Change, amend, reset_stream
from overlay.state.shard_state import ConsumerId

from .stored import Memory, find_change, find_partitions, name_source


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
    where: Where
    reason: str
    positions: Mapping[TopicPartition, int]
    consumers: Mapping[ConsumerId, Mapping[TopicPartition, int]]
    """The consumers that the state knows, with their current positions; without those of Spark
    jobs, which a reset leaves alone."""
    snapshots: Mapping[ConsumerId, Mapping[TopicPartition, int]]
    fresh: tuple[str, ...]
    """Names of the stream's consumers that the state does not know, sorted."""

    @property
    def change(self) -> Change:
        return functools.partial(reset_stream, stream=self.stream, positions=self.positions, snapshots=self.snapshots)

    def is_needed(self, memory: Memory) -> bool:
        """Return whether the reset would change the state of any shard."""
        return any(self.change(state) for state in memory.states)

    async def run(self, loaded: Loaded) -> None:
        """Change the states of all shards concerned, each of which is taken over for a moment; a running service takes
        them up again. Raises OverlayError, such as Fenced and SourceUnavailable; shards that were changed before stay
        changed.
        """
        async with Admin(loaded.service.kafka) as admin:
            await amend(loaded.service, admin, self.change)

    def list_moves(self) -> Iterator[tuple[str, str, int | None, int]]:
        """Yield a consumer's name, a partition, its position there now (None if there is none, or none that means
        anything), and the one afterwards, for each consumer and partition.
        """
        for consumer, positions in self.consumers.items():
            for source, to in self.positions.items():
                yield consumer[1], name_source(source), None if self.reason else positions.get(source), to

    def list_effects(self) -> list[str]:
        """Return sentences that say what the reset does beside the moves."""
        is_start = self.where is Where.START
        lines = ["Their sequences go on. Nothing is taken back from their output topics"]
        lines[0] += "; what they read again is delivered again." if is_start else "."
        if not is_start:
            lines.append("What is in the topics now and has not been delivered is passed over.")
        if self.fresh:
            lines.append(f"Consumers that have not begun yet start by their deliver_policy: {', '.join(self.fresh)}.")
        return lines


def plan_rewind(loaded: Loaded, memory: Memory, stream: str, where: Where) -> RewindPlan:
    """Return the plan to reset a stream. Nothing is changed or asked of Kafka; `memory` has what was read, the consumers that
    were made by request among it.

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
    configs = (memory.loaded or loaded).consumers
    snapshots = {
        consumer: ends
        for consumer in consumers
        if where is Where.START
        and consumer in configs
        and configs[consumer].deliver_policy is DeliverPolicy.LAST_PER_SUBJECT
    }
    fresh = tuple(name for of, name in sorted(configs.keys() - consumers.keys()) if of == stream)
    positions = starts if where is Where.START else ends
    return RewindPlan(stream, where, find_change(config, memory), positions, consumers, snapshots, fresh)
