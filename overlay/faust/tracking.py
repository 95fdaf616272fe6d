"""What Faust acknowledges, told to the overlay's messages.

Faust acknowledges in three places: `Event.ack`, `Stream.ack`, and a compiled copy of both in the
loop over a stream. All three lower `refcount` of the Kafka message, once for each agent that reads
it, and set `acked` at zero. So the two attributes are the one place to look at.

Faust acknowledges too much. If the body of a loop raises, Python closes the stream's iterator, and
its clean-up acknowledges the event. Faust then commits its offset, and without the overlay the
message would be lost. While the clean-up runs, the exception under way is GeneratorExit, which
tells this case from a loop that takes the next event. A loop that is left by `break` or `return`
looks the same.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, cast

from faust.events import Event
from faust.types import AppT
from faust.types.tuples import ConsumerMessage, Message

from .message import AgentMessage, list_headers


class TrackedMessage(ConsumerMessage):
    """A Kafka message of Faust that tells its overlay message (`delivered`) what becomes of it: `finish` when all agents
    have acknowledged it, `abandon` when an agent's loop was left. `refcount` and `acked` stay where Faust keeps them.
    """

    delivered: AgentMessage

    @property
    def refcount(self) -> int:
        """How many agents have not acknowledged the message yet."""
        return int(cast(Any, Message).refcount.__get__(self))

    @refcount.setter
    def refcount(self, count: int) -> None:
        if count < self.refcount and isinstance(sys.exception(), GeneratorExit):
            self.delivered.abandon()
        cast(Any, Message).refcount.__set__(self, count)

    @property
    def acked(self) -> bool:
        """Whether all agents have acknowledged the message."""
        return bool(cast(Any, Message).acked.__get__(self))

    @acked.setter
    def acked(self, is_acked: bool) -> None:
        if is_acked:
            self.delivered.finish()
        cast(Any, Message).acked.__set__(self, is_acked)


def track(record: Message, delivered: AgentMessage) -> TrackedMessage:
    """Have `record` tell `delivered` when Faust acknowledges it, and return `record` itself. Its class changes in
    place, because Faust goes on with the object that it has.
    """
    record.__class__ = TrackedMessage
    tracked = cast(TrackedMessage, record)
    tracked.delivered = delivered
    return tracked


class DeliveredEvent(Event):
    """An event whose value is the overlay's message."""

    def __init__(self, app: AppT, message: TrackedMessage) -> None:
        self._is_taken = False
        super().__init__(app, message.key, message.delivered, cast(Any, list_headers(message)), message)

    @property
    def value(self) -> AgentMessage:
        """The overlay's message. The stream reads it when it hands the event out."""
        self._is_taken = True
        return self._delivered

    @value.setter
    def value(self, delivered: AgentMessage) -> None:
        self._delivered = delivered

    def abandon(self) -> None:
        """Leave the overlay's message unacked, whatever Faust does, so that it is delivered again after ack_wait."""
        self._delivered.abandon()

    def ack(self) -> bool:
        """Acknowledge the event, and return what Faust's Event.ack returns. If its value was never read, abandon its
        message: during a rebalance Faust's uncompiled loop acknowledges events that it drops without handing them out.
        """
        if not self._is_taken:
            self.abandon()
        return super().ack()

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> bool | None:
        """Acknowledge the event at the end of `async with event`. An exception abandons the message."""
        if kind is not None:
            self.abandon()
        return await super().__aexit__(kind, error, trace)
