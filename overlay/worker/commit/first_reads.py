"""Which records of a round were read for the first time, and which once more.

Consumers that catch up read records that others have read before. Counters of what a stream holds
would count these again with each of them. So records above the foremost offset that this worker has
read in a partition count as read first, and those below as read again. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from overlay.state.shard_state import StreamPartition
from overlay.worker.round.task import SliceRead


@dataclass(slots=True)
class ReadCounts:
    """Counts of a stream since the worker has started.

    `first`: records that were read for the first time, and `again`: once more. A slice is divided
    between the two by its offsets. `unaddressed`: by reason, how many of the records that were read
    for the first time have no subject. `example`: place and reason of one such record, from the
    last slice that had any, such as `orders-0@146: missing`; "" if there was none.
    """

    first: int = 0
    again: int = 0
    unaddressed: Counter[str] = field(default_factory=Counter)
    example: str = ""


@dataclass(slots=True)
class FirstReads:
    """How far each partition was read by this worker, whichever shard did it, and what was counted.

    A slice that begins below the foremost offset read so far and ends above it counts as read first
    and again in proportion to its offsets. That happens where shards read the same records side by
    side.
    """

    streams: dict[str, ReadCounts] = field(default_factory=dict)
    _ends: dict[StreamPartition, int] = field(default_factory=dict)

    def take(self, read: SliceRead) -> ReadCounts:
        """Count a slice, and return what it adds to the counts of its stream."""
        stream, (topic, partition) = read.partition
        reached = self._ends.get(read.partition, read.first)
        self._ends[read.partition] = max(reached, read.end)
        new = max(0, read.end - max(reached, read.first)) / max(1, read.end - read.first)
        first = round(read.records * new)
        added = ReadCounts(first, read.records - first)
        added.unaddressed.update({reason: round(count * new) for reason, count in read.unaddressed.items()})
        if read.example is not None and new:
            added.example = f"{topic}-{partition}@{read.example[0]}: {read.example[1]}"
        known = self.streams.setdefault(stream, ReadCounts())
        known.first += added.first
        known.again += added.again
        known.unaddressed.update(added.unaddressed)
        known.example = added.example or known.example
        return added
