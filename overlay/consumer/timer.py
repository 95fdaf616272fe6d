"""The time of a machine's next tick: the earliest of everything that it waits for.

Times are ns since 1970.
"""

from __future__ import annotations

from .deadlines import NEVER
from .pending import Row
from .state import MachineState
from .table import ASLEEP, PAUSED, Phase


def find_next(state: MachineState) -> int:
    """Return the time (ns since 1970) at which the machine next needs a Ticked event, NEVER if it
    needs none.
    """
    if state.phase is Phase.GONE:
        return NEVER
    pause = state.paused_until if state.phase in PAUSED else NEVER
    pin = state.waiting.pin.until if state.waiting.pin.id else NEVER
    times = (state.waiting.next_at, state.ready_at, state.beat_at, pause, pin, find_removal(state))
    # a deadline that waits for unread acks needs no timer: the next tick comes with those acks
    deadline = NEVER if find_blocked(state) < NEVER else state.window.deadlines.first
    return min(deadline, *times)


def find_removal(state: MachineState) -> int:
    """Return the time (ns since 1970) at which an unused consumer is to be deleted
    (inactive_threshold). NEVER while it is in use, if it has no such threshold, or if its removal
    was requested already.

    A push consumer is in use while its deliver subject has a reader. A pull consumer is in use while
    a pull request waits, or while a message waits for its ack or for the delay of a nak.
    """
    threshold, pending = state.config.inactive_threshold, state.window.pending
    if not threshold or state.is_removal_said:
        return NEVER
    if state.config.is_push:
        is_idle = state.phase in ASLEEP
    else:
        # an ack may still come for messages that wait for one
        is_idle = not len(state.waiting) and not pending.counts[Row.WAITING] and not pending.counts[Row.DELAYED]
    return state.active_at + threshold if is_idle else NEVER


def find_blocked(state: MachineState) -> int:
    """Return the earliest deadline (ns since 1970) if the last Ticked came after it and could not
    let it fire, because the acks sent up to the deadline had not all been read. NEVER otherwise.

    A deadline later than the last tick does not count, because no tick has looked at it yet.
    """
    at, read_up_to = state.window.deadlines.first, state.blocked_until
    return at if read_up_to is not None and read_up_to < at <= state.ticked_at else NEVER
