"""What a consumer wants done: the machine's output, in the order in which it is to be done. Times are ns."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from overlay.arrays import Ints

from .acks import Flaw
from .events import Reply
from .pulls import StatusText


@dataclass(frozen=True, slots=True)
class Deliver:
    """Messages for one reader, as columns in order; the tokens are made of them and of the records' times.

    `reply` is the inbox of a pull request, empty for the deliver subject. `num_pending`: what is left after each.
    With `headers_only` values are left out and `Nats-Msg-Size` tells their size.
    """

    reply: Reply
    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    num_pending: Ints
    headers_only: bool = False
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """A status for a pull request, or for the deliver subject where `reply` is empty. `answer_to`: flow control's subject."""

    reply: Reply
    text: StatusText
    answer_to: str = ""


class Advisory(enum.Enum):
    """Advisories of one consumer: the last part of their type, and the part of their subject that tells them apart."""

    MAX_DELIVER = "max_deliver", "MAX_DELIVERIES"
    NAK = "nak", "MSG_NAKED"
    TERMINATED = "terminated", "MSG_TERMINATED"
    PAUSE = "consumer_pause", "PAUSE"
    CREATED = "consumer_action", "CREATED"
    DELETED = "consumer_action", "DELETED"
    PINNED = "consumer_group_pinned", "PINNED"
    UNPINNED = "consumer_group_unpinned", "UNPINNED"


@dataclass(frozen=True, slots=True)
class Advise:
    """An advisory; fields that its kind lacks are at their zero value."""

    kind: Advisory
    stream_seq: int = 0
    consumer_seq: int = 0
    deliveries: int = 0
    reason: str = ""
    is_paused: bool = False
    until: int = 0
    group: str = ""
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """An ack that is reported. `ack_time`: since the last delivery."""

    stream_seq: int
    consumer_seq: int
    deliveries: int
    ack_time: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is given up, for the dead-letter topic. `reason`: max_deliver, term or undeliverable."""

    stream_seq: int
    reason: str
    deliveries: int
    first_delivered: int
    last_delivered: int


@dataclass(frozen=True, slots=True)
class Answer:
    """An ack has been taken in; tell its sender, after the state is safe."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Refuse:
    """An event that changed nothing, to be counted."""

    flaw: Flaw


@dataclass(frozen=True, slots=True)
class Rewind:
    """Offer anew from the message after `position`: what was offered and not delivered has been dropped."""

    position: int


@dataclass(frozen=True, slots=True)
class Remove:
    """inactive_threshold has passed: the consumer is to be deleted."""


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Send Ticked at this time, instead of any time asked for before. NEVER: no need."""

    at: int


Effect = Deliver | Status | Advise | Sample | DeadLetter | Answer | Refuse | Rewind | Remove | ArmTimer
