"""Flow control of a push consumer: how many bytes may be on their way, and requests whose answers let it go on.

The window is that of facts/jetstream f: a request goes out when half of it is used, deliveries stop when all of it is, and
each answer doubles it up to a bound.

With `ack_policy: flow_control` (servers 2.14 and later, for sources) answers are the acks as well: they name the last message
that was taken, and settle it and all before it. So a request also goes out when max_ack_pending is reached. Seen on 2.15.1:
an answer that names nothing frees nothing, and the next heartbeat then comes with a new request; an answer to another request
than the last one counts for nothing; acks by token count for nothing.

A machine forgets its requests when it ends. Their subjects name its incarnation, as tokens do (acks.py), so an answer to an
earlier machine's request is never taken for one of its own.
"""

from __future__ import annotations

from overlay.config.consumer import AckPolicy, ConsumerConfig

from .effects import Status
from .pulls import StatusText, name_last
from .window import Pair

FIRST_WINDOW, LARGEST_WINDOW = 2 << 20, 32 << 20
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Flow:
    """`subject`: of the request that waits for its answer, empty for none. `acks`: whether answers ack messages. `asked`: how
    many requests the machine has sent, also before the config changed; their numbers are never used again."""

    def __init__(self, config: ConsumerConfig, incarnation: str = "", asked: int = 0) -> None:
        stream, consumer = config.id
        self._head = f"$JS.FC.{f'_.{incarnation}.' if incarnation else ''}{stream}.{consumer}."
        self.acks = config.ack_policy is AckPolicy.FLOW_CONTROL
        self.asked, self._counted = asked, 0
        self.subject = ""
        self.outstanding, self.limit = 0, FIRST_WINDOW

    @property
    def is_stalled(self) -> bool:
        return self.outstanding > self.limit

    def awaits_acks(self, room: int) -> bool:
        """Whether nothing goes on before an answer acks something. `room`: what max_ack_pending still lets through."""
        return self.acks and not room

    def make_request(self, subject: str, delivered: Pair) -> Status:
        """What is sent on the deliver subject. Where the answer acks it says what, so that who answers need not know."""
        headers = name_last(delivered.consumer, delivered.stream) if self.acks else ()
        return Status("", StatusText(100, "FlowControl Request", headers), subject)

    def spend(self, size: int) -> str:
        """Count a delivery; returns the subject of a request that is to be sent now, empty for none."""
        self.outstanding += size
        return self.ask() if self.outstanding > self.limit // 2 else ""

    def ask(self) -> str:
        """The subject of a request that is to be sent now; empty while another one waits for its answer."""
        if self.subject:
            return ""
        self.subject = self._head + _write_number(self.asked)
        self.asked += 1
        self._counted = self.outstanding
        return self.subject

    def answer(self, subject: str) -> bool:
        """Take in an answer; False for a stale one."""
        if not self.subject or subject != self.subject:
            return False
        self.limit = min(2 * self.limit, LARGEST_WINDOW)
        self.outstanding = max(self.outstanding - self._counted, 0)
        self.subject = ""
        return True


def _write_number(number: int) -> str:
    """Four characters, as servers have them."""
    text = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text
