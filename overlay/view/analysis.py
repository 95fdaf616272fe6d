"""Comparison of what a read found with what was predicted: `overlay explain --analyze`. No IO.

A chunk is read in vain if its header said MAYBE and no record of it passed. Some of these chunks
are false positives of a Bloom filter. Others have every term, but in different records, or no value
between a zone's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.index.skip.probes import Answer
from overlay.kafka.log_position import TopicPartition

from .explanation import PartPlan
from .strip import MATCHED, Canvas

COLUMNS = ("topic", "partition", "offset")
"""The columns that batches must have."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a read.

    `scanned`: records that were decoded. `matched`: records that passed. `in_vain`: chunks whose
    headers said MAYBE and in which no record passed. `seconds`: how long the read took.
    """

    scanned: int
    matched: int
    in_vain: int
    seconds: float


class Matches:
    """The records that a read has found: their number (`matched`), which chunks hold any, and a strip
    for each partition (`canvases`). `parts`: the plan of the read. `width`: most cells of a strip.
    """

    def __init__(self, parts: Sequence[PartPlan], width: int) -> None:
        self._parts: Mapping[TopicPartition, PartPlan] = {part.source: part for part in parts}
        self.canvases = {part.source: Canvas(part.first, part.end, width) for part in parts}
        self._found = {part.source: np.zeros(len(part.chunks), np.bool_) for part in parts}
        self.matched = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count and paint the records of a batch that has COLUMNS. A record of a partition that is not
        in the plan is only counted in `matched`.
        """
        self.matched += batch.num_rows
        for source, offsets in _split(batch):
            part = self._parts.get(source)
            if part is None:
                continue  # a partition that was added after the plan was made
            chunks = part.chunks
            rows = np.searchsorted(chunks.first_offset, offsets, side="right") - 1
            rows, inside = rows[rows >= 0], offsets[rows >= 0]
            self._found[source][rows[inside < chunks.next_offset[rows]]] = True
            self.canvases[source].paint(MATCHED, offsets, offsets + 1)

    def count_in_vain(self) -> int:
        """Return the number of chunks whose headers said MAYBE and of which no record was in the
        batches added so far.
        """
        levels = ((part.answers.levels == Answer.MAYBE, self._found[source]) for source, part in self._parts.items())
        return sum(int(np.count_nonzero(maybe & ~found)) for maybe, found in levels)


def _split(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Ints]]:
    """Yield each partition of a batch with the offsets of its records."""
    topics = batch["topic"].dictionary_encode()
    codes, partitions = topics.indices.to_numpy(), batch["partition"].to_numpy()
    offsets = batch["offset"].to_numpy()
    keys = codes.astype(np.int64) << 32 | partitions
    for key in np.unique(keys).tolist():
        yield (topics.dictionary[key >> 32].as_py(), key & 0xFFFFFFFF), offsets[keys == key]
