"""The tasks of a plan: its stretches, cut into parts of about the same weight.

A part is a stretch like any other (overlay/client/read/offset_ranges.py): source, first offset,
end, and the way from the chunk index. The spans of the way say what their records have to be tested
for. A leg weighs its bytes by the index. Without an index each offset counts as the bytes of a
small record. Legs are cut wherever the weight is reached, because an offset within a batch is as
good a bound as any other. Legs that are neighbours in the plan share a task, also across
partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from overlay.client.read.offset_ranges import Leg, Stretch
from overlay.index.ledger.ledger import Ledger

RECORD_BYTES = 128
"""Bytes that an offset counts for if its size is unknown."""
LEAST_BYTES = 1 << 20
"""Least bytes of a task, so that small topics are not cut into tasks that cost more than they read."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some offsets of a stretch, read by one task."""

    stretch: Stretch
    start: int
    stop: int


class TaskPartition(InputPartition):
    """The stretches of one task, from any number of Kafka partitions. Picklable, as Spark requires.

    In a stream of one partition (`sequenced`), sequences come from offsets. In others they come
    from the `ledger`, which is None if there is none or if no sequences are asked for.
    """

    def __init__(self, stretches: tuple[Stretch, ...], *, sequenced: bool, ledger: Ledger | None = None) -> None:
        super().__init__(None)
        self.stretches, self.sequenced, self.ledger = stretches, sequenced, ledger


def divide(stretches: Sequence[Stretch], task_bytes: int, min_tasks: int) -> list[tuple[Stretch, ...]]:
    """Return the stretches as at least `min_tasks` tasks of at most about `task_bytes`, as far as
    there is enough to read.

    Stretches are in the order of the plan, and so are the tasks. Stretches with nothing to read are
    left out.
    """
    legs = [(each, leg) for each in stretches for leg in each.legs()]
    total = sum(weigh_leg(leg) for _, leg in legs)
    if not total:
        return []
    tasks = max(-(-total // task_bytes), min(min_tasks, -(-total // LEAST_BYTES)))
    return [tuple(_join(pieces)) for pieces in _deal(legs, -(-total // tasks))]


def weigh_leg(leg: Leg) -> int:
    """Return the bytes of a leg, by estimate if they are unknown; at least 1, because a leg always
    has something to read.
    """
    return max(1, (leg.stop - leg.start) * RECORD_BYTES if leg.size is None else leg.size)


def _deal(legs: Sequence[tuple[Stretch, Leg]], share: int) -> Iterator[list[_Piece]]:
    """Yield the legs as tasks of `share` bytes each, in order; the last one has the rest."""
    pieces: list[_Piece] = []
    room = share
    for stretch, leg in legs:
        start, weight = leg.start, weigh_leg(leg)
        while weight > room and leg.stop - start > 1:
            # take at least one offset, or the loop would never end
            stop = min(start + max(1, (leg.stop - start) * room // weight), leg.stop - 1)
            yield [*pieces, _Piece(stretch, start, stop)]
            weight = max(1, weight - room)
            pieces, room, start = [], share, stop
        pieces.append(_Piece(stretch, start, leg.stop))
        room -= weight
        if room <= 0:
            yield pieces
            pieces, room = [], share
    if pieces:
        yield pieces


def _join(pieces: Sequence[_Piece]) -> Iterator[Stretch]:
    """Yield pieces of the same stretch as one, with the gaps between them in its way."""
    first = last = pieces[0]
    for piece in pieces[1:]:
        if piece.stretch is not last.stretch:
            yield first.stretch.cut(first.start, last.stop)
            first = piece
        last = piece
    yield first.stretch.cut(first.start, last.stop)
