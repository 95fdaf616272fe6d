"""Single records for a transaction beside its deliveries: events, statuses, and state.

Answers use them as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .batch_builder import OutputBatch
from .encoded_batch import encode_records
from .record import Record

BATCH_BYTES = 900_000
"""Most bytes in a batch of such records: below the default limit of topics, so that no batch is
refused for its size.
"""
_AROUND = 64  # a record's own fields, beside key, value and headers


class Entry(NamedTuple):
    """A record with the topic and partition that it is to be written to."""

    topic: str
    record: Record
    partition: int = 0

    @property
    def size(self) -> int:
        """An upper bound of the record's size in bytes."""
        headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in self.record.headers)
        return len(self.record.key or b"") + len(self.record.value or b"") + headers + _AROUND


def divide(entries: Iterable[Entry]) -> Iterator[tuple[tuple[str, int], list[Record]]]:
    """Group the entries' records by topic and partition, and cut each group into parts of at most
    about BATCH_BYTES. Return for each part its topic and partition, and its records. A larger record
    is a part by itself.

    Records of one partition keep their order.
    """
    packs: dict[tuple[str, int], list[list[Record]]] = {}
    filled: dict[tuple[str, int], int] = {}
    for entry in entries:
        place = entry.topic, entry.partition
        size = filled.get(place, 0) + entry.size
        if place not in packs or size > BATCH_BYTES:
            packs.setdefault(place, []).append([])
            size = entry.size
        packs[place][-1].append(entry.record)
        filled[place] = size
    return ((place, pack) for place, found in packs.items() for pack in found)


def press_entries(entries: Iterable[Entry], now: int) -> list[OutputBatch]:
    """Return the entries' records as transactional batches, in order within each partition. `now`:
    ms since 1970, the time of all records.
    """
    return [OutputBatch(*place, encode_records(pack, now)) for place, pack in divide(entries)]
