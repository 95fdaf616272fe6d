"""The partitions of a stream, and a check that its topics are the ones that the state was written
for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overlay.config.stream import StreamConfig
from overlay.errors import SourceChanged
from overlay.kafka.admin import TopicFacts
from overlay.kafka.log_position import TopicPartition

from .shard_state import ShardState


@dataclass(frozen=True, slots=True)
class Sources:
    """The partitions of a stream to read, and Kafka's ids of its topics by name."""

    partitions: tuple[TopicPartition, ...]
    identities: Mapping[str, str]
    unread: tuple[TopicPartition, ...] = ()
    """Partitions that were added to a stream of one partition; they are read after `overlay stream
    extend`."""

    @property
    def is_sequenced(self) -> bool:
        """Whether the stream is read from one partition, so that a sequence is offset + 1 unless the
        stream has a ledger."""
        return len(self.partitions) == 1


def list_sources(
    stream: StreamConfig, topics: Mapping[str, TopicFacts], state: ShardState, *, is_extended: bool = False
) -> Sources:
    """Return the partitions that a stream is to be read from. `topics`: Kafka's facts of the stream's topics,
    by name; a topic that does not exist is not in it.

    `is_extended`: the stream has a ledger, so partitions that were added are read like any other. Without a ledger,
    if `state` has positions in just one of several partitions of the config, that one is read, and the others are in
    `unread`. Raises SourceChanged if a topic or partition of the config is missing, if a topic was created again
    since `state` knows it, or if, without a ledger, none of the partitions read before is left.
    """
    found: list[TopicPartition] = []
    for entry in stream.topics:
        facts = topics.get(entry.topic)
        if facts is None:
            raise SourceChanged(
                f"topic {entry.topic} does not exist; the stream waits for it. Create it, or name another in the stream's file"
            )
        # offsets of a topic that was created again mean other records
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
    # without a ledger, sequences are offsets of one partition: others must not replace it, and
    # added ones are not read
    known_partitions = _known_partitions(stream, state)
    before = [source for source in known_partitions if source in found]
    if known_partitions and not before and not is_extended:
        raise SourceChanged(
            f"the stream was read from {_name(known_partitions)} and is now to be read from {_name(found)}: its sequences are"
            f" those of another log. Run `overlay stream reset {stream.name}` to start anew"
        )
    if len(before) == 1 and len(found) > 1 and not is_extended:
        return Sources(tuple(before), identities, tuple(s for s in found if s not in before))
    return Sources(tuple(found), identities)


def find_anew(known: Mapping[str, str], ids: Mapping[str, str]) -> set[str]:
    """Return the topics that were created again: their id in `known`, Kafka's ids of then, differs from
    that in `ids`, the ids of now. A topic that `known` does not have counts as the same.
    """
    return {topic for topic, id in ids.items() if known.get(topic, id) != id}


def _name(sources: list[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sources[:3]) + (", ..." if len(sources) > 3 else "")


def _known_partitions(stream: StreamConfig, state: ShardState) -> list[TopicPartition]:
    """Return the partitions, sorted, in which the stream or one of its consumers that the service delivers has
    a position in the state."""
    served = [c for (name, _), c in state.consumers.items() if name == stream.name and not c.job]
    own = {source for c in served for source in c.own}
    return sorted(own | {source for name, source in state.cursors if name == stream.name})
