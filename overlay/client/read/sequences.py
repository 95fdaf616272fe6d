"""Places of records in the order of all partitions of a stream with a ledger.

A place is the record's sequence, or a number above all sequences if it has none yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlay.arrays import Ints
from overlay.index.ledger.ledger import Ledger
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class LedgerOrder:
    """The ledger of a stream (which offsets of its partitions have which sequences), and how far
    the index topic, which holds it, has been read.
    """

    topic: str
    index: Index

    @property
    def ledger(self) -> Ledger:
        return self.index.ledger


LAST = 1 << 62
"""The place of records without a sequence."""


def find_places(ledger: Ledger, source: TopicPartition, offsets: Ints) -> tuple[Ints, Ints]:
    """Return two arrays, one item for each of `offsets` (rising, of the partition `source`): the
    sequence of its record, 0 for none, and the record's place in the order of all partitions.

    The place is the sequence. Without one it is LAST if the ledger has not come so far yet. If the
    record will never get a sequence, it is the place of the item before it, 0 for the first item.
    Places never fall.
    """
    sequences = ledger.sequence_of(source, offsets)
    missing = np.where(offsets < ledger.end_of(source), 0, LAST)
    return sequences, np.maximum.accumulate(np.where(sequences > 0, sequences, missing))


def find_place(ledger: Ledger, source: TopicPartition, offset: int) -> int:
    """Return the sequence of the first record at or after an offset of the partition `source`; LAST if
    no such record has a sequence yet.
    """
    place = ledger.sequence_from(source, offset)
    return place if place < ledger.next_sequence else LAST
