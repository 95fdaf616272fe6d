"""The slow, obvious twin of overlay/consumer/lineage.py and settling.py: every delivery of a consumer's life, with what was
committed of it, and what acks settle.

A life ends when the consumer is deleted. Within a life a kill takes back what was not committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

Name = tuple[str, int]
"""One delivery: its incarnation and its consumer sequence."""


@dataclass(slots=True)
class Facts:
    """`given`: the message of each delivery; `first`: the consumer sequence of each message's first one. `floor`: the consumer
    and stream sequence up to which `ack_policy: all` hears nothing any more."""

    given: dict[Name, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    floor: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class History:
    """`lost`: deliveries that were never committed. `counts_lost`: whether they count by their stream sequences."""

    counts_lost: bool = False
    now: Facts = field(default_factory=Facts)
    lost: dict[Name, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    """Messages that the application has acked in this life, by any of their deliveries."""
    _committed: Facts = field(default_factory=Facts)

    def deliver(self, incarnation: str, consumer_seq: int, message: int) -> None:
        self.now.given[incarnation, consumer_seq] = message
        self.now.first.setdefault(message, consumer_seq)
        self.now.pending.add(message)

    def ack(self, names: Iterable[Name], *, by_range: bool = False) -> None:
        """Settle the messages of these deliveries, of which others than this life's count for nothing."""
        for name in names:
            if name in self.now.given:
                self.now.pending.discard(self.now.given[name])
            elif self.counts_lost and not by_range and name in self.lost and self._find_end(name[0]):
                self.now.pending.discard(self.lost[name])

    def ack_up_to(self, names: Iterable[Name]) -> None:
        """The same with `ack_policy: all`, for acks that are heard at once: the highest is heard first."""
        now = self.now
        meant = {pair for name in names if (pair := self._find_meant(name))}
        for message, consumer_seq in sorted(meant, key=lambda pair: (-pair[0], pair[1])):
            if consumer_seq > now.floor[0] and message > now.floor[1]:
                covered = {each for each in now.pending if each <= message}
                now.pending -= covered
                if message in covered:
                    now.floor = consumer_seq, message

    def commit(self) -> None:
        self._committed = deepcopy(self.now)

    def kill(self) -> None:
        self.lost |= {name: message for name, message in self.now.given.items() if name not in self._committed.given}
        self.now = deepcopy(self._committed)

    def _find_end(self, incarnation: str) -> int:
        """The last delivery that an incarnation has committed."""
        return max((consumer_seq for by, consumer_seq in self.now.given if by == incarnation), default=0)

    def _find_meant(self, name: Name) -> tuple[int, int] | None:
        """The message up to which an ack settles, and the consumer sequence that it counts by."""
        if name in self.now.given:
            return self.now.given[name], name[1]
        end = self._find_end(name[0])
        known = {message for message in self.now.pending if self.now.first[message] <= end}
        covered = {message for message in known if name in self.lost and message <= self.lost[name]}
        if not covered:
            return None
        last = max(covered)
        return last, end if last == max(known) else self.now.first[last]
