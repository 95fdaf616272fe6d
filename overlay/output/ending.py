"""How the last transaction of a shard's former owner was decided, as the state keeps it for later owners.

The coordinator tells the next owner of it, and forgets it then (lost_markers.py). A partition that does not tell that
owner what is open may tell a later one, when the coordinator knows another last transaction. So each owner writes down
how the one before it was decided, in the first transaction that it commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from overlay.kafka.log_position import TopicPartition

MOST = 32
"""Endings that the state keeps: those of the last owners. Committed ones in a row count as one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of the last transaction of an owner. `producer` and `epoch`: of its producer; what an owner before it has
    left open has a lower epoch. `is_committed`: how the transaction was decided. `partitions`: all partitions of
    one that was aborted; None if they are not known. What the same owner has open elsewhere was committed before.
    """

    producer: int
    epoch: int
    is_committed: bool
    partitions: frozenset[TopicPartition] | None = None

    def has_committed(self, place: TopicPartition) -> bool:
        """Return whether this owner committed the transaction that it has left open in a partition."""
        return self.is_committed or (self.partitions is not None and place not in self.partitions)


def find_ending(endings: Iterable[Ending], producer: int, epoch: int) -> Ending | None:
    """Return the ending of the owner that wrote with a producer id and an epoch; None if none of `endings` is of
    that owner or a later one. The coordinator may have raised the epoch when it aborted the owner's transaction."""
    later = [each for each in endings if each.producer == producer and each.epoch >= epoch]
    return min(later, key=lambda each: each.epoch, default=None)


def add(endings: Sequence[Ending], last: Ending | None) -> tuple[Ending, ...]:
    """Return the endings with a later one, without the oldest ones if they are more than MOST. A committed one takes the
    place of a committed one before it: what either owner has left open was committed."""
    if last is None:
        return tuple(endings)
    before = endings[-1] if endings else None
    if before is not None and before.is_committed and last.is_committed and before.producer == last.producer:
        endings = endings[:-1]
    return (*endings, last)[-MOST:]


def to_wire(endings: Iterable[Ending]) -> list[list[Any]]:
    """Return endings as lists for JSON: producer, epoch, whether committed, and the partitions or null."""
    return [
        [
            each.producer,
            each.epoch,
            each.is_committed,
            None if each.partitions is None else [list(place) for place in sorted(each.partitions)],
        ]
        for each in endings
    ]


def from_wire(wire: Iterable[Sequence[Any]]) -> tuple[Ending, ...]:
    """Return the endings that `to_wire` has written. Raises ValueError or TypeError for anything else."""
    return tuple(
        Ending(
            producer,
            epoch,
            is_committed,
            None if places is None else frozenset((topic, index) for topic, index in places),
        )
        for producer, epoch, is_committed, places in wire
    )
