"""The tasks of a plan: its ranges, cut into parts of about the same weight.

A part is an offset range like any other (overlay/client/read/offset_ranges.py): source, first
offset, end, and the route by the chunk index. The spans of the route say what their records have to
be tested for. A fetch range weighs its bytes by the index. Without an index each offset counts as the bytes of a
small record. Fetch ranges are cut wherever the weight is reached, because an offset within a batch is as
good a bound as any other. Fetch ranges that are neighbours in the plan share a task, also across
partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from overlay.client.read.offset_ranges import FetchRange, OffsetRange
from overlay.index.ledger.ledger import Ledger

RECORD_BYTES = 128
"""Bytes that an offset counts for if its size is unknown."""
LEAST_BYTES = 1 << 20
"""Least bytes of a task, so that small topics are not cut into tasks that cost more than they read."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The offsets start <= offset < stop of an offset range, which one task reads."""

    offset_range: OffsetRange
    start: int
    stop: int


class TaskPartition(InputPartition):
    """The ranges of one task, from any number of Kafka partitions. Picklable, as Spark requires.

    In a stream of one partition (`sequenced`), sequences come from offsets. In others they come
    from the `ledger`, which is None if there is none or if no sequences are asked for.
    """

    def __init__(
        self, offset_ranges: tuple[OffsetRange, ...], *, sequenced: bool, ledger: Ledger | None = None
    ) -> None:
        super().__init__(None)
        self.offset_ranges, self.sequenced, self.ledger = offset_ranges, sequenced, ledger


def divide(offset_ranges: Sequence[OffsetRange], task_bytes: int, min_tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges as at least `min_tasks` tasks of at most about `task_bytes`, as far as
    there is enough to read.

    Ranges are in the order of the plan, and so are the tasks. Ranges with nothing to read are
    left out.
    """
    fetch_ranges = [(each, fetch_range) for each in offset_ranges for fetch_range in each.fetch_ranges()]
    total = sum(weigh_fetch_range(fetch_range) for _, fetch_range in fetch_ranges)
    if not total:
        return []
    tasks = max(-(-total // task_bytes), min(min_tasks, -(-total // LEAST_BYTES)))
    return [tuple(_join(pieces)) for pieces in _deal(fetch_ranges, -(-total // tasks))]


def weigh_fetch_range(fetch_range: FetchRange) -> int:
    """Return the bytes of a fetch range, by estimate if they are unknown; at least 1, because a fetch range always
    has something to read.
    """
    return max(
        1, (fetch_range.stop - fetch_range.start) * RECORD_BYTES if fetch_range.size is None else fetch_range.size
    )


def _deal(fetch_ranges: Sequence[tuple[OffsetRange, FetchRange]], share: int) -> Iterator[list[_Piece]]:
    """Yield the fetch ranges as the pieces of one task after another, in order, each of about
    `share` bytes; a range may be cut, and the last task has the rest.
    """
    pieces: list[_Piece] = []
    room = share
    for offset_range, fetch_range in fetch_ranges:
        start, weight = fetch_range.start, weigh_fetch_range(fetch_range)
        while weight > room and fetch_range.stop - start > 1:
            # take at least one offset, or the loop would never end
            stop = min(start + max(1, (fetch_range.stop - start) * room // weight), fetch_range.stop - 1)
            yield [*pieces, _Piece(offset_range, start, stop)]
            weight = max(1, weight - room)
            pieces, room, start = [], share, stop
        pieces.append(_Piece(offset_range, start, fetch_range.stop))
        room -= weight
        if room <= 0:
            yield pieces
            pieces, room = [], share
    if pieces:
        yield pieces


def _join(pieces: Sequence[_Piece]) -> Iterator[OffsetRange]:
    """Yield the offset ranges of a task: neighbouring pieces of one offset range become one, and
    the gaps between them stay in its route.
    """
    first = last = pieces[0]
    for piece in pieces[1:]:
        if piece.offset_range is not last.offset_range:
            yield first.offset_range.cut(first.start, last.stop)
            first = piece
        last = piece
    yield first.offset_range.cut(first.start, last.stop)
