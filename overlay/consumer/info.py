"""What a consumer tells of itself: the fields of JetStream's ConsumerInfo, and why it does not deliver if it does not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .deadlines import NEVER
from .pending import Row
from .table import ASLEEP, PAUSED, State
from .window import Pair

if TYPE_CHECKING:
    from .machine import Machine


class Gate(enum.Enum):
    """What holds back new messages; the first of these that does."""

    OPEN = "open"
    STATE = "state"  # nobody reads, paused, deleted
    STALLED = "stalled"  # a flow control request waits for its answer
    PACED = "paced"  # rate_limit_bps or replay
    FULL = "max_ack_pending"
    NO_REQUEST = "no_request"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """Times are ns, 0 for never. `num_delayed`: messages that wait out a delayed nak, part of num_ack_pending."""

    state: State
    gate: Gate
    delivered: Pair
    delivered_at: int
    ack_floor: Pair
    acked_at: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int
    num_delayed: int
    push_bound: bool
    paused: bool
    pause_remaining: int


def find_gate(machine: Machine, now: int) -> Gate:
    """What holds back new messages at `now`, ns."""
    shut = {
        Gate.STATE: machine.state is not State.AWAKE,
        Gate.STALLED: machine.pace.is_stalled,
        Gate.PACED: now < machine.ready_at < NEVER,
        Gate.FULL: not machine.window.room,
        Gate.NO_REQUEST: not machine.config.is_push and not len(machine.waiting),
        Gate.DRAINED: not machine.offers.count,
    }
    return next((gate for gate, is_shut in shut.items() if is_shut), Gate.OPEN)


def describe(machine: Machine, now: int) -> ConsumerInfo:
    """All that a consumer tells of itself at `now`, ns."""
    window, is_paused = machine.window, machine.state in PAUSED
    return ConsumerInfo(
        state=machine.state,
        gate=find_gate(machine, now),
        delivered=window.delivered,
        delivered_at=machine.delivered_at,
        ack_floor=window.floor,
        acked_at=machine.acked_at,
        num_ack_pending=window.pending.count,
        num_redelivered=window.num_redelivered,
        num_waiting=len(machine.waiting),
        num_pending=machine.num_pending,
        num_delayed=window.pending.counts[Row.DELAYED],
        push_bound=machine.config.is_push and machine.state is not State.GONE and machine.state not in ASLEEP,
        paused=is_paused,
        pause_remaining=max(machine.paused_until - now, 0) if is_paused else 0,
    )
