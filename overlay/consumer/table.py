"""The states of a consumer and the complete table of transitions.

Two things stop deliveries from outside: a deliver subject without a reader, and a pause. Both may
apply at once, and either may end first; that makes four states. What stops deliveries from inside
(max_ack_pending, flow control, pace, an empty stream) is no state. It is checked before each
delivery, and `Machine.gate` names it.

An event that a state does not list is refused. Acks and deadlines are processed in every state but
GONE.
"""

from __future__ import annotations

import enum

from .events import (
    Acked,
    Bound,
    Deleted,
    Event,
    Expired,
    FlowAnswered,
    Nakked,
    Offered,
    Paused,
    Progressed,
    Pulled,
    RangeAcked,
    Read,
    Removed,
    Resumed,
    Termed,
    Ticked,
    Unbound,
    Unreachable,
    Updated,
)


class State(enum.Enum):
    """A consumer's state. ASLEEP: the deliver subject has no reader. GONE: the consumer is deleted."""

    ASLEEP = "asleep"
    AWAKE = "awake"
    PAUSED = "paused"
    PAUSED_ASLEEP = "paused_asleep"
    GONE = "gone"


def _stay(state: State) -> dict[type[Event], State]:
    kinds = (
        Offered, Removed, Expired, Pulled, Unreachable, Acked, RangeAcked, Nakked, Progressed, Termed, Read, FlowAnswered,
        Ticked, Updated,
    )  # fmt: skip
    return dict.fromkeys(kinds, state)


TRANSITIONS: dict[State, dict[type[Event], State]] = {
    State.ASLEEP: {
        **_stay(State.ASLEEP),
        Bound: State.AWAKE,
        Unbound: State.ASLEEP,
        Paused: State.PAUSED_ASLEEP,
        Resumed: State.ASLEEP,
        Deleted: State.GONE,
    },
    State.AWAKE: {
        **_stay(State.AWAKE),
        Bound: State.AWAKE,
        Unbound: State.ASLEEP,
        Paused: State.PAUSED,
        Resumed: State.AWAKE,
        Deleted: State.GONE,
    },
    State.PAUSED: {
        **_stay(State.PAUSED),
        Bound: State.PAUSED,
        Unbound: State.PAUSED_ASLEEP,
        Paused: State.PAUSED,
        Resumed: State.AWAKE,
        Deleted: State.GONE,
    },
    State.PAUSED_ASLEEP: {
        **_stay(State.PAUSED_ASLEEP),
        Bound: State.PAUSED,
        Unbound: State.PAUSED_ASLEEP,
        Paused: State.PAUSED_ASLEEP,
        Resumed: State.ASLEEP,
        Deleted: State.GONE,
    },
    State.GONE: {},
}

PAUSED = (State.PAUSED, State.PAUSED_ASLEEP)
ASLEEP = (State.ASLEEP, State.PAUSED_ASLEEP)
