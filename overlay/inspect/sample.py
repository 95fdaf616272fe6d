"""Records of a topic as plain values, the input of the whole inspection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampledRecord:
    """A record. `headers` are in the record's order; a name may occur more than once."""

    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicSample:
    """Records from the beginning and the end of each partition.

    `partitions`: how many the topic has. `span`: number of offsets in all partitions, gaps included. `records`:
    sorted by partition, then by offset.
    """

    topic: str
    partitions: int
    span: int = 0
    records: tuple[SampledRecord, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as a read that was cut short."""

    def name_place(self, record: SampledRecord) -> str:
        """Return where a record of the sample is, such as `orders-0@146`."""
        return f"{self.topic}-{record.partition}@{record.offset}"
