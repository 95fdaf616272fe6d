"""The merge of several partitions into one order, by the sequences of the stream's ledger.

The rows of a partition come in this order. The ledger says which sequence the next offset of a
partition has, so the next row of each is known before it is read. So rows below the next rows of
all partitions may be returned. The partition that is farthest behind is the one to read, and the
others keep what they have.

Records that were written after the ledger was read have no sequence yet and are returned last. If
the stream is followed, the ledger is followed as well, and records wait for their sequences. They
do not wait for ever, because there may be no service that gives them any.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.errors import SourceChanged
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.scan.columns import wrap

from .offset_ranges import OffsetRange
from .range_reading import RangeReading
from .row_filter import FilteredRows
from .sequences import LAST, LedgerOrder, find_place

PATIENCE_S = 2.0
"""Seconds for which followed records wait for a sequence."""
LOOK_S = 0.2
_OVER = LAST + 1


class Merge:
    """The merge of a stream's partitions into one order, by the sequences of the stream's ledger. `add`
    puts rows of one partition in, `take` returns those that come next in this order.

    `order`: the stream's ledger. `schema`: of the rows. `offset_ranges`: what is read, one for each
    partition.
    """

    def __init__(self, order: LedgerOrder, schema: pa.Schema, offset_ranges: Iterable[OffsetRange]) -> None:
        self._order, self._schema = order, schema
        self._at = {each.source: each.start for each in offset_ranges}
        self._held: dict[TopicPartition, deque[tuple[Ints, pa.RecordBatch]]] = {}
        self._loose: list[pa.RecordBatch] = []
        self._partition_fetch: PartitionFetch | None = None
        self._since: dict[TopicPartition, float] = {}

    @property
    def patience_s(self) -> float | None:
        """Seconds to wait at most before `choose` is called again, while data waits for sequences; else None, no limit."""
        return LOOK_S if self._since else None

    async def follow(self, fetcher: Fetcher) -> None:
        """Have `fetcher` fetch the ledger's topic from where it was read to. From then on each `choose`
        adds the ledger entries that have come, and rows without a sequence wait for one.
        """
        self._partition_fetch = await fetcher.open(self._order.topic, 0, self._order.index.position)

    def choose(self, readings: Sequence[RangeReading]) -> list[RangeReading]:
        """Return the readings whose data is to be taken now: those of the partition that is
        farthest behind in sequences (of all whose next rows have no sequence, if none has one),
        unless their data still waits for sequences.

        Marks the partition fetches of such a partition as urgent, so that they are fetched even if the fetcher is
        full, and those of the others as not urgent. Raises SourceChanged if the ledger's topic is not the one that
        was read.
        """
        self._read_on()
        first = self._find_next()
        for reading in readings:
            source = reading.offset_range.source
            reading.partition_fetch.urgent = find_place(self._order.ledger, source, self._at[source]) == first
        return [reading for reading in readings if reading.partition_fetch.urgent and self._is_sequenced(reading)]

    def _read_on(self) -> None:
        match self._partition_fetch.take() if self._partition_fetch else None:
            case Fetched() as fetched:
                self._order.index.take(self._order.topic, fetched)
            case None:
                pass
            case _:
                raise SourceChanged(f"topic {self._order.topic} is not the one that was read any more. Read anew")

    def _is_sequenced(self, reading: RangeReading) -> bool:
        """Return whether a reading's fetched data may be taken: the ledger has its sequences, or PATIENCE_S
        seconds have passed since the first call that found them missing. Always True if the ledger is not
        followed, or if no records are ready.
        """
        source, ready = reading.offset_range.source, reading.partition_fetch.ready
        if self._partition_fetch is None or not isinstance(ready, Fetched):
            return True
        if self._order.ledger.end_of(source) >= ready.next_offset:
            self._since.pop(source, None)
            return True
        return time.monotonic() - self._since.setdefault(source, time.monotonic()) > PATIENCE_S

    def add(self, source: TopicPartition, part: FilteredRows) -> None:
        """Keep the rows of `part`, which are of the partition `source`, until `take` returns them. Add the parts of a
        partition in offset order; its next rows are at the offset `part.position` or higher.
        """
        for places, batch in zip(part.places, part.batches, strict=True):
            known = int(np.searchsorted(places, LAST)) if self._partition_fetch else places.size
            if known:
                self._held.setdefault(source, deque()).append((places[:known], batch.slice(0, known)))
            if known < places.size:
                self._loose.append(batch.slice(known))
        self._at[source] = part.position

    def keep(self, readings: Iterable[RangeReading]) -> None:
        """Wait no longer for rows of partitions that no reading in `readings` covers. `readings`: those that are not over.
        Rows of such partitions that were added before are still returned.
        """
        self._at = {
            each.offset_range.source: self._at.get(each.offset_range.source, each.offset_range.start)
            for each in readings
        }

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return an iterator over all rows that are kept, in the order of `take`. Call it once nothing more is added."""
        self._at = {}
        return self.take()

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows that can be returned now, and drop them here: first the rows
        whose place (sequences.py) is below that of the next row of every partition, in the order of
        places; then, if the ledger is followed, all rows without a sequence, as they were added.
        """
        limit = self._find_next()
        places, batches = list[Ints](), list[pa.RecordBatch]()
        for held in self._held.values():
            while held and held[0][0][0] < limit:
                own, batch = held.popleft()
                count = int(np.searchsorted(own, limit))
                if count < own.size:
                    held.appendleft((own[count:], batch.slice(count)))
                places.append(own[:count])
                batches.append(batch.slice(0, count))
        if len(batches) == 1:
            yield batches[0]
        elif batches:
            order = np.argsort(np.concatenate(places), kind="stable")
            yield from pa.Table.from_batches(batches, self._schema).take(wrap(order)).combine_chunks().to_batches()
        loose, self._loose = self._loose, []
        yield from loose

    def _find_next(self) -> int:
        """Return the place (the sequence, LAST without one) of the next row of the partition that is
        farthest behind; a number above all places if no partition is read any more.
        """
        places = (find_place(self._order.ledger, source, offset) for source, offset in self._at.items())
        return min(places, default=_OVER)
