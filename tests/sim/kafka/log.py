"""The log of a partition: segments of batches, and the offsets that a broker keeps about them.

One log stands for all replicas of a partition. What its leader has and its followers have not is above the high watermark.
Segments roll, and reads end with a segment, as in Kafka: retention and the length of answers depend on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .batches import DELETE_HORIZON, LOG_APPEND_TIME, MARKER_KIND_AT, Batch
from .producers import Producers
from .settings import TopicConfig

NO_TIME = -1


class Segment:
    """Batches from `base` on. Times are the broker's, in ms since 1970."""

    __slots__ = ("base", "bases", "batches", "cleaned_ms", "index", "indexed_at", "modified_ms", "rolled_ms", "size")

    def __init__(self, base: int, now_ms: float) -> None:
        self.base = base
        self.batches: list[Batch] = []
        self.bases: list[int] = []
        """The first offset of each batch, to be searched."""
        self.size = 0
        self.rolled_ms = now_ms
        self.modified_ms = now_ms
        self.index: list[tuple[int, int]] = []
        """(position, last offset) about every index.interval.bytes."""
        self.indexed_at = 0
        self.cleaned_ms = 0.0

    def add(self, batch: Batch, interval: int, now_ms: float) -> None:
        if self.size - self.indexed_at > interval:
            self.index.append((self.size, batch.last))
            self.indexed_at = self.size
        batch.position = self.size
        self.batches.append(batch)
        self.bases.append(batch.base)
        self.size += batch.size
        self.modified_ms = now_ms

    @property
    def max_timestamp(self) -> int:
        return max((batch.max_timestamp for batch in self.batches), default=NO_TIME)

    def replace(self, batches: list[Batch], interval: int) -> None:
        """Put other batches in the place of these, as the cleaner does."""
        modified_ms = self.modified_ms
        self.batches, self.bases, self.index = [], [], []
        self.size = self.indexed_at = 0
        for batch in batches:
            self.add(batch, interval, modified_ms)


