"""The order of an ordered consumer (ADR-17): which message is next, and when to begin again.

An ordered consumer sends no acks. It remembers the stream sequence and the consumer sequence of the
last good message, and takes a message only if its consumer sequence is the next one. A server
counts consumer sequences without holes, so a hole means that a message was lost on the way. After a
hole, or after two missed heartbeats (the consumer may be gone with its service), the consumer is
abandoned. Another one is created, which begins behind the last good message. Messages of the former
one are dropped.

A heartbeat says how far the consumer has come. If its count is ours, everything up to its stream
sequence has been processed, and the next consumer may begin behind that. So a consumer of rare
messages does not begin at the old policy again. And a consumer of only new messages does not miss
those that came while it was created again.

If a heartbeat has a higher count than ours, messages were lost. A message whose count is not higher
than ours was handed out before (an output with at-least-once delivery may have repetitions), and is
dropped.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overlay.client.arguments import BadQuestion
from overlay.config.consumer import AckPolicy
from overlay.units import format_duration

HEARTBEAT = 5_000_000_000
ACK_WAIT = 22 * 3_600_000_000_000
MISSED = 2
"""Missed heartbeats after which a consumer counts as silent."""


FORBIDDEN = ("durable_name", "deliver_subject", "deliver_group", "num_replicas", "name", "bind")
"""Fields that an ordered consumer may not have (ADR-17)."""


class BadOrder(BadQuestion):
    """A config that an ordered consumer cannot have (ADR-17, "Consumer Configuration Checks").

    The caller acts.
    """


class Verdict(enum.Enum):
    """What an ordered consumer has to do after a record: take the message, drop the record, or create another consumer
    in the service.
    """

    TAKE = "take"
    DROP = "drop"
    RENEW = "renew"
    """The consumer is abandoned; create another one."""


class Reason(enum.StrEnum):
    """Why an ordered consumer has abandoned its consumer in the service: messages are missing or their stream
    sequences do not rise, heartbeats are missing, or reading its topic has failed, for example since the topic does
    not exist any more.
    """

    GAP = "gap"
    SILENCE = "silence"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class OrderState:
    """The state of an ordered consumer that users see. Sequences are those of the last good message, 0
    before the first; `consumer_seq` is 0 again after each renewal.

    `renewals`: how often its consumer in the service was abandoned. `reason`: why the last time, None
    if it never was.
    """

    stream_seq: int
    consumer_seq: int
    renewals: int
    reason: Reason | None


class Order:
    """The position of an ordered consumer in its stream, and its verdict on each record that comes.
    It does no IO: the caller creates and deletes consumers.

    It begins without a consumer; `opened` says that there is one.
    """

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
        """The stream sequence at which the next consumer has to begin: the one after the last that is processed; None for
        the start that the config asks for.
        """
        return max(self._stream_seq, self._passed) + 1 if self._stream_seq or self._passed else None

    def opened(self) -> None:
        """Note that a consumer was created in the service, whose messages come from now on. Its consumer sequences begin at
        1.
        """
        self._is_open, self._consumer_seq = True, 0

    def came(self, stream_seq: int, consumer_seq: int) -> Verdict:
        """Return the verdict on a message of the latest consumer: TAKE for the next one, and the
        position then moves past it; DROP for one that came before, or if there is no consumer;
        RENEW if messages between are missing or the stream sequence does not rise. After RENEW there
        is no consumer until `opened`.
        """
        if not self._is_open or consumer_seq <= self._consumer_seq:
            return Verdict.DROP
        if consumer_seq > self._consumer_seq + 1 or stream_seq <= self._stream_seq:
            return self._give_up(Reason.GAP)
        self._stream_seq, self._consumer_seq = stream_seq, consumer_seq
        return Verdict.TAKE

    def beat(self, last_stream: int, last_consumer: int) -> Verdict:
        """Return the verdict on a heartbeat, which comes in order among the messages: RENEW if
        `last_consumer`, the last consumer sequence that was sent, has not come, else DROP. If it was
        the last to come, the next consumer may begin after `last_stream`. After RENEW there is no
        consumer until `opened`.
        """
        if not self._is_open or last_consumer < self._consumer_seq:
            return Verdict.DROP
        if last_consumer > self._consumer_seq:
            return self._give_up(Reason.GAP)
        self._passed = max(self._passed, last_stream)
        return Verdict.DROP

    def silent(self) -> Verdict:
        """Return the verdict after missed heartbeats: RENEW, after which there is no consumer until `opened`; DROP if there
        is none already.
        """
        return self._give_up(Reason.SILENCE) if self._is_open else Verdict.DROP

    def gone(self) -> Verdict:
        """Return the verdict when reading the consumer's topic has failed, for example since it
        does not exist any more: RENEW, after which there is no consumer until `opened`; DROP if
        there is none already.
        """
        return self._give_up(Reason.GONE) if self._is_open else Verdict.DROP

    def _give_up(self, reason: Reason) -> Verdict:
        self._is_open, self._reason = False, reason
        self._renewals += 1
        return Verdict.RENEW


def is_silent(heard: float, now: float, heartbeat: float, slack: float) -> bool:
    """Return whether nothing was received for longer than MISSED heartbeats and `slack`; False if
    `heartbeat` is 0. All arguments have the same unit.

    `heard`: when something was last received. `heartbeat`: the time between two. `slack`: how late
    a heartbeat may be.
    """
    return heartbeat > 0 and now - heard > MISSED * heartbeat + slack


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the full config of an ordered consumer, by the names of consumer files: the fields that the user gave,
    `config`, and those that ADR-17 fixes, which replace an `ack_wait` in `config`; `idle_heartbeat` is HEARTBEAT if
    not given. Raises BadOrder if `config` has a field that an ordered consumer may not have, or another value for
    `ack_policy`, `max_deliver`, `flow_control` or `mem_storage`.
    """
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
    """Return a copy of `config` for the next consumer, which begins at the stream sequence `begin`
    whatever start `config` asks for; an unchanged copy if `begin` is None.
    """
    if begin is None:
        return dict(config)
    rest = {name: value for name, value in config.items() if name not in ("opt_start_seq", "opt_start_time")}
    return {**rest, "deliver_policy": "by_start_sequence", "opt_start_seq": begin}
