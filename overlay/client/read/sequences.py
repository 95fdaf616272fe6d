"""The places of records in the order of all partitions of a stream with a ledger: their sequences, or behind all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlay.index.ledger.ledger import Ledger
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition
from overlay.scan.columns import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A ledger, and how far its topic has been read."""

    topic: str
    index: Index

    @property
    def ledger(self) -> Ledger:
        return self.index.ledger


LAST = 1 << 62
"""The place of what has no sequence yet."""


def find_places(ledger: Ledger, source: TopicPartition, offsets: Ints) -> tuple[Ints, Ints]:
    """The sequences of some ascending offsets, 0 for none, and their places in the order of all."""
    sequences = ledger.sequence_of(source, offsets)
    missing = np.where(offsets < ledger.end_of(source), 0, LAST)
    return sequences, np.maximum.accumulate(np.where(sequences > 0, sequences, missing))


def find_place(ledger: Ledger, source: TopicPartition, offset: int) -> int:
    """The place of the first record of a partition from an offset on."""
    place = ledger.sequence_from(source, offset)
    return place if place < ledger.next_sequence else LAST
