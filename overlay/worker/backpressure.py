"""Backpressure: consumers that cannot keep up with their cursors leave them, and return once most
of what they were offered is delivered.

A consumer with a machine may be slower than the reading: its acks are missing, or it is paused or
rate-limited. What it was offered would pile up, or hold up the other consumers of the cursor. So it
is parked: it leaves its cursors and keeps their positions as its own. Later it reads on from there,
on cursors of its own until it has caught up with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .cursors.cursors import Cursors, Moved
from .dispatch_loop import DispatchLoop

FULL = 32_768
"""Undelivered messages with which a consumer is parked. It returns when fewer than a quarter of
that are left."""


@dataclass(slots=True)
class Backpressure:
    """Decides which consumers of a session are parked and which resume. `wake`: has `resume` called
    soon."""

    cursors: Cursors
    dispatch_loop: DispatchLoop
    wake: Callable[[], None] = lambda: None

    def park(self) -> Moved:
        """Park the consumers that are full."""
        full = {consumer for consumer in self.dispatch_loop.find_held(FULL) if not self.cursors.is_alone(consumer)}
        return self.cursors.park(full - self.cursors.parked)

    def resume(self, now: int) -> None:
        """Put parked consumers that have room again on cursors. `now`: ms since 1970."""
        if waiting := self.cursors.parked - self.dispatch_loop.find_held(FULL // 4):
            self.cursors.resume(waiting, now)

    def note_progress(self) -> None:
        """Note a delivery: a parked consumer may have room again."""
        if self.cursors.parked:
            self.wake()
