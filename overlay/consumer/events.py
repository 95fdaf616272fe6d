"""What happens to a consumer: the machine's input. Times and delays are ns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import ConsumerConfig

from .acks import Ack, RangeAck, Verb
from .pulls import PullRequest, StatusText, parse_pull
from .queues import Run
from .window import EMPTY

Reply = str
"""Where an answer goes: an inbox, or whatever the shell knows a correlation by. Empty for nowhere."""


@dataclass(frozen=True, slots=True)
class Offered:
    """The stream has been looked at up to sequence `up_to`; `run` holds what matched, above all that was offered before.

    `beyond`: how many more messages match behind `up_to`. None leaves what was said last, less this run.
    """

    run: Run
    up_to: int
    beyond: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages left the stream: those below `below`, and `sequences`, rising (also: a redelivery that finds nothing)."""

    below: int = 0
    sequences: Ints = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Expired:
    """The stream has no messages below `below` any more: those that were given up are forgotten. One that waits for an ack
    stays until it is acked, or until its redelivery finds nothing (Removed)."""

    below: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull request as `parse_pull` gave it. `pin`: a fresh id, in case that it gets the pin of a pinned_client group."""

    request: PullRequest | StatusText
    reply: Reply
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nothing can be sent to these reply addresses, nor to those that begin with one of `heads`, which end with a slash."""

    heads: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Acked:
    """Acks of these stream sequences. `consumer_seq`: of the last token; `all` counts its floor by it.

    `incarnation`, here and below: that gave out this one delivery by its token; None where that has been checked before.
    """

    sequences: Ints
    consumer_seq: int
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class RangeAcked:
    """Acks by consumer sequence, both ends of each range included. `incarnation`: None where the ack does not say."""

    ranges: tuple[tuple[int, int], ...]
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Nakked:
    stream_seq: int
    consumer_seq: int
    deliveries: int
    delay: int | None = None
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """The application still works on these stream sequences. `consumer_seq`: of the last token, 0 where none is known."""

    sequences: Ints
    reply: Reply = ""
    consumer_seq: int = 0
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Termed:
    stream_seq: int
    consumer_seq: int
    deliveries: int
    reason: str = ""
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Somebody reads the deliver subject now."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """Nobody reads the deliver subject any more."""


@dataclass(frozen=True, slots=True)
class Read:
    """The reader group's committed offset has passed all deliveries up to this consumer sequence."""

    consumer_seq: int


@dataclass(frozen=True, slots=True)
class FlowAnswered:
    """An answer to the flow control request with this subject.

    `up_to`: the last consumer sequence that was taken, 0 where nothing is said of it.
    """

    subject: str
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passes. `acks_up_to`: all acks sent before this time have been handed in; None = acks come at once.

    A deadline fires only once the acks have been read up to it (design 11.6).
    """

    acks_up_to: int | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """Deliver nothing before `until`."""

    until: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause is over, by request or because its time has come."""


@dataclass(frozen=True, slots=True)
class Updated:
    """A new config, already found allowed (overlay.config.update)."""

    config: ConsumerConfig


@dataclass(frozen=True, slots=True)
class Deleted:
    """The consumer, or its stream, is deleted."""


Event = (
    Offered | Removed | Expired | Pulled | Acked | RangeAcked | Nakked | Progressed | Termed | Bound | Unbound | Read
    | FlowAnswered | Ticked | Paused | Resumed | Updated | Deleted | Unreachable
)  # fmt: skip


def read_ack(ack: Ack | RangeAck, reply: Reply = "", pin: str = "") -> tuple[Event, ...]:
    """The events that an ack stands for. `reply`: where its answer goes; for a next, where the messages go."""
    if isinstance(ack, RangeAck):
        return (RangeAcked(ack.ranges, reply, ack.incarnation),)
    token, by = ack.token, ack.token.incarnation
    numbers = token.stream_seq, token.consumer_seq, token.deliveries
    sequences = np.array([token.stream_seq])
    match ack.verb:
        case Verb.ACK:
            return (Acked(sequences, token.consumer_seq, reply, by),)
        case Verb.NAK:
            return (Nakked(*numbers, ack.delay, reply, by),)
        case Verb.PROGRESS:
            return (Progressed(sequences, reply, token.consumer_seq, by),)
        case Verb.TERM:
            return (Termed(*numbers, ack.text, reply, by),)
        case Verb.NEXT:
            acked = Acked(sequences, token.consumer_seq, incarnation=by)
            return acked, Pulled(parse_pull(ack.text.encode()), reply, pin)
