"""Backpressure: consumers that cannot keep up with their cursors leave them, and return once most
of what they were offered is delivered.

A consumer with a machine may be slower than the reading: its acks are missing, or it is paused or
rate-limited. What it was offered would pile up, or hold up the other consumers of the cursor. So it
is parked: it leaves its cursors and keeps their positions as its own. Later it reads on from there,
on cursors of its own until it has caught up with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.positions import Positions
from overlay.worker.round.task import Reader

from .dispatch_loop import DispatchLoop

FULL = 32_768
"""Undelivered messages with which a consumer is parked. It returns when fewer than a quarter of
that are left."""


@dataclass(slots=True)
class Backpressure:
    """Parks and unparks the consumers of a session."""

    positions: Positions
    dispatch_loop: DispatchLoop
    readers: Mapping[ConsumerId, Reader]
    returned: set[ConsumerId] = field(default_factory=set)
    """Consumers that have returned since the caller last emptied this; the state must record their
    positions differently."""

    def leave(self) -> tuple[set[ConsumerId], list[tuple[StreamPartition, Cursor]]]:
        """Park the consumers that are full. Return them, and the cursors that were removed since no
        consumer is left on them."""
        full = {consumer for consumer in self.dispatch_loop.find_held(FULL) if not self.positions.is_alone(consumer)}
        full -= self.positions.parked.keys()
        for consumer in full:
            self.positions.park(consumer)
        return full, self.positions.drop_empty() if full else []

    def come_back(self) -> list[tuple[StreamPartition, Cursor]]:
        """Unpark the consumers that have room again. Return all cursors they are on, new or
        existing."""
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
