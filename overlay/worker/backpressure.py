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
from .round.pending_estimate import PendingEstimate
from .round.task import RoundResult

FULL = 32_768
"""Undelivered messages with which a consumer is parked. It returns when fewer than a quarter of
that are left."""


@dataclass(slots=True)
class Backpressure:
    """Hands what is read to the machines, and parks consumers with machines that cannot keep up: it
    takes them off their reading cursors, so that nothing is read for them, and puts them back later.
    `wake`: called when a parked consumer may have room again; the session then calls `resume`."""

    cursors: Cursors
    dispatch_loop: DispatchLoop
    pending_estimate: PendingEstimate
    wake: Callable[[], None] = lambda: None

    def hand_over(self, result: RoundResult) -> Moved:
        """Pass a round's offers to the dispatch loop, and park the consumers that have too many
        undelivered messages then. Return what the state must record for both.
        """
        ended = self.pending_estimate.settle(self.cursors.is_at_end)
        begun = self.dispatch_loop.offer(result.offers, {**result.beyond, **ended})
        left = self.park()
        return Moved(left.partitions, left.consumers | begun)

    def note_ends(self) -> None:
        """Tell the machines that were told of records ahead, and whose consumers have reached the last
        stable offsets, that there are none any more. A partition fetch may learn of the log's end only
        after the last record was processed.
        """
        if ended := self.pending_estimate.settle(self.cursors.is_at_end):
            self.dispatch_loop.offer((), ended)

    def park(self) -> Moved:
        """Take each consumer with at least FULL undelivered messages off its cursors. Return what
        the state must record for that; empty if no consumer was parked.

        A consumer that is still given its last messages (last_per_subject) is left where it is.
        """
        full = {consumer for consumer in self.dispatch_loop.find_held(FULL) if not self.cursors.is_alone(consumer)}
        return self.cursors.park(full - self.cursors.parked)

    def resume(self, now: int) -> None:
        """Put each parked consumer with fewer than FULL / 4 undelivered messages on cursors again,
        where it was parked. `now`: ms since 1970."""
        if waiting := self.cursors.parked - self.dispatch_loop.find_held(FULL // 4):
            self.cursors.resume(waiting, now)

    def note_progress(self) -> None:
        """Call `wake` if any consumer is parked. To be called when deliveries may have made room
        for more messages."""
        if self.cursors.parked:
            self.wake()
