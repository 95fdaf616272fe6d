"""What each task reads: the stretches of a plan cut into parts of about the same weight.

A part is a stretch like any other (overlay/client/read/offset_ranges.py): source, first offset, end, and the way
through it that the chunk index gave, whose spans carry what their records have to be tested for. A leg weighs what
the index says it has in bytes; without an index, as many offsets as bytes of a small record. Legs are cut wherever
the weight is reached, since an offset within a batch is as good a bound as another; legs that are neighbours in the
plan share a task, over partitions too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from overlay.client.read.offset_ranges import Leg, Stretch
from overlay.index.ledger.ledger import Ledger

RECORD_BYTES = 128
"""What an offset weighs where nobody knows better."""
LEAST_BYTES = 1 << 20
"""Of a task, so that small topics are not cut into tasks that cost more than they read."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some offsets of a stretch that a task reads."""

    stretch: Stretch
    start: int
    stop: int


class Part(InputPartition):
    """One task's stretches, of as many partitions of Kafka. Picklable, as Spark wants.

    Sequences are offsets in a stream of one partition (`sequenced`); in others they come from the `ledger`, where there is one
    and somebody asks for them.
    """

    def __init__(self, stretches: tuple[Stretch, ...], *, sequenced: bool, ledger: Ledger | None = None) -> None:
        super().__init__(None)
        self.stretches, self.sequenced, self.ledger = stretches, sequenced, ledger


def divide(stretches: Sequence[Stretch], task_bytes: int, min_tasks: int) -> list[tuple[Stretch, ...]]:
    """The stretches in at least `min_tasks` tasks of at most about `task_bytes`, as far as there is enough to read.

    Stretches are in the order of the plan, and so are the tasks. What has nothing to read is in none.
    """
    legs = [(each, leg) for each in stretches for leg in each.legs()]
    total = sum(weigh_leg(leg) for _, leg in legs)
    if not total:
        return []
    tasks = max(-(-total // task_bytes), min(min_tasks, -(-total // LEAST_BYTES)))
    return [tuple(_join(pieces)) for pieces in _deal(legs, -(-total // tasks))]


def weigh_leg(leg: Leg) -> int:
    """Bytes, at least one an offset is not: a leg that has something to read weighs something."""
    return max(1, (leg.stop - leg.start) * RECORD_BYTES if leg.size is None else leg.size)


def _deal(legs: Sequence[tuple[Stretch, Leg]], share: int) -> Iterator[list[_Piece]]:
    """Legs into tasks of `share` each, in order; the last one has the rest."""
    pieces: list[_Piece] = []
    room = share
    for stretch, leg in legs:
        start, weight = leg.start, weigh_leg(leg)
        while weight > room and leg.stop - start > 1:
            # at least one offset goes, or nothing would ever
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
    """Pieces of the same stretch become one, which has their gaps in its way."""
    first = last = pieces[0]
    for piece in pieces[1:]:
        if piece.stretch is not last.stretch:
            yield first.stretch.cut(first.start, last.stop)
            first = piece
        last = piece
    yield first.stretch.cut(first.start, last.stop)
