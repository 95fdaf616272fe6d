"""Which offsets of an output topic have which consumer sequences, to turn a reader's offsets into
consumer sequences.

A group that reads the output commits offsets, but a machine counts its deliveries. Each written
batch leaves one entry: its offsets and its first and last consumer sequence. In a topic of one
partition this is exact to the record. In a topic of several partitions a batch may have only some
of the sequences in between. It counts as read when all of it has been read.

Entries that the group has passed are dropped. If there are many, two neighbours become one entry,
which counts as read when both are. Then ack_wait begins later for some deliveries, never earlier.
What was written before this session began, and not read, is one entry in each partition, which ends
after the last record that existed then.

An output may lose its end in an unclean election. Its readers never pass the lost offsets if the
topic does not grow again. So what was lost counts as read when the group has reached the new end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

MOST_ENTRIES = 4_096


@dataclass(frozen=True, slots=True)
class _Entry:
    """A written batch, or several that were merged: offsets base <= offset < end, and the first and
    last consumer sequence.

    `is_exact`: each offset has one consumer sequence, in order.
    """

    base: int
    end: int
    first: int
    last: int
    is_exact: bool

    def find_unread(self, committed: int) -> int:
        """Return the first consumer sequence of the entry that a reader with this committed offset
        has not passed. `committed` must be below `end`. If the entry is not exact, none of it counts
        as passed.
        """
        return self.first + max(0, committed - self.base) if self.is_exact else self.first

    def is_lost(self, end: int, given: int) -> bool:
        """Return whether a log that ends at the offset `end` has lost the batch or a part of it.

        `given`: the last consumer sequence that was noted before Kafka was asked for the end. False
        for a later batch, which may be above that end.
        """
        return self.end > end and self.last <= given

    def cut(self, end: int) -> _Entry:
        """Return the entry without the offsets from `end` on. They count as read when the rest is."""
        return replace(self, base=min(self.base, end), end=min(self.end, end))


class OutputOffsets:
    """Which offsets of one consumer's output topic have which of its consumer sequences.

    `ends`: at the start of the session, the offset after the last committed record of each
    partition that had any. `read` and `given`: the last consumer sequences that were known as read,
    and given out, before that.
    """

    def __init__(self, ends: Mapping[int, int], read: int, given: int) -> None:
        self._given = given
        earlier = [(p, _Entry(end, end, read + 1, given, False)) for p, end in ends.items()] if given > read else []
        self._entries: dict[int, deque[_Entry]] = {partition: deque([entry]) for partition, entry in earlier}

    def note(self, partition: int, base: int, count: int, first: int, last: int) -> None:
        """Add a written batch: `count` deliveries from offset `base` on, with consumer sequences
        from `first` to `last`.

        If an earlier batch has offsets from `base` on, the partition has lost them: they count as
        read when the rest is.
        """
        entries = self._entries.setdefault(partition, deque())
        if entries and entries[-1].end > base:
            self.cut(partition, base, self._given, base)
            entries = self._entries[partition]
        entries.append(_Entry(base, base + count, first, last, last - first + 1 == count))
        self._given = max(self._given, last)
        if len(entries) > MOST_ENTRIES:
            self._entries[partition] = deque(_halve(entries))

    @property
    def given(self) -> int:
        """The last consumer sequence that was noted, or given out before this session."""
        return self._given

    def has_lost(self, partition: int, end: int, given: int) -> bool:
        """Return whether a partition that ends at this offset has lost batches or a part of one.

        `given`: the property of that name, read before Kafka was asked for the end. Batches noted
        since may be above that end and are not lost.
        """
        return any(entry.is_lost(end, given) for entry in self._entries.get(partition, ()))

    def cut(self, partition: int, end: int, given: int, records_end: int) -> None:
        """Forget the offsets that a partition has lost: their deliveries count as read when those
        before them are.

        `end`, `given`: as in `has_lost`. `records_end`: the offset after the partition's last
        committed record. Only transaction markers and aborted records follow it, which the group's
        offset need never pass.
        """
        entries = self._entries[partition]
        at = max([records_end, *(entry.end for entry in entries if entry.end <= end)])
        self._entries[partition] = deque(entry.cut(at) if entry.is_lost(end, given) else entry for entry in entries)

    def find_read(self, committed: Mapping[int, int]) -> int:
        """Return a consumer sequence up to which a group has read everything. `committed`: its
        offsets by partition; nothing is read in a partition without one.

        The result may be too low, never too high: a batch without all sequences in between counts
        only as a whole. Drops the entries that were read.
        """
        unread = []
        for partition, entries in self._entries.items():
            at = committed.get(partition, -1)
            while entries and entries[0].end <= at:
                entries.popleft()
            if entries:
                unread.append(entries[0].find_unread(at))
        return min(unread, default=self._given + 1) - 1


def _halve(entries: deque[_Entry]) -> list[_Entry]:
    """Return the entries with neighbours merged two by two. With an odd number the last one stays alone."""
    pairs = zip(*[iter(entries)] * 2, strict=False)
    merged = [_Entry(one.base, two.end, one.first, max(one.last, two.last), False) for one, two in pairs]
    return merged + ([entries[-1]] if len(entries) % 2 else [])
