"""One round's output as several transactions, for rounds with more output partitions than one
transaction bears.

Each partition of a transaction costs the broker a marker, and much more the first time. A first
transaction over 1,000 outputs takes longer than any of our deadlines
(docs/exactly-once.md#transactions). So the consumers of a round are divided among transactions of
at most PARTITIONS partitions each. Those that share batches stay together.

Between two of these transactions some consumers are ahead of others. Each part but the last
therefore records positions of their own for its consumers, as for consumers that are not at the
tail. The last part moves the stream's position and brings all consumers back to it. A worker that
takes the shard over in between finds each consumer either before all of its records or behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.output.batch_builder import OutputBatch
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

PARTITIONS = 100
"""Most output partitions of one transaction. A single consumer with more partitions than this is
not divided, nor are consumers that share batches."""


def split(
    batches: Sequence[tuple[tuple[ConsumerId, ...], OutputBatch]],
    delta: Delta,
    cursors: Mapping[tuple[str, TopicPartition], LogPosition],
    limit: int,
) -> Iterator[tuple[list[OutputBatch], Delta]]:
    """Yield transactions that together write `batches` and `delta`, at least one. Each has all batches of its
    consumers, and at most `limit` output partitions unless one consumer, or consumers that share batches, have more.

    The last has all of `delta`; those before it record only the new states of their consumers, with positions of
    their own. `batches`: each with its consumers, which `delta.consumers` must have. `cursors`: by stream and
    partition, the stream's position in the state before these transactions.
    """
    *firsts, last = _group(_list_bound(batches), limit)
    moved = {**cursors, **delta.cursors}
    for group in firsts:
        ahead = {consumer: _detach(consumer, delta.consumers[consumer], moved) for consumer in group.consumers}
        yield group.batches, Delta(consumers=ahead)
    yield last.batches, delta


@dataclass(slots=True)
class _Bound:
    """Consumers and batches that cannot be divided among transactions. `partitions`: of the
    batches."""

    consumers: dict[ConsumerId, None] = field(default_factory=dict)
    batches: list[OutputBatch] = field(default_factory=list)
    partitions: set[tuple[str, int]] = field(default_factory=set)

    def take_in(self, other: _Bound) -> None:
        """Add the consumers and batches of another one, after its own."""
        self.consumers |= other.consumers
        self.batches += other.batches
        self.partitions |= other.partitions


def _list_bound(batches: Sequence[tuple[tuple[ConsumerId, ...], OutputBatch]]) -> list[_Bound]:
    """Return `batches` divided as far as they can be: consumers that have a batch in common are in one
    _Bound, with all of their batches. The order of each consumer's batches is kept."""
    bound: dict[ConsumerId, _Bound] = {}
    for consumers, outgoing in batches:
        together = list({id(bound[consumer]): bound[consumer] for consumer in consumers if consumer in bound}.values())
        whole = together[0] if together else _Bound()
        for other in together[1:]:
            whole.take_in(other)
        whole.take_in(_Bound(dict.fromkeys(consumers), [outgoing], {(outgoing.topic, outgoing.partition)}))
        bound.update(dict.fromkeys([*consumers, *(c for other in together[1:] for c in other.consumers)], whole))
    return list({id(each): each for each in bound.values()}.values())


def _group(bound: Sequence[_Bound], limit: int) -> list[_Bound]:
    """Return neighbours in `bound` merged, in order, into groups with at most `limit` distinct output
    partitions each. One that has more by itself is a group alone. Return one empty group if `bound` is
    empty."""
    groups = [_Bound()]
    for each in bound:
        if groups[-1].consumers and len(groups[-1].partitions | each.partitions) > limit:
            groups.append(_Bound())
        groups[-1].take_in(each)
    return groups


def _detach(
    consumer: ConsumerId, state: ConsumerState, cursors: Mapping[tuple[str, TopicPartition], LogPosition]
) -> ConsumerState:
    """Return a consumer's new state with a position of its own in every partition of its stream: as
    in `state` if it has one there, else the stream's. So it does not depend on a stream position
    that has not moved yet. `cursors`: the streams' positions after the round."""
    leaning = {source: log_position for (stream, source), log_position in cursors.items() if stream == consumer[0]}
    return replace(state, own={**leaning, **state.own})
