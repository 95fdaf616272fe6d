"""Start offsets in ack topics: where a session begins to read, for which consumers, and what the
state records of it. No IO.

The consumers of a stream share a position in each partition of its ack topic, as they share the
stream's position in its log. A consumer that is not served now (stalled, or its file removed) gets
positions of its own before the shared ones move on without it. Acks for its deliveries that arrive
meanwhile count when it is served again.

Known offsets say nothing about a partition that was added, or about a topic that was created again.
All of their records were written after that, so they are read from the start, also if a former session
has read some of them before it noticed: an ack settles its message once, and at most a message that
is not settled yet is delivered once more than its naks asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState

from .ack_offsets import AckOffsets


def is_another(state: ShardState, stream: str, topic: str, identity: str) -> bool:
    """Return True if a stream's ack topic was created again: its id, `identity`, differs from the
    one that the state has recorded. False if the state has recorded none.
    """
    return state.topics.get((stream, topic), identity) != identity


def is_new(state: ShardState, stream: str, topic: str) -> bool:
    """Return whether the shard has never read a stream's ack topic: its state has neither the
    topic's id nor a position in it.
    """
    return (stream, topic) not in state.topics and not any(
        name == stream and source[0] == topic for name, source in state.acks
    )


def find_shared(
    state: ShardState,
    stream: str,
    sources: Collection[TopicPartition],
    identity: str,
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, LogPosition]:
    """Return the next log position in each partition of a stream's ack topic, for the consumers
    that share a position.

    `sources`: all partitions of that topic; `identity`: Kafka's id of it. If the topic is new to
    the shard, reading begins at `ends` (the last stable offset of each partition, not used
    otherwise), since older acks cannot concern deliveries of its consumers. If it was created
    again, or a partition has no recorded position, reading begins at offset 0.
    """
    topic = next(iter(sources))[0]
    if is_another(state, stream, topic, identity):
        return dict.fromkeys(sources, LogPosition(0))
    if is_new(state, stream, topic):
        return {source: LogPosition(ends[source]) for source in sources}
    return {source: state.acks.get((stream, source), LogPosition(0)) for source in sources}


def settle(
    state: ShardState,
    stream: str,
    shared: Mapping[TopicPartition, LogPosition],
    identity: str,
    served: Collection[ConsumerId],
) -> tuple[dict[TopicPartition, AckOffsets], Delta]:
    """Return from which offset of each partition each consumer has to process acks, and a delta
    that records it in the state.

    The delta has the shared positions, the topic's id, and each consumer whose own positions
    change. A served consumer keeps its positions below the shared ones. A consumer that is not
    served but has a machine gets a position of its own in every partition, at most the shared one.
    If the topic was created again, own positions in the earlier one are dropped first.

    `shared`: as `find_shared` returned it; `identity`: Kafka's id of the topic; `served`: the
    consumers whose machines run in this session.
    """
    topic = next(iter(shared))[0]
    log_positions = {(stream, source): log_position for source, log_position in shared.items()}
    offsets = {source: log_position.position for source, log_position in shared.items()}
    delta = Delta(acks=log_positions, topics={(stream, topic): identity})
    is_void = is_another(state, stream, topic, identity)
    own: dict[TopicPartition, dict[str, int]] = {source: {} for source in shared}
    for consumer, known in state.consumers.items():
        if consumer[0] != stream:
            continue
        heard = {} if is_void else _clip(known, offsets)
        if consumer in served:
            for source, at in heard.items():
                own[source][consumer[1]] = at
        elif consumer in state.machines:
            heard = {**offsets, **heard}
        else:
            continue
        if heard != known.heard:
            delta.consumers[consumer] = replace(known, heard=heard)
    return {source: AckOffsets(at, own[source]) for source, at in offsets.items()}, delta


def _clip(known: ConsumerState, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return a consumer's own positions that are below the shared `offsets`, by partition.
    Partitions that `offsets` does not have are left out.
    """
    return {source: at for source, at in known.heard.items() if source in offsets and at < offsets[source]}
