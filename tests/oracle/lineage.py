"""The slow, obvious twin of overlay/consumer/lineage.py: every delivery of a consumer's life, with what was committed of it.

A life ends when the consumer is deleted. Within a life a kill takes back what was not committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class History:
    """`given`: the message of each delivery, by incarnation and consumer sequence."""

    given: dict[tuple[str, int], int] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    """Messages that the application has acked in this life, by any of their deliveries."""
    _committed: tuple[dict[tuple[str, int], int], set[int]] = field(default_factory=lambda: ({}, set()))

    def deliver(self, incarnation: str, consumer_seq: int, message: int) -> None:
        self.given[incarnation, consumer_seq] = message
        self.pending.add(message)

    def ack(self, incarnation: str, consumer_seqs: Iterable[int]) -> None:
        """Settle the messages of these deliveries, of which others than this history's count for nothing."""
        self.pending -= {self.given[incarnation, seq] for seq in consumer_seqs if (incarnation, seq) in self.given}

    def commit(self) -> None:
        self._committed = dict(self.given), set(self.pending)

    def kill(self) -> None:
        given, pending = self._committed
        self.given, self.pending = dict(given), set(pending)
