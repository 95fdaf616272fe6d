"""A position in a partition that can tell whether the log below it is still the log that was read."""

from __future__ import annotations

from dataclasses import dataclass

TopicPartition = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The next offset to read; epoch and crc of the batch before it, -1 when it is not known."""

    position: int
    epoch: int = -1
    crc: int = -1
