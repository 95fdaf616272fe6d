"""What was offered to one consumer and is not delivered: by partition, so that its positions are at hand after every step.

Each look costs as many steps as there are partitions, and each message that goes one step for its run: a consumer whose
acks are missing may be held at tens of thousands, and rounds come every few milliseconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints
from overlay.kafka.log_position import TopicPartition


@dataclass(slots=True)
class Undelivered:
    """`count`: messages."""

    count: int = 0
    _runs: dict[TopicPartition, deque[tuple[Ints, Ints]]] = field(default_factory=dict)

    def add(self, source: TopicPartition, sequences: Ints, offsets: Ints) -> None:
        """More has been offered: stream sequences and offsets, rising, above all that came from this partition."""
        if sequences.size:
            self._runs.setdefault(source, deque()).append((sequences, offsets))
            self.count += sequences.size

    def let_go(self, position: int) -> None:
        """All up to this stream sequence is delivered, or was found gone."""
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

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """Where to begin again in the partitions that something is held of."""
        return {source: int(runs[0][1][0]) for source, runs in self._runs.items()}
