"""The time of a machine's next tick: the earliest of everything that it waits for.

Times are ns since 1970.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .deadlines import NEVER
from .pending import Row
from .table import ASLEEP, PAUSED, State

if TYPE_CHECKING:
    from .machine import Machine


def find_next(machine: Machine) -> int:
    """Return the time of the next Ticked, NEVER if none is needed."""
    if machine.state is State.GONE:
        return NEVER
    pause = machine.paused_until if machine.state in PAUSED else NEVER
    pin = machine.waiting.pin.until if machine.waiting.pin.id else NEVER
    times = (machine.waiting.next_at, machine.ready_at, machine.beat_at, pause, pin, find_removal(machine))
    # a deadline that waits for unread acks needs no timer: the next tick comes with those acks
    deadline = NEVER if find_blocked(machine) < NEVER else machine.window.deadlines.first
    return min(deadline, *times)


def find_removal(machine: Machine) -> int:
    """Return when an unused consumer is to be deleted (inactive_threshold), NEVER while it is in use."""
    threshold, pending = machine.config.inactive_threshold, machine.window.pending
    if not threshold or machine.is_removal_said:
        return NEVER
    if machine.config.is_push:
        is_idle = machine.state in ASLEEP
    else:
        # an ack may still come for messages that wait for one
        is_idle = not len(machine.waiting) and not pending.counts[Row.WAITING] and not pending.counts[Row.DELAYED]
    return machine.active_at + threshold + machine.jitter if is_idle else NEVER


def find_blocked(machine: Machine) -> int:
    """Return the deadline that waits for acks that have not been read yet, as the last tick has
    found; NEVER for none.

    A deadline later than the last tick does not count, because no tick has looked at it yet.
    """
    at, read_up_to = machine.window.deadlines.first, machine.blocked_until
    return at if read_up_to is not None and read_up_to < at <= machine.ticked_at else NEVER
