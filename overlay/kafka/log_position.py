"""Positions in a partition that can detect whether the log below them has changed."""

from __future__ import annotations

from dataclasses import dataclass

TopicPartition = tuple[str, int]
"""Topic name and partition number."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The next offset to read, with the leader epoch and CRC of the batch before it (each -1 if
    unknown).
    """

    position: int
    epoch: int = -1
    crc: int = -1
