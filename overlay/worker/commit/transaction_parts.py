"""One round's output as several transactions, where it goes to more partitions than one transaction bears.

Each partition of a transaction costs the broker a marker, and the first time much more: a first transaction over 1,000
outputs takes longer than any deadline of ours (design 11.9). So the consumers of a round are dealt out to transactions of at
most PARTITIONS partitions each.

Between two of them some consumers are ahead of others. Each part but the last therefore gives its consumers positions of
their own, as consumers have who stand elsewhere than the stream's cursor; the last part moves the cursor and brings everybody
back to it. Whoever takes over in between finds every consumer either before all of its records or behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.batch_builder import OutputBatch
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

PARTITIONS = 100
"""Output partitions of one transaction. A consumer with more of them than this is not divided."""


def split(
    batches: Sequence[tuple[ConsumerId, OutputBatch]],
    delta: Delta,
    cursors: Mapping[tuple[str, TopicPartition], LogPosition],
    limit: int,
) -> Iterator[tuple[list[OutputBatch], Delta]]:
    """The transactions that together write `batches` and `delta`, in order. `cursors`: as they were before."""
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
    """Neighbours together while their partitions stay within the limit; one empty group for nobody."""
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
    """The consumer where it will stand, without leaning on a cursor that has not moved yet."""
    leaning = {source: log_position for (stream, source), log_position in cursors.items() if stream == consumer[0]}
    return replace(state, own={**leaning, **state.own})
