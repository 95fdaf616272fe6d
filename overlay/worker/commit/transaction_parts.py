"""One round's output as several transactions, for rounds with more output partitions than one
transaction bears.

Each partition of a transaction costs the broker a marker, and much more the first time. A first
transaction over 1,000 outputs takes longer than any of our deadlines
(docs/exactly-once.md#transactions). So the consumers of a round are divided among transactions of
at most PARTITIONS partitions each.

Between two of these transactions some consumers are ahead of others. Each part but the last
therefore records positions of their own for its consumers, as for consumers that are not at the
tail. The last part moves the stream's position and brings all consumers back to it. A worker that
takes the shard over in between finds each consumer either before all of its records or behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.batch_builder import OutputBatch
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

PARTITIONS = 100
"""Most output partitions of one transaction. A single consumer with more partitions than this is
not divided."""


def split(
    batches: Sequence[tuple[ConsumerId, OutputBatch]],
    delta: Delta,
    cursors: Mapping[tuple[str, TopicPartition], LogPosition],
    limit: int,
) -> Iterator[tuple[list[OutputBatch], Delta]]:
    """Yield transactions that together write `batches` and `delta`, at least one. Each has all
    batches of its consumers, and at most `limit` output partitions unless a single consumer has
    more.

    The last has all of `delta`; those before it record only the new states of their consumers, with
    positions of their own. `cursors`: the positions that the state has before them.
    """
    by_consumer: dict[ConsumerId, list[OutputBatch]] = {}
    for consumer, outgoing in batches:
        by_consumer.setdefault(consumer, []).append(outgoing)
    *firsts, last = _group(by_consumer, limit)
    moved = {**cursors, **delta.cursors}
    for group in firsts:
        ahead = {consumer: _detach(consumer, delta.consumers[consumer], moved) for consumer in group}
        yield [outgoing for consumer in group for outgoing in by_consumer[consumer]], Delta(consumers=ahead)
    yield [outgoing for consumer in last for outgoing in by_consumer[consumer]], delta


def _group(by_consumer: Mapping[ConsumerId, Sequence[OutputBatch]], limit: int) -> list[list[ConsumerId]]:
    """Return the consumers, in order, in groups with at most `limit` distinct output partitions
    each. A consumer with more is a group by itself. Return one empty group if there are no
    consumers."""
    groups: list[list[ConsumerId]] = [[]]
    partitions: set[tuple[str, int]] = set()
    for consumer, batches in by_consumer.items():
        more = {(outgoing.topic, outgoing.partition) for outgoing in batches}
        if groups[-1] and len(partitions | more) > limit:
            groups.append([])
            partitions = set()
        groups[-1].append(consumer)
        partitions |= more
    return groups


def _detach(
    consumer: ConsumerId, state: ConsumerState, cursors: Mapping[tuple[str, TopicPartition], LogPosition]
) -> ConsumerState:
    """Return a consumer's new state with a position of its own in every partition of its stream: as
    in `state` if it has one there, else the stream's. So it does not depend on a stream position
    that has not moved yet. `cursors`: the streams' positions after the round."""
    leaning = {source: log_position for (stream, source), log_position in cursors.items() if stream == consumer[0]}
    return replace(state, own={**leaning, **state.own})
