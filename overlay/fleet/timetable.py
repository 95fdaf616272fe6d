"""When a worker's next status is due, and what it tells. Pure: callers hand in the clock.

A status comes every EVERY_MS, so that a worker from which none comes is soon known to be silent. One comes earlier when
the worker's shards have changed: a picture that waits for the usual one shows the wrong owner for seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

GATHER_S = 0.2
"""Seconds from a change to its status. What changes meanwhile is told with it: shards change their owner together."""
CALM_S = 0.5
"""Least time in seconds between two statuses, however often something changes."""
FULL = 2
"""Of so many statuses one tells of consumers, if nothing has changed."""


class Scope(enum.Enum):
    """What a status tells."""

    WORKER = "worker"
    """The worker and its shards."""
    ALL = "all"
    """Consumers as well (changes.py)."""
    LAST = "last"
    """The worker and its shards, and that it leaves."""


@dataclass(slots=True)
class Timetable:
    """The statuses of one worker: `begin` and `settle` each, and ask `find_pause` in between. Times are monotonic seconds."""

    _due: float = 0.0
    _began: float = 0.0
    _told: Hashable = None
    """The mark of the last status."""
    _is_written: bool = False
    """Whether the last status was written."""
    _number: int = 0

    def find_pause(self, mark: Hashable, now: float) -> float:
        """Return how many seconds there are to the next status, 0 or less if it is due. A mark that differs from that of
        the last status brings it nearer: to GATHER_S from now, and CALM_S after the last one. Not so if that could not
        be written, which a pause is for.

        `mark`: equal to an earlier one if nothing has changed that has to be told at once.
        """
        if self._is_written and mark != self._told:
            self._due = min(self._due, max(now + GATHER_S, self._began + CALM_S))
        return self._due - now

    def begin(self, mark: Hashable, now: float) -> Scope:
        """Note that a status is made now, which tells of `mark`. Return what it has to tell: consumers as well if the mark
        has changed, if the last status was not written, and else in one of FULL.
        """
        is_usual = self._is_written and mark == self._told and self._number % FULL
        self._began, self._told = now, mark
        self._number = self._number + 1 if is_usual else 1
        return Scope.WORKER if is_usual else Scope.ALL

    def settle(self, pause: float, now: float, *, is_written: bool) -> None:
        """Note that the status was written or not, and that the next one is due in `pause` seconds."""
        self._due, self._is_written = now + pause, is_written
