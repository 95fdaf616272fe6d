"""What a cluster has to do later, in the order in which it is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf


class Timer:
    """One thing to do. `cancel` makes it nothing."""

    __slots__ = ("act", "due")

    def __init__(self, due: float, act: Callable[[], None]) -> None:
        self.due = due
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self.act = None


class Timers:
    """Timers of one cluster. Those of the same time are due in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._set = 0

    def at(self, due: float, act: Callable[[], None]) -> Timer:
        """Do something at a time, in seconds of the simulation."""
        timer = Timer(due, act)
        self._set += 1
        heapq.heappush(self._heap, (due, self._set, timer))
        return timer

    def next_due(self) -> float:
        """Return when the next timer is due, inf if there is none."""
        heap = self._heap
        while heap and heap[0][2].act is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def pop(self, now: float) -> Timer | None:
        """Return the next timer that is due, None if there is none."""
        if not self._heap or self._heap[0][0] > now:  # most often, and nothing has to be tidied for it
            return None
        return heapq.heappop(self._heap)[2] if self.next_due() <= now else None
