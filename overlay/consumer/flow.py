"""Flow control of a push consumer: a limit for bytes in flight, and requests whose answers let
deliveries continue.

The window is JetStream's (docs/jetstream.md#push). A request goes out when half of the window is
used. Deliveries stop when all of it is used. Each answer doubles the window up to a bound.

With `ack_policy: flow_control` (nats-server 2.14 and later, for sources) answers are the acks as
well. An answer names the last message that the reader took, and settles it and everything before
it. So a request also goes out when max_ack_pending is reached. Seen on nats-server 2.15.1: an
answer that names no message frees nothing, and the next heartbeat then brings a new request. An
answer to any request but the last one is ignored. Acks by token are ignored.

A machine forgets its requests when it ends. The subjects of requests contain its incarnation, as
tokens do (acks.py). So an answer to an earlier machine's request is never mistaken for an answer to
its own.
"""

from __future__ import annotations

from overlay.config.consumer import AckPolicy, ConsumerConfig

from .effects import Status
from .pulls import StatusText, name_last
from .window import Pair

FIRST_WINDOW, LARGEST_WINDOW = 2 << 20, 32 << 20
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Flow:
    """The flow control of one machine.

    `subject`: of the request that waits for its answer, empty for none. `acks`: whether answers ack
    messages. `asked`: number of requests that the machine has sent, also before a change of its
    config; their numbers are never used again. `outstanding` and `limit`: bytes in flight and how
    many may be.
    """

    def __init__(self, config: ConsumerConfig, incarnation: str = "", asked: int = 0) -> None:
        stream, consumer = config.id
        self._head = f"$JS.FC.{f'_.{incarnation}.' if incarnation else ''}{stream}.{consumer}."
        self.acks = config.ack_policy is AckPolicy.FLOW_CONTROL
        self.asked, self._counted = asked, 0
        self.subject = ""
        self.outstanding, self.limit = 0, FIRST_WINDOW

    @property
    def is_stalled(self) -> bool:
        """Whether deliveries have to wait for an answer: more than `limit` bytes are in flight."""
        return self.outstanding > self.limit

    def awaits_acks(self, room: int) -> bool:
        """Return whether new messages have to wait for an answer that acks: answers are the acks of
        this consumer, and max_ack_pending is reached.

        `room`: how many new messages max_ack_pending still lets through.
        """
        return self.acks and not room

    def make_request(self, subject: str, delivered: Pair) -> Status:
        """Return the flow control request with this subject, as a status for the deliver subject.

        `delivered`: the last delivery. If answers ack, the request names it, so that the reader
        need not keep track of it.
        """
        headers = name_last(delivered.consumer, delivered.stream) if self.acks else ()
        return Status("", StatusText(100, "FlowControl Request", headers), subject)

    def spend(self, size: int) -> str:
        """Add the bytes of a delivery to those in flight.

        If more than half of the limit is in flight and no request waits for its answer, begin a
        flow control request and return its subject, for the caller to send. Otherwise return an
        empty text.
        """
        self.outstanding += size
        return self.ask() if self.outstanding > self.limit // 2 else ""

    def ask(self) -> str:
        """Begin a flow control request and return its subject. The caller has to send it.

        Return an empty text, and change nothing, while another request waits for its answer.
        """
        if self.subject:
            return ""
        self.subject = self._head + _write_number(self.asked)
        self.asked += 1
        self._counted = self.outstanding
        return self.subject

    def answer(self, subject: str) -> bool:
        """Process the answer to a flow control request: double the limit, up to a bound, and
        subtract the bytes that were in flight when the request was made.

        Return False, and change nothing, if `subject` is not that of the request that waits for its
        answer.
        """
        if not self.subject or subject != self.subject:
            return False
        self.limit = min(2 * self.limit, LARGEST_WINDOW)
        self.outstanding = max(self.outstanding - self._counted, 0)
        self.subject = ""
        return True


def _write_number(number: int) -> str:
    """Return a number as four characters in base 36, as nats-server writes them; higher digits are
    cut off.
    """
    text = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
