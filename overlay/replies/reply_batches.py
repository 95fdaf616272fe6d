"""Batches of answers and pulled messages for a reply topic.

Neighbours for one partition share a batch, so that a thousand pulled messages do not take a
thousand requests. A batch that the topic refuses for its size can be split again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import EncodedBatch, encode_records
from overlay.output.entry import BATCH_BYTES, Entry

Piece = Entry | OutputBatch


@dataclass(frozen=True, slots=True)
class ReplyBatch:
    """A batch for one partition of a reply topic, and the answers or batches of pulled messages
    (pieces) that it was made of.
    """

    partition: int
    batch: EncodedBatch
    pieces: Sequence[Piece]

    @property
    def count(self) -> int:
        """Number of records in the batch."""
        return self.batch.count

    @property
    def reply(self) -> str:
        """The address of the pull request if the batch has only one piece and that is for a pull
        request; empty otherwise.
        """
        (first, *others) = self.pieces
        return first.reply if isinstance(first, OutputBatch) and not others else ""

    def split(self, now: int) -> list[ReplyBatch]:
        """Return two new batches, each with about half of the pieces, or an empty list if there is
        only one piece.

        `now`: ms since 1970.
        """
        middle = len(self.pieces) // 2
        return [_make_reply_batch(part, now) for part in (self.pieces[:middle], self.pieces[middle:])] if middle else []


def count_records(piece: Piece) -> int:
    """Return how many records a piece has."""
    return piece.batch.count if isinstance(piece, OutputBatch) else 1


def pack(pieces: Iterable[Piece], now: int) -> dict[int, deque[ReplyBatch]]:
    """Encode pieces for one topic into batches. Return these by partition, in the order of the
    pieces.

    `now`: ms since 1970.
    """
    by_partition: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_partition.setdefault(piece.partition, []).append(piece)
    return {
        partition: deque(_make_reply_batch(run, now) for run in _group(mine))
        for partition, mine in by_partition.items()
    }


def _group(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield runs of neighbouring pieces that become one batch of at most BATCH_BYTES: either
    entries, or batches that can be joined. A larger piece is a run by itself.
    """
    run: list[Piece] = []
    size = 0
    for piece in pieces:
        if run and not (_may_share(run[-1], piece) and size + piece.size <= BATCH_BYTES):
            yield run
            run, size = [], 0
        run.append(piece)
        size += piece.size
    if run:
        yield run


def _may_share(one: Piece, other: Piece) -> bool:
    if isinstance(one, OutputBatch) and isinstance(other, OutputBatch):
        return one.batch.is_joinable and other.batch.is_joinable
    return isinstance(one, Entry) and isinstance(other, Entry)


def _make_reply_batch(pieces: Sequence[Piece], now: int) -> ReplyBatch:
    records = [piece.record for piece in pieces if isinstance(piece, Entry)]
    if records:
        batch = encode_records(records, now, transactional=False)
    else:
        batch = EncodedBatch.join([piece.batch for piece in pieces if isinstance(piece, OutputBatch)])
    return ReplyBatch(pieces[0].partition, batch, pieces)
