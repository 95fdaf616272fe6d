"""The input events of a consumer's machine. Times are ns since 1970, delays ns."""

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
"""The address that an answer goes to: an inbox, or any text by which the caller finds the sender.
Empty for none.
"""


@dataclass(frozen=True, slots=True)
class Offered:
    """New messages to deliver: the caller has searched the stream up to sequence `up_to`, and `run`
    has what matched.

    All of `run` lies above everything that was offered before. `beyond`: how many messages match
    above `up_to`; None keeps the earlier count, less this run.
    """

    run: Run
    up_to: int
    beyond: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages that left the stream: all with a stream sequence below `below`, and those with the
    stream sequences `sequences` (rising).

    The caller also reports a message as removed if it cannot be read for a delivery any more.
    """

    below: int = 0
    sequences: Ints = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """Messages to deliver next that the consumer's output can never take: the machine gives them
    up, each with a dead letter. `sequences`: stream sequences, rising.

    Only for a consumer that has a dead-letter topic.
    """

    sequences: Ints


@dataclass(frozen=True, slots=True)
class Expired:
    """The stream has no messages below the stream sequence `below` any more. The machine forgets
    those of them that have used up their deliveries.

    A message that waits for an ack stays until it is acked, or until its redelivery cannot read it
    (Removed).
    """

    below: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull request, as `parse_pull` returned it.

    Without `reply` only the ack is processed. `pin`: a fresh id, which the client gets if it becomes
    pinned (pinned_client). `ack`: what the `+NXT` that it came with acks; None for a request by
    itself. The ack is processed first. The request is dropped if the ack names no delivery of the
    consumer.
    """

    request: PullRequest | StatusText
    reply: Reply
    pin: str = ""
    ack: Acked | None = None


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Pull requests from these reply addresses, or from addresses that begin with one of `heads`
    (which end with a slash), are to be dropped: the addresses cannot be reached any more.
    """

    heads: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Acked:
    """Acks of the messages with these stream sequences, by token.

    `consumer_seq`: the one in the last token; with ack_policy all the floor moves to it if the
    message is pending. `reply`: where the confirmation goes, empty for none. `incarnation`: the one
    that the token names as the maker of the delivery, empty for a token of version 1. None if the
    caller has checked already that the ack counts.
    """

    sequences: Ints
    consumer_seq: int
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class RangeAcked:
    """Acks of all deliveries with a consumer sequence in one of the ranges, both ends included.

    `incarnation`: the one that the ack's head names as the maker of the deliveries, empty if it
    names none. None to accept the ranges whichever incarnation made the deliveries.
    """

    ranges: tuple[tuple[int, int], ...]
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Nakked:
    """A request to deliver a message again: at once if `delay` is None, otherwise after so many ns.
    `stream_seq`, `consumer_seq` and `deliveries` are those of the delivery that the nak names.
    `incarnation`: as in Acked.
    """

    stream_seq: int
    consumer_seq: int
    deliveries: int
    delay: int | None = None
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """A report that the application still works on the messages with these stream sequences, so
    their ack timers begin anew.

    `consumer_seq`: the one in the last token, 0 if unknown. `incarnation`: as in Acked.
    """

    sequences: Ints
    reply: Reply = ""
    consumer_seq: int = 0
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Termed:
    """A request never to deliver a message again. `stream_seq`, `consumer_seq` and `deliveries` are
    those of the delivery that the term names. `incarnation`: as in Acked.
    """

    stream_seq: int
    consumer_seq: int
    deliveries: int
    reason: str = ""
    reply: Reply = ""
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The deliver subject of a push consumer has a reader now, or is to be served without one."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """The deliver subject has no reader any more."""


@dataclass(frozen=True, slots=True)
class Read:
    """The reader group's committed offset has passed all deliveries up to this consumer sequence."""

    consumer_seq: int


@dataclass(frozen=True, slots=True)
class FlowAnswered:
    """An answer to the flow control request with this subject.

    `up_to`: the last consumer sequence that the reader has taken, 0 if the answer names none.
    """

    subject: str
    up_to: int = 0


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: the machine looks at everything that is due.

    `acks_up_to` (ns since 1970): all acks sent before this time have been handed to the machine.
    None: acks arrive without delay. An ack deadline later than `acks_up_to` does not fire, so that
    an ack that was sent in time always counts (docs/exactly-once.md#deadlines).
    """

    acks_up_to: int | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """A request to deliver nothing before `until` (ns since 1970)."""

    until: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The end of a pause, by request or because its time has come."""


@dataclass(frozen=True, slots=True)
class Updated:
    """A new config, already checked against the old one (overlay.config.update)."""

    config: ConsumerConfig


@dataclass(frozen=True, slots=True)
class Deleted:
    """The consumer or its stream has been deleted."""


Event = (
    Offered | Removed | Undeliverable | Expired | Pulled | Acked | RangeAcked | Nakked | Progressed | Termed | Bound
    | Unbound | Read | FlowAnswered | Ticked | Paused | Resumed | Updated | Deleted | Unreachable
)  # fmt: skip


def read_ack(ack: Ack | RangeAck, reply: Reply = "", pin: str = "") -> Event:
    """Return the event that an ack means to a machine.

    `reply`: the address of the answer; for a next, of the messages. `pin`: a fresh id for the pull
    request of a next.
    """
    if isinstance(ack, RangeAck):
        return RangeAcked(ack.ranges, reply, ack.incarnation)
    token, by = ack.token, ack.token.incarnation
    numbers = token.stream_seq, token.consumer_seq, token.deliveries
    sequences = np.array([token.stream_seq])
    match ack.verb:
        case Verb.ACK:
            return Acked(sequences, token.consumer_seq, reply, by)
        case Verb.NAK:
            return Nakked(*numbers, ack.delay, reply, by)
        case Verb.PROGRESS:
            return Progressed(sequences, reply, token.consumer_seq, by)
        case Verb.TERM:
            return Termed(*numbers, ack.text, reply, by)
        case Verb.NEXT:
            acked = Acked(sequences, token.consumer_seq, incarnation=by)
            return Pulled(parse_pull(ack.text.encode()), reply, pin, acked)
