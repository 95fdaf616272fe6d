"""What a consumer tells of itself: the fields of JetStream's ConsumerInfo, and why it does not deliver if it does not."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from overlay.config.consumer import ConsumerConfig

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


_IN_ORDER = tuple(gate for gate in Gate if gate is not Gate.OPEN)


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


class Facts(NamedTuple):
    """All that may be asked of a machine, as it is between two events. Immutable: another thread may hold it while the machine
    moves.

    `shut`: gates that hold back new messages, without those of the pace, which end with time. `ready_at`: when the pace lets
    the next message go, ns. `offered`: messages that were offered and not delivered; `beyond`: those that match behind them.
    """

    config: ConsumerConfig
    state: State
    shut: frozenset[Gate]
    ready_at: int
    delivered: Pair
    delivered_at: int
    ack_floor: Pair
    acked_at: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_delayed: int
    offered: int
    beyond: int
    position: int
    paused_until: int
    read_up_to: int
    awaits_reader: bool
    is_removal_said: bool


def take_facts(machine: Machine) -> Facts:
    """Return what a machine is now. Only the thread that moves the machine may call this."""
    window = machine.window
    shut = {
        Gate.STATE: machine.state is not State.AWAKE,
        Gate.STALLED: machine.pace.is_stalled,
        Gate.FULL: not window.room,
        Gate.NO_REQUEST: not machine.config.is_push and not len(machine.waiting),
        Gate.DRAINED: not machine.offers.count,
    }
    return Facts(
        config=machine.config,
        state=machine.state,
        shut=frozenset(gate for gate, is_shut in shut.items() if is_shut),
        ready_at=machine.ready_at,
        delivered=window.delivered,
        delivered_at=machine.delivered_at,
        ack_floor=window.floor,
        acked_at=machine.acked_at,
        num_ack_pending=window.pending.count,
        num_redelivered=window.num_redelivered,
        num_waiting=len(machine.waiting),
        num_delayed=window.pending.counts[Row.DELAYED],
        offered=machine.offers.count,
        beyond=machine.beyond,
        position=machine.position,
        paused_until=machine.paused_until,
        read_up_to=window.read_up_to,
        awaits_reader=window.awaits_reader,
        is_removal_said=machine.is_removal_said,
    )


def find_gate(facts: Facts, now: int) -> Gate:
    """What holds back new messages at `now`, ns."""
    shut = facts.shut | {Gate.PACED} if now < facts.ready_at < NEVER else facts.shut
    return next((gate for gate in _IN_ORDER if gate in shut), Gate.OPEN)


def describe(facts: Facts, now: int) -> ConsumerInfo:
    """All that a consumer tells of itself at `now`, ns."""
    is_paused = facts.state in PAUSED
    return ConsumerInfo(
        state=facts.state,
        gate=find_gate(facts, now),
        delivered=facts.delivered,
        delivered_at=facts.delivered_at,
        ack_floor=facts.ack_floor,
        acked_at=facts.acked_at,
        num_ack_pending=facts.num_ack_pending,
        num_redelivered=facts.num_redelivered,
        num_waiting=facts.num_waiting,
        num_pending=facts.offered + facts.beyond,
        num_delayed=facts.num_delayed,
        push_bound=facts.config.is_push and facts.state is not State.GONE and facts.state not in ASLEEP,
        paused=is_paused,
        pause_remaining=max(facts.paused_until - now, 0) if is_paused else 0,
    )
