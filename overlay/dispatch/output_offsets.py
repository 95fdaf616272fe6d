"""Where a consumer's deliveries lie in its output topic, so that a reader's offsets can be told as consumer sequences.

A group that reads the output commits offsets; a machine counts its deliveries. Each batch that was written leaves one
entry: its offsets and its first and last consumer sequence. In a topic of one partition that is exact to the record. Where
a topic has several, a batch holds only some of the sequences in between, and counts as read when all of it is.

Entries go when they are passed. When there are many, neighbours become one that counts as read when both are: ack_wait then
begins later for some, never earlier. What was written before this process began is one entry that ends behind the last record
that was there then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MOST_ENTRIES = 4_096


@dataclass(frozen=True, slots=True)
class _Entry:
    """Offsets base <= offset < end and the consumer sequences in them; `is_exact`: one for each offset."""

    base: int
    end: int
    first: int
    last: int
    is_exact: bool

    def find_unread(self, committed: int) -> int:
        """The first sequence that a reader at `committed` has not passed."""
        return self.first + max(0, committed - self.base) if self.is_exact else self.first


class OutputOffsets:
    """One consumer's. `ends`: behind the last record of each partition that had any when this began; `read`, `given`: the last
    consumer sequences known as read, and given out, before that."""

    def __init__(self, ends: Mapping[int, int], read: int, given: int) -> None:
        self._given = given
        earlier = [(p, _Entry(end, end, read + 1, given, False)) for p, end in ends.items()] if given > read else []
        self._entries: dict[int, deque[_Entry]] = {partition: deque([entry]) for partition, entry in earlier}

    def note(self, partition: int, base: int, count: int, first: int, last: int) -> None:
        """A batch has been written: `count` deliveries from the offset `base` on, with these consumer sequences."""
        entries = self._entries.setdefault(partition, deque())
        entries.append(_Entry(base, base + count, first, last, last - first + 1 == count))
        self._given = max(self._given, last)
        if len(entries) > MOST_ENTRIES:
            self._entries[partition] = deque(_halve(entries))

    def find_read(self, committed: Mapping[int, int]) -> int:
        """The consumer sequence up to which a group with these committed offsets has read everything."""
        unread = []
        for partition, entries in self._entries.items():
            at = committed.get(partition, -1)
            while entries and entries[0].end <= at:
                entries.popleft()
            if entries:
                unread.append(entries[0].find_unread(at))
        return min(unread, default=self._given + 1) - 1


def _halve(entries: deque[_Entry]) -> list[_Entry]:
    pairs = zip(*[iter(entries)] * 2, strict=False)
    merged = [_Entry(one.base, two.end, one.first, max(one.last, two.last), False) for one, two in pairs]
    return merged + ([entries[-1]] if len(entries) % 2 else [])
