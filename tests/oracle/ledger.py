"""The slow, obvious twin of overlay/index/{runs,rounds,ledger}.py: a dict with every offset's sequence, record by record.

Written from docs/index.md, Ledger. A run here is a tuple: topic, partition, first offset, count, epoch, crc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import google_crc32c

Source = tuple[str, int]
Place = tuple[Source, int]
Run = tuple[str, int, int, int, int, int]


def write_value(first_sequence: int, runs: Sequence[Run]) -> bytes:
    """The value of a ledger record, by the table."""
    topics = sorted({run[0] for run in runs})
    body = struct.pack("<qHI", first_sequence, len(topics), len(runs))
    for topic in topics:
        body += struct.pack("<H", len(topic.encode())) + topic.encode()
    for topic, *rest in runs:
        body += struct.pack("<Hiqqiq", topics.index(topic), *rest)
    return struct.pack("<BBI", 1, 2, google_crc32c.value(body)) + body


@dataclass
class Twin:
    """What a ledger says, by offset."""

    sequences: dict[Place, int] = field(default_factory=dict)
    ends: dict[Source, int] = field(default_factory=dict)
    log_positions: dict[Source, tuple[int, int]] = field(default_factory=dict)
    next_sequence: int = 1

    def append(self, first_sequence: int, runs: Iterable[Run]) -> str:
        """Take a round in as a whole, or say why not."""
        sequences, ends, log_positions = dict(self.sequences), dict(self.ends), dict(self.log_positions)
        if first_sequence < self.next_sequence:
            return "SEQUENCES"
        sequence, seen = first_sequence, set()
        for topic, partition, first, count, epoch, crc in runs:
            source = topic, partition
            if source in seen:
                return "TWICE"
            if count and first < ends.get(source, 0):
                return "OFFSETS"
            seen.add(source)
            ends[source], log_positions[source] = first + count, (epoch, crc)
            if not count:
                sequences = {place: one for place, one in sequences.items() if place[0] != source or place[1] < first}
            for i in range(count):
                sequences[source, first + i] = sequence
                sequence += 1
        self.sequences, self.ends, self.log_positions = sequences, ends, log_positions
        self.next_sequence = sequence if sequence > first_sequence else first_sequence + 1
        return "NONE"

    def drop(self, starts: Mapping[Source, int]) -> None:
        self.sequences = {
            (source, offset): one
            for (source, offset), one in self.sequences.items()
            if offset >= starts.get(source, 0)
        }  # fmt: skip

    @property
    def first_sequence(self) -> int:
        return min(self.sequences.values(), default=self.next_sequence)

    def locate(self, sequence: int) -> tuple[Source, int, int] | None:
        """Partition, offset and sequence of the first record from a sequence on."""
        found = [(one, *place) for place, one in self.sequences.items() if one >= sequence]
        if not found:
            return None
        one, source, offset = min(found)
        return source, offset, one

    def position_at(self, source: Source, sequence: int) -> int:
        offsets = [offset for (s, offset), one in self.sequences.items() if s == source and one >= sequence]
        return min(offsets, default=self.ends[source])


def allocate(
    next_sequence: int, ends: Mapping[Source, int], taken: Mapping[Source, tuple[int, int]]
) -> dict[Place, int]:
    """The sequences of a round, offset by offset: partitions in order, those that have one passed over."""
    fresh = [
        (source, offset)
        for source, (first, after) in taken.items()
        for offset in range(first, after)
        if offset >= ends.get(source, 0)
    ]
    return {place: next_sequence + i for i, place in enumerate(sorted(fresh))}
