"""Whether the events topic takes what is written about requests.

Events are written in the transaction of the change that they tell of. A topic that refuses them (no right to write,
deleted, too small a limit) would cost every change a transaction, and would take apart requests that are decided
together. So while it refuses, its events are left out, and the log says so once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka.errors import MessageSizeTooLargeError

from overlay.errors import DeliveryFailed
from overlay.logs import get_logger
from overlay.output.entry import Entry

log = get_logger(__name__)

REST_S = 60.0
"""Seconds for which a topic that refuses gets no events."""
SMALL = 4 << 10
"""Bytes of an event that the topic has to take. A larger one may be refused by itself, such as the audit of a long
request."""


@dataclass(slots=True)
class EventGate:
    """Lets events through to `topic`, or leaves them out while that refuses. `now`, everywhere: monotonic seconds."""

    topic: str
    _closed_until: float = 0.0
    _failures: int = 0
    """Refusals by the topic since it last took something."""
    _left_out: int = 0
    """Events that it has not got since then."""

    def pass_on(self, entries: Iterable[Entry], now: float) -> list[Entry]:
        """Return the entries to write: all of them, or those for other topics."""
        found = list(entries)
        if now >= self._closed_until:
            return found
        rest = [entry for entry in found if entry.topic != self.topic]
        self._left_out += len(found) - len(rest)
        return rest

    def refuse(self, error: DeliveryFailed, entries: Iterable[Entry], now: float) -> bool:
        """Take note that the topic has refused its part of `entries`. Return whether it gets no events for now; if
        not, the reason may lie in one of them, or may pass."""
        events = [entry for entry in entries if entry.topic == self.topic]
        is_size = error.reason.startswith(MessageSizeTooLargeError.__name__)
        if is_size and any(entry.size > SMALL for entry in events):
            return False
        self._failures += 1
        if not error.final and self._failures == 1:
            return False
        if not self._closed_until:
            log.error("the events topic refuses: events are left out", topic=self.topic, reason=error.reason)
        self._closed_until = now + REST_S
        return True

    def leave_out_large(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries without the events that may be too large for the topic."""
        return [entry for entry in entries if entry.topic != self.topic or entry.size <= SMALL]

    def accept(self, entries: Iterable[Entry]) -> None:
        """Take note that `entries` were written."""
        if not any(entry.topic == self.topic for entry in entries):
            return
        if self._closed_until:
            log.warning("the events topic takes events again", topic=self.topic, left_out=self._left_out)
        self._closed_until, self._failures, self._left_out = 0.0, 0, 0
