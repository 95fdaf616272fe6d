"""The seam between the harness and a measured system: its input, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from overlay.local.flights import SUBJECT
from overlay.subject import Pattern

TEMPLATE = SUBJECT
STREAM_SUBJECTS = (Pattern("flights.>"),)


@dataclass(frozen=True, slots=True)
class Work:
    """Read the `records` records of partition 0 of `topic` and pick the ones whose subject matches `pattern`."""

    bootstrap: str
    topic: str
    records: int
    pattern: str

    def list_wanted(self) -> dict[str, str]:
        """The headers that decide and the values they must have: what a client without subjects has to test."""
        fields = ("origin", "dest", "carrier")
        tokens = self.pattern.split(".")[1:]
        return {name: token for name, token in zip(fields, tokens, strict=False) if token not in ("*", ">")}


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of it. `matched` is None for a side that does not filter; `records` may be fewer than asked for."""

    records: int
    matched: int | None
    seconds: float

    @property
    def rate(self) -> float:
        """Records read per second."""
        return self.records / self.seconds


class Contender(Protocol):
    """A measured system. Its arguments depend on the bench."""

    name: str
    warm: bool
    """Whether it runs in this process, and so does a little work before the first round as all those do."""

    def close(self) -> None: ...


class Side(Contender, Protocol):
    """One way to do the work. Raises PeerUnavailable when it cannot be done that way on this machine."""

    def run(self, work: Work) -> Tally: ...


class Delivery(Contender, Protocol):
    """A side that also writes what it picked to `out_topic`, exactly once."""

    def run(self, work: Work, out_topic: str, expected: int) -> Tally:
        """`expected`: how many records match, for a side that has no other way to know that it is done."""
        ...
