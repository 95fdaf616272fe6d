"""The age of requests by the brokers' clock. No IO.

The brokers put their time on each record of the control topic. A worker whose own clock is ahead
would pass over requests that have just arrived. So a request that is too old by the worker's clock
is compared with the records that the worker reads. The newest of them is a lower bound of the
brokers' time; the monotonic clock says how long ago it was read. If that does not show that the
request is too old, the worker writes a record of its own and reads it back. From then on it knows
the brokers' time, and measures it again after MEASURED_S.

A worker whose clock is behind takes a request for younger than it is. It may carry out a request
whose client no longer waits.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

MEASURED_S = 60.0
"""How long the brokers' time counts as known after it was measured."""
MILLISECOND = 1_000_000


class Age(enum.Enum):
    """Whether a request is too old to be answered: FRESH if its client still waits, PAST if not."""

    FRESH = "fresh"
    PAST = "past"
    UNKNOWN = "unknown"
    """The brokers' time has to be measured."""


@dataclass(slots=True)
class BrokerTime:
    """A lower bound of the brokers' time, from the times that brokers have put on records. By it
    `judge` tells whether the client of a request still waits, also if the worker's clock is ahead.
    There is no bound before the first `note`.

    `now`, everywhere: monotonic seconds. `wall`: the worker's own clock, ns since 1970.
    """

    _difference: float = -math.inf
    """The brokers' time minus the monotonic clock, in ms: at least this."""
    _measured_at: float = -math.inf
    _is_told: bool = False

    def note(self, timestamp: int, now: float) -> None:
        """Raise the lower bound if needed. `timestamp`: the time that a broker has put on a record
        that was just read, ms since 1970. `now`: monotonic seconds.
        """
        self._difference = max(self._difference, timestamp - 1_000 * now)

    def measure(self, now: float) -> None:
        """Forget the lower bound, and count the brokers' time as measured at `now` (monotonic seconds).
        Call it after writing a record to the topic, and `judge` only once that record was read back and
        its time was noted.
        """
        self._difference, self._measured_at, self._is_told = -math.inf, now, False

    def tell_ahead(self, wall: int, now: float) -> float | None:
        """Return by how many seconds `wall` (ns since 1970) is ahead of the brokers' time at `now`
        (monotonic seconds), for a warning: negative if it is behind, infinite while no bound is
        known. Only the first call and the first after each `measure` return it, the others None.
        """
        if self._is_told:
            return None
        self._is_told = True
        return wall / 1e9 - (self._difference / 1_000 + now)

    def judge(self, expires_at: int, wall: int, now: float) -> Age:
        """Return whether the client of a request has stopped waiting by the brokers' time.
        `expires_at`: until when it waits, ns since 1970. `wall`: the worker's own clock, ns since 1970.
        `now`: monotonic seconds.

        FRESH if `expires_at` is after `wall`. Otherwise PAST if the lower bound of the brokers'
        time has reached `expires_at`. If it has not, FRESH if the brokers' time was measured less
        than MEASURED_S ago and a time was noted since, else UNKNOWN.
        """
        if expires_at > wall:
            return Age.FRESH
        if expires_at <= (self._difference + 1_000 * now) * MILLISECOND:
            return Age.PAST
        is_known = self._difference > -math.inf and now - self._measured_at < MEASURED_S
        return Age.FRESH if is_known else Age.UNKNOWN
