"""Some records of a topic, as plain values: what the reading hands over and everything else here starts from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """One record; headers in the record's order, a name may stand there more than once."""

    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Records from the beginning and the end of each partition. `span`: offsets between them all, gaps included."""

    topic: str
    partitions: int
    span: int = 0
    records: tuple[Record, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader of the sample should know, such as a reading that was cut short."""