class Log:
    """The log of one partition."""

    __slots__ = ("cleaned_to", "end", "epochs", "high_watermark", "producers", "segments", "start")

    def __init__(self, now_ms: float) -> None:
        self.segments = [Segment(0, now_ms)]
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.producers = Producers()
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset)."""
        self.cleaned_to = 0
        """Where the next cleaning begins to look for newer values."""

    @property
    def last_stable(self) -> int:
        """The end of what a read_committed consumer gets."""
        for first in self.producers.open.values():
            if first < self.start:
                # records of an open transaction were deleted: Kafka takes the batch that the log begins within
                place = self.find(self.start)
                first = self.start if place is None else self.segments[place[0]].bases[place[1]]
            return min(first, self.high_watermark)
        return self.high_watermark

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def append(self, batch: Batch, epoch: int, config: TopicConfig, now_ms: float) -> None:
        """Put a batch at the end. The caller has checked it, and passes it on to the producers' state."""
        active = self.segments[-1]
        if active.batches and self._is_full(active, batch, config, now_ms):
            active = Segment(self.end, now_ms)
            self.segments.append(active)
        elif not active.batches:
            active.rolled_ms = now_ms
        batch.stamp(self.end, epoch)
        active.add(batch, config.index_interval, now_ms)
        self.end = batch.last + 1

    @staticmethod
    def _is_full(active: Segment, batch: Batch, config: TopicConfig, now_ms: float) -> bool:
        if active.size > config.segment_bytes - batch.size:
            return True
        first = active.batches[0].max_timestamp
        waited = batch.max_timestamp - first if first >= 0 else now_ms - active.rolled_ms
        return waited > config.segment_ms

    def begin_epoch(self, epoch: int) -> None:
        """Note that another leader epoch begins at the end. One in which nothing was written is forgotten."""
        while self.epochs and self.epochs[-1][1] >= self.end:
            self.epochs.pop()
        self.epochs.append((epoch, self.end))

    def roll(self, now_ms: float) -> None:
        """Begin a new segment, unless the last one is empty."""
        if self.segments[-1].batches:
            self.segments.append(Segment(self.end, now_ms))

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return the segment and the batch that hold an offset or the next one after it, None at the end."""
        at = max(bisect_right(self.segments, offset, key=_base) - 1, 0)
        for i in range(at, len(self.segments)):
            segment = self.segments[i]
            j = max(bisect_right(segment.bases, offset) - 1, 0)
            while j < len(segment.batches):
                if segment.batches[j].last >= offset:
                    return i, j
                j += 1
        return None

    def read(self, offset: int, end: int, max_bytes: int, *, at_least_one: bool) -> tuple[bytes, int]:
        """Return bytes of one segment from the batch of an offset on, and an offset that they do not reach.

        That offset is -1 if the first batch does not fit into some bytes.

        `end` is the first offset that must not be read. The last batch may be cut off, as in an answer of Kafka. With
        `at_least_one` the first batch comes whole; without it, it comes whole or not at all.
        """
        place = self.find(offset) if offset < end else None
        if place is None:
            return b"", offset
        i, j = place
        segment = self.segments[i]
        first = segment.batches[j]
        if first.base >= end:
            return b"", offset
        if max_bytes < first.size:
            if not at_least_one:
                # without room at all Kafka looks for aborted transactions, with too little it leaves them out
                return b"", -1 if max_bytes > 0 else self._find_bound(i, first.position)
            max_bytes = first.size
        parts, taken = [], 0
        batches = segment.batches
        while j < len(batches) and taken < max_bytes:
            batch = batches[j]
            if batch.base >= end:
                break
            parts.append(batch.data)
            taken += batch.size
            j += 1
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if taken > max_bytes:
            data, taken = data[:max_bytes], max_bytes
        return data, self._find_bound(i, first.position + taken)

    def _find_bound(self, i: int, position: int) -> int:
        """Return the offset that Kafka's sparse index gives for the end of what was read."""
        segment = self.segments[i]
        at = bisect_left(segment.index, (position, -1))
        if at < len(segment.index):
            return segment.index[at][1]
        return self.segments[i + 1].base if i + 1 < len(self.segments) else self.end

    def count_bytes(self, offset: int, end: int, enough: int) -> int:
        """Return how many bytes there are from an offset to an end; less than all once it is enough."""
        place = self.find(offset) if offset < end else None
        if place is None:
            return 0
        total = 0
        i, j = place
        for segment in self.segments[i:]:
            for batch in segment.batches[j:]:
                if batch.base >= end or total >= enough:
                    return total
                total += batch.size
            j = 0
        return total

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which an offset was written, -1 if that is not known."""
        at = bisect_right(self.epochs, offset, key=lambda entry: entry[1]) - 1
        return self.epochs[at][0] if at >= 0 else -1

    def find_time(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record at or after a time, below `end`."""
        for segment in self.segments:
            for batch in segment.batches:
                if batch.max_timestamp < timestamp or batch.last < self.start:
                    continue
                if batch.base >= end:
                    return None
                for record in read_times(batch):
                    if record[0] >= timestamp and record[1] >= self.start:
                        return record if record[1] < end else None
        return None

    def find_newest(self, end: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the record with the largest timestamp, the first of several.

        None if that record is not below `end`: Kafka does not look for another one then.
        """
        best: Batch | None = None
        for segment in self.segments:
            for batch in segment.batches:
                if best is None or batch.max_timestamp > best.max_timestamp:
                    best = batch
        if best is None:
            return None
        found = next((one for one in read_times(best) if one[0] == best.max_timestamp), None)
        return found if found is not None and found[1] < end else None

    def advance_start(self, offset: int) -> None:
        """Delete what is below an offset, by whole segments as far as there are any; the rest is not read any more."""
        self.start = max(self.start, offset)
        while len(self.segments) > 1 and self.segments[1].base <= self.start:
            del self.segments[0]
        first = self.segments[0].base
        aborted = self.producers.aborted
        if aborted and aborted[0].last < first:
            self.producers.aborted = [one for one in aborted if one.last >= first]
        self._cut_epochs_before()

    def _cut_epochs_before(self) -> None:
        at = bisect_right(self.epochs, self.start, key=lambda entry: entry[1]) - 1
        if at > 0:
            del self.epochs[:at]
        if self.epochs and self.epochs[0][1] < self.start:
            self.epochs[0] = self.epochs[0][0], self.start

    def truncate(self, offset: int, config: TopicConfig, now_ms: float) -> None:
        """Lose everything from the batch on that holds an offset. The producers' state is what the rest says."""
        place = self.find(max(offset, self.start))
        if place is None:
            return
        i, j = place
        segment = self.segments[i]
        self.end = max(segment.bases[j], self.start)
        del self.segments[i + 1 :]
        segment.replace(segment.batches[:j], config.index_interval)
        self.high_watermark = min(self.high_watermark, self.end)
        self.cleaned_to = min(self.cleaned_to, self.end)
        self.epochs = [entry for entry in self.epochs if entry[1] < self.end]
        self._replay_producers(now_ms)

    def _replay_producers(self, now_ms: float) -> None:
        self.producers = Producers()
        for segment in self.segments:
            for batch in segment.batches:
                if batch.is_control:
                    self.producers.end(batch, batch.data[MARKER_KIND_AT], now_ms)
                elif batch.producer >= 0:
                    self.producers.note(batch, now_ms)


def _base(segment: Segment) -> int:
    return segment.base


def read_times(batch: Batch) -> list[tuple[int, int]]:
    """Return (timestamp, offset) of each record of a batch."""
    if batch.count == 1 and not batch.attributes & DELETE_HORIZON:
        return [(batch.max_timestamp, batch.last)]
    if batch.attributes & LOG_APPEND_TIME:
        return [(batch.max_timestamp, batch.base + i) for i in range(batch.last - batch.base + 1)]
    return [(record.timestamp, record.offset) for record in batch.records()]
