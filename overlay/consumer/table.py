"""The phases of a consumer and the complete table of transitions.

Two things stop deliveries from outside: a deliver subject without a reader, and a pause. Both may
apply at once, and either may end first; that makes four phases. What stops deliveries from inside
(max_ack_pending, flow control, pace, an empty stream) is no phase. It is checked before each
delivery, and `Gate` (info.py) names it.

An event that a phase does not list is refused. Acks and deadlines are processed in every phase but
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
    Undeliverable,
    Unreachable,
    Updated,
)


class Phase(enum.Enum):
    """What stops a consumer's deliveries from outside. ASLEEP: the deliver subject has no reader.
    AWAKE: nothing. PAUSED: a pause with a reader, PAUSED_ASLEEP: without. GONE: the consumer is
    deleted.
    """

    ASLEEP = "asleep"
    AWAKE = "awake"
    PAUSED = "paused"
    PAUSED_ASLEEP = "paused_asleep"
    GONE = "gone"


def _stay(phase: Phase) -> dict[type[Event], Phase]:
    kinds = (
        Offered, Removed, Undeliverable, Expired, Pulled, Unreachable, Acked, RangeAcked, Nakked, Progressed, Termed, Read,
        FlowAnswered, Ticked, Updated,
    )  # fmt: skip
    return dict.fromkeys(kinds, phase)


TRANSITIONS: dict[Phase, dict[type[Event], Phase]] = {
    Phase.ASLEEP: {
        **_stay(Phase.ASLEEP),
        Bound: Phase.AWAKE,
        Unbound: Phase.ASLEEP,
        Paused: Phase.PAUSED_ASLEEP,
        Resumed: Phase.ASLEEP,
        Deleted: Phase.GONE,
    },
    Phase.AWAKE: {
        **_stay(Phase.AWAKE),
        Bound: Phase.AWAKE,
        Unbound: Phase.ASLEEP,
        Paused: Phase.PAUSED,
        Resumed: Phase.AWAKE,
        Deleted: Phase.GONE,
    },
    Phase.PAUSED: {
        **_stay(Phase.PAUSED),
        Bound: Phase.PAUSED,
        Unbound: Phase.PAUSED_ASLEEP,
        Paused: Phase.PAUSED,
        Resumed: Phase.AWAKE,
        Deleted: Phase.GONE,
    },
    Phase.PAUSED_ASLEEP: {
        **_stay(Phase.PAUSED_ASLEEP),
        Bound: Phase.PAUSED,
        Unbound: Phase.PAUSED_ASLEEP,
        Paused: Phase.PAUSED_ASLEEP,
        Resumed: Phase.ASLEEP,
        Deleted: Phase.GONE,
    },
    Phase.GONE: {},
}

PAUSED = (Phase.PAUSED, Phase.PAUSED_ASLEEP)
ASLEEP = (Phase.ASLEEP, Phase.PAUSED_ASLEEP)
