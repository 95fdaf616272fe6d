"""Messages that were offered to one consumer and are not delivered, by partition.

They give the consumer's positions after every step. A query costs one operation per partition, and
messages leave in runs. This matters because a consumer without acks may hold tens of thousands of
messages, and rounds come every few milliseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints
from overlay.kafka.log_position import TopicPartition


@dataclass(slots=True)
class Undelivered:
    """The messages of one consumer that were offered and are not delivered. `count`: how many."""

    count: int = 0
    _runs: dict[TopicPartition, deque[tuple[Ints, Ints]]] = field(default_factory=dict)

    def add(self, source: TopicPartition, sequences: Ints, offsets: Ints) -> None:
        """Add offered messages: stream sequences and offsets, rising, above all that came from this
        partition before.
        """
        if sequences.size:
            self._runs.setdefault(source, deque()).append((sequences, offsets))
            self.count += sequences.size

    def let_go(self, position: int) -> None:
        """Drop all messages of all partitions up to this stream sequence, itself included: they
        were delivered, or found missing.
        """
        for source, runs in list(self._runs.items()):
            while runs and runs[0][0][-1] <= position:
                self.count -= runs.popleft()[0].size
            if not runs:
                del self._runs[source]
                continue
            sequences, offsets = runs[0]
            if done := int(np.searchsorted(sequences, position, side="right")):
                runs[0] = sequences[done:], offsets[done:]
                self.count -= done

    def has(self, source: TopicPartition) -> bool:
        """Return whether a message of this partition is undelivered."""
        return source in self._runs

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """The offset of the first undelivered message of each partition that has any. A restart
        reads from there.
        """
        return {source: int(runs[0][1][0]) for source, runs in self._runs.items()}
