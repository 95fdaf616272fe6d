"""Which offsets of an output topic have which consumer sequences, to turn a reader's offsets into
consumer sequences.

A group that reads the output commits offsets, but a machine counts its deliveries. Each written
batch leaves one entry: its offsets and its first and last consumer sequence. In a topic of one
partition this is exact to the record. In a topic of several partitions a batch has only some of the
sequences in between. It counts as read when all of it has been read.

Entries that the group has passed are dropped. If there are many, two neighbours become one entry,
which counts as read when both are. Then ack_wait begins later for some deliveries, never earlier.
Everything written before this process began is one entry, which ends after the last record that
existed then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MOST_ENTRIES = 4_096


@dataclass(frozen=True, slots=True)
class _Entry:
    """A batch: offsets base <= offset < end, and its first and last consumer sequence.

    `is_exact`: each offset has one consumer sequence, in order.
    """

    base: int
    end: int
    first: int
    last: int
    is_exact: bool

    def find_unread(self, committed: int) -> int:
        """Return the first consumer sequence that a reader with this committed offset has not passed."""
        return self.first + max(0, committed - self.base) if self.is_exact else self.first


class OutputOffsets:
    """The entries of one consumer.

    `ends`: at the start of this process, the offset after the last record of each partition that
    had any. `read` and `given`: the last consumer sequences that were known as read, and given out,
    before that.
    """

    def __init__(self, ends: Mapping[int, int], read: int, given: int) -> None:
        self._given = given
        earlier = [(p, _Entry(end, end, read + 1, given, False)) for p, end in ends.items()] if given > read else []
        self._entries: dict[int, deque[_Entry]] = {partition: deque([entry]) for partition, entry in earlier}

    def note(self, partition: int, base: int, count: int, first: int, last: int) -> None:
        """Add a written batch: `count` deliveries from offset `base` on, with the consumer
        sequences `first` to `last`.
        """
        entries = self._entries.setdefault(partition, deque())
        entries.append(_Entry(base, base + count, first, last, last - first + 1 == count))
        self._given = max(self._given, last)
        if len(entries) > MOST_ENTRIES:
            self._entries[partition] = deque(_halve(entries))

    def find_read(self, committed: Mapping[int, int]) -> int:
        """Return the consumer sequence up to which a group with these committed offsets has read
        everything.
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
    """Return the entries with each two neighbours merged."""
    pairs = zip(*[iter(entries)] * 2, strict=False)
    merged = [_Entry(one.base, two.end, one.first, max(one.last, two.last), False) for one, two in pairs]
    return merged + ([entries[-1]] if len(entries) % 2 else [])
