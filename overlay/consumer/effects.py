"""The output of a consumer's machine: effects, in the order in which they are to be carried out.

Times are ns since 1970.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from overlay.arrays import Ints

from .acks import Flaw
from .events import Reply
from .pulls import StatusText


@dataclass(frozen=True, slots=True)
class Deliver:
    """Messages to send to one reader, as columns with one entry per message, in the order of
    delivery.

    The caller makes the ack tokens of these columns and of the records' times. `reply`: the inbox
    of a pull request, empty for the deliver subject. `sequences`: stream sequences. `deliveries`:
    how often each message was delivered, this delivery included. `num_pending`: matching messages
    not yet delivered after each. `headers_only`: leave out values and add the header
    `Nats-Msg-Size`. `pin`: the pin id of the reader, empty if it is not pinned.
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
    """A status to send to the sender of a pull request, or to the deliver subject if `reply` is
    empty.

    `answer_to`: for a flow control request the subject that the reader's answer has to name; empty
    otherwise.
    """

    reply: Reply
    text: StatusText
    answer_to: str = ""


class Advisory(enum.Enum):
    """The kinds of advisories of one consumer.

    A value has the last part of the advisory's type and the part of its subject that names the
    kind.
    """

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
    """An advisory to publish: an event about the consumer. Fields that its kind does not have are
    zero or empty.

    `consumer_seq`: of the delivery that a nak or term is about. For a message that has left the
    stream, or that the output can never take, that of its first delivery, 0 if there was none.
    Always 0 for MAX_DELIVER. `deliveries`: how often the message was delivered by then; for a nak
    or term, the number in its token. `reason`: why a message was terminated or a client unpinned.
    `is_paused`: whether a pause begins (True) or ends. `until`: when the pause is or was to end, ns
    since 1970. `group`, `pin`: priority group and pin id of a client.
    """

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
    """An ack that a metric event is to report. `consumer_seq`: of the message's first delivery.
    `deliveries`: how often it was delivered. `ack_time`: ns from the last delivery to the
    processing of the ack.
    """

    stream_seq: int
    consumer_seq: int
    deliveries: int
    ack_time: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is given up and has to be written to the dead-letter topic.

    `reason`: max_deliver, term or undeliverable. `deliveries`: how often it was delivered.
    `first_delivered`, `last_delivered`: ns since 1970; the year 1 (endings.UNSET) if never.
    """

    stream_seq: int
    reason: str
    deliveries: int
    first_delivered: int
    last_delivered: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The confirmation to the sender of an ack that it was processed, or that its messages are
    settled already. It goes out once the state is committed.
    """

    reply: Reply


@dataclass(frozen=True, slots=True)
class Refuse:
    """A report that an event, or a part of it, had no effect, and why; the caller counts it."""

    flaw: Flaw


@dataclass(frozen=True, slots=True)
class Rewind:
    """A request to the caller to offer matching messages again, from stream sequence `position` + 1
    on: the machine has dropped everything that was offered and not delivered.
    """

    position: int


@dataclass(frozen=True, slots=True)
class Remove:
    """A request to delete the consumer: inactive_threshold has passed."""


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """A request to send Ticked at the time `at` (ns since 1970). It replaces the time of the last
    such request. NEVER: no timer is needed.
    """

    at: int


Effect = Deliver | Status | Advise | Sample | DeadLetter | Answer | Refuse | Rewind | Remove | ArmTimer
