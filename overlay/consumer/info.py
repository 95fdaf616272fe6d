"""What can be asked of a consumer: the fields of JetStream's ConsumerInfo, and why it does not
deliver.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from overlay.config.consumer import ConsumerConfig

from .deadlines import NEVER
from .pending import Row
from .state import MachineState
from .table import ASLEEP, PAUSED, Phase
from .window import Pair


class Gate(enum.Enum):
    """What holds back new messages of a consumer: the first reason that applies, in the order of the
    members after OPEN. OPEN: nothing does. DRAINED: there are none to deliver.
    """

    OPEN = "open"
    STATE = "state"  # by its phase: no reader, paused, or deleted
    STALLED = "stalled"  # a flow control request waits for its answer
    PACED = "paced"  # rate_limit_bps or replay
    FULL = "max_ack_pending"
    NO_REQUEST = "no_request"
    DRAINED = "drained"


_IN_ORDER = tuple(gate for gate in Gate if gate is not Gate.OPEN)


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """What JetStream's ConsumerInfo says of a consumer, at one moment. Times are ns since 1970, 0
    for never; `pause_remaining` is ns.

    `gate`: what holds back new messages. `delivered`, `ack_floor`: consumer and stream sequence.
    `num_delayed`: messages that wait for the delay of a nak; they are part of num_ack_pending.
    """

    phase: Phase
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
    """All that can be asked of a machine, as of the time between two events.

    Immutable, so another thread may keep it while the machine moves on. `shut`: the gates that hold
    back new messages, without PACED, which opens with time. `ready_at`: ns since 1970 when the next
    message may go out that the pace or the limit of a step holds back; NEVER if neither holds one
    back. `offered`: messages offered and not delivered. `beyond`: matching messages above those.

    `position`: the last stream sequence that was delivered or found not to match. `read_up_to`: the
    last consumer sequence that the reader group has read. `paused_until`: ns since 1970, 0 without
    a pause. `awaits_reader`: messages are pending, and the reader group has not read all deliveries
    (`interest: group`). `is_removal_said`: the machine has asked for the consumer's removal.
    """

    config: ConsumerConfig
    phase: Phase
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


def take_facts(state: MachineState) -> Facts:
    """Return a copy of what can be asked of a machine now. Only the thread that runs the machine
    may call this; the result may be used in any.
    """
    window = state.window
    shut = {
        Gate.STATE: state.phase is not Phase.AWAKE,
        Gate.STALLED: state.pace.is_stalled,
        Gate.FULL: not window.room,
        Gate.NO_REQUEST: not state.config.is_push and not len(state.waiting),
        Gate.DRAINED: not state.offers.count,
    }
    return Facts(
        config=state.config,
        phase=state.phase,
        shut=frozenset(gate for gate, is_shut in shut.items() if is_shut),
        ready_at=state.ready_at,
        delivered=window.delivered,
        delivered_at=state.delivered_at,
        ack_floor=window.floor,
        acked_at=state.acked_at,
        num_ack_pending=window.pending.count,
        num_redelivered=window.num_redelivered,
        num_waiting=len(state.waiting),
        num_delayed=window.pending.counts[Row.DELAYED],
        offered=state.offers.count,
        beyond=state.beyond,
        position=state.position,
        paused_until=state.paused_until,
        read_up_to=window.read_up_to,
        awaits_reader=window.awaits_reader,
        is_removal_said=state.is_removal_said,
    )


def find_gate(facts: Facts, now: int) -> Gate:
    """Return the first reason why new messages are held back at `now` (ns since 1970); Gate.OPEN if
    none.
    """
    shut = facts.shut | {Gate.PACED} if now < facts.ready_at < NEVER else facts.shut
    return next((gate for gate in _IN_ORDER if gate in shut), Gate.OPEN)


def describe(facts: Facts, now: int) -> ConsumerInfo:
    """Return the consumer's info at `now` (ns since 1970)."""
    is_paused = facts.phase in PAUSED
    return ConsumerInfo(
        phase=facts.phase,
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
        push_bound=facts.config.is_push and facts.phase is not Phase.GONE and facts.phase not in ASLEEP,
        paused=is_paused,
        pause_remaining=max(facts.paused_until - now, 0) if is_paused else 0,
    )
