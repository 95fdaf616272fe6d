"""Consumers that cannot keep up with their cursors: they leave them, and come back when they have delivered what they were
offered.

A consumer with a machine may be slower than the reading: its acks are missing, it is paused, or paced. What it was offered
would pile up, or hold up its neighbours. So it leaves its cursors where they stand, has those places as positions of its own
meanwhile, and goes on from there later, on cursors of its own until it has caught up with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.state.shard_state import ConsumerId
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.positions import Place, Positions
from overlay.worker.round.pipeline import Reader

from .dispatch_loop import DispatchLoop

FULL = 32_768
"""Messages offered and not delivered with which a consumer leaves its cursors; it comes back with a quarter of that."""


@dataclass(slots=True)
class Backpressure:
    positions: Positions
    dispatch_loop: DispatchLoop
    readers: Mapping[ConsumerId, Reader]
    returned: set[ConsumerId] = field(default_factory=set)
    """Who has come back since this was last emptied: their position is written differently."""

    def leave(self) -> tuple[set[ConsumerId], list[tuple[Place, Cursor]]]:
        """Those who leave their cursors now, and the cursors that nobody is on any more."""
        full = {consumer for consumer in self.dispatch_loop.find_held(FULL) if not self.positions.is_alone(consumer)}
        full -= self.positions.parked.keys()
        for consumer in full:
            self.positions.park(consumer)
        return full, self.positions.drop_empty() if full else []

    def come_back(self) -> list[tuple[Place, Cursor]]:
        """Have those go on who have room again; the cursors they are on, new ones and others."""
        waiting = self.positions.parked.keys() - self.dispatch_loop.find_held(FULL // 4)
        if not waiting:
            return []
        for consumer in waiting:
            output_topic = self.readers[consumer].output_topic
            ordered = consumer[0] in self.positions.ordered
            self.positions.unpark(
                consumer, careful=ordered and output_topic is not None and not output_topic.transactional
            )
        self.returned |= waiting
        return [(place, cursor) for place, cursor in self.positions.all() if cursor.members & waiting]
