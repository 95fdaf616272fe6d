"""The order of an ordered consumer: what is the next good message, and when to begin anew behind the last one (ADR-17).

An ordered consumer acks nothing and forgets nothing: it knows the stream sequence and the consumer sequence of the last
message that was good, and takes a message only if its consumer sequence is the next one. A server counts consumer sequences
without holes, so a hole says that something was lost on the way. Then, or when two heartbeats were missed (the consumer may
be gone with the service that had it), this consumer is given up and another one is made that begins behind the last good
message. What still comes from the one before is dropped.

A heartbeat tells how far the consumer has come. Where its count is ours, everything up to its stream sequence has been dealt
with, and the next one may begin behind that: so a consumer of rare messages does not begin at the old policy again, and one
that was to deliver only new messages does not miss those that came while it was made anew.

Where the count of a heartbeat is higher than ours, messages were lost. Where a message is counted lower, it was handed out
before (an output that is written at least once may repeat itself), and is dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlay.client.read.question import BadQuestion
from overlay.config.consumer import AckPolicy
from overlay.units import format_duration

HEARTBEAT = 5_000_000_000
LEAST_HEARTBEAT = 100_000_000
ACK_WAIT = 22 * 3_600_000_000_000
MISSED = 2
"""Heartbeats."""


FORBIDDEN = ("durable_name", "deliver_subject", "deliver_group", "num_replicas", "name", "bind")
"""What an ordered consumer may not be given (ADR-17)."""


class BadOrder(BadQuestion):
    """A config that an ordered consumer cannot have (ADR-17, "Consumer Configuration Checks"). The caller acts."""


class Verdict(enum.Enum):
    TAKE = "take"
    DROP = "drop"
    RENEW = "renew"
    """This consumer is over; make another one."""


class Reason(enum.StrEnum):
    """Why a consumer was given up."""

    GAP = "gap"
    SILENCE = "silence"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class OrderState:
    """What users may look at. Sequences are those of the last good message, 0 before the first.

    `renewals`: how often the consumer was made anew, last for `reason`.
    """

    stream_seq: int
    consumer_seq: int
    renewals: int
    reason: Reason | None


class Order:
    """Fed with what comes, in its order. Begins without a consumer: `opened` says that there is one."""

    def __init__(self) -> None:
        self._stream_seq = self._consumer_seq = 0
        self._passed = 0
        self._renewals = 0
        self._reason: Reason | None = None
        self._is_open = False

    @property
    def state(self) -> OrderState:
        return OrderState(self._stream_seq, self._consumer_seq, self._renewals, self._reason)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def begin(self) -> int | None:
        """The stream sequence that the next consumer begins at; None as it was asked for."""
        return max(self._stream_seq, self._passed) + 1 if self._stream_seq or self._passed else None

    def opened(self) -> None:
        """A consumer has been made; it counts from 1."""
        self._is_open, self._consumer_seq = True, 0

    def came(self, stream_seq: int, consumer_seq: int) -> Verdict:
        """A message of the consumer that was made last."""
        if not self._is_open or consumer_seq <= self._consumer_seq:
            return Verdict.DROP
        if consumer_seq > self._consumer_seq + 1 or stream_seq <= self._stream_seq:
            return self._give_up(Reason.GAP)
        self._stream_seq, self._consumer_seq = stream_seq, consumer_seq
        return Verdict.TAKE

    def beat(self, last_stream: int, last_consumer: int) -> Verdict:
        """A heartbeat, in order among the messages."""
        if not self._is_open or last_consumer < self._consumer_seq:
            return Verdict.DROP
        if last_consumer > self._consumer_seq:
            return self._give_up(Reason.GAP)
        self._passed = max(self._passed, last_stream)
        return Verdict.DROP

    def silent(self) -> Verdict:
        """Heartbeats have been missed."""
        return self._give_up(Reason.SILENCE) if self._is_open else Verdict.DROP

    def gone(self) -> Verdict:
        """The consumer or its topic is not there any more."""
        return self._give_up(Reason.GONE) if self._is_open else Verdict.DROP

    def _give_up(self, reason: Reason) -> Verdict:
        self._is_open, self._reason = False, reason
        self._renewals += 1
        return Verdict.RENEW


def is_silent(heard: float, now: float, heartbeat: float, slack: float) -> bool:
    """Whether heartbeats are missed, all in the same unit; never where there are none. `slack`: for the way."""
    return heartbeat > 0 and now - heard > MISSED * heartbeat + slack


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an ordered consumer, from what its user gave; by the names of consumer files. Raises BadOrder."""
    for name in FORBIDDEN:
        if config.get(name):
            raise BadOrder(f"an ordered consumer has no {name}. Leave it out{_WHY.get(name, '')}")
    for name in ("interest", "output", "delivery", "dead_letter", "backoff", "direct", "sourcing"):
        if name in config:
            raise BadOrder(f"{name} has no meaning for an ordered consumer. Leave it out")
    for name, only in (
        ("ack_policy", AckPolicy.NONE),
        ("max_deliver", 1),
        ("flow_control", True),
        ("mem_storage", True),
    ):
        if config.get(name, only) != only:
            raise BadOrder(f"{name} is {config[name]!r}, and an ordered consumer has {str(only).lower()}. Leave it out")
    return {
        "idle_heartbeat": HEARTBEAT,
        **config,
        "ack_policy": str(AckPolicy.NONE),
        "max_deliver": 1,
        "flow_control": True,
        "mem_storage": True,
        "num_replicas": 1,
        "ack_wait": format_duration(ACK_WAIT),
    }


_WHY = {
    "durable_name": ": nothing of it outlives its reader",
    "name": ": each time it is made anew it has another one",
    "deliver_subject": ": it has a topic of its own",
    "deliver_group": ": order and a shared queue exclude each other",
    "bind": ": it makes its own consumer",
}


def begin_behind(config: Mapping[str, Any], begin: int | None) -> dict[str, Any]:
    """The config of the next consumer. `begin`: as `Order.begin`."""
    if begin is None:
        return dict(config)
    rest = {name: value for name, value in config.items() if name not in ("opt_start_seq", "opt_start_time")}
    return {**rest, "deliver_policy": "by_start_sequence", "opt_start_seq": begin}
