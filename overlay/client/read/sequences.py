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
    """A ledger, and how far its topic has been read."""

    topic: str
    index: Index

    @property
    def ledger(self) -> Ledger:
        return self.index.ledger


LAST = 1 << 62
"""The place of records without a sequence."""


def find_places(ledger: Ledger, source: TopicPartition, offsets: Ints) -> tuple[Ints, Ints]:
    """Return the sequences of rising offsets, 0 for none, and their places in the order of all
    partitions.
    """
    sequences = ledger.sequence_of(source, offsets)
    missing = np.where(offsets < ledger.end_of(source), 0, LAST)
    return sequences, np.maximum.accumulate(np.where(sequences > 0, sequences, missing))


def find_place(ledger: Ledger, source: TopicPartition, offset: int) -> int:
    """Return the place of the first record of a partition at or after an offset."""
    place = ledger.sequence_from(source, offset)
    return place if place < ledger.next_sequence else LAST
