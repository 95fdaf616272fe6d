"""Tells the events topic which records of the overlay's own topics, and which batches of sources, could not be read.

Any client may write many of them, so one event a minute tells of those of a partition and a reason, with the first offset and
their number. The events are sent outside all transactions, by a sender of their own: what clients write must not disturb
deliveries, and an event that the topic does not take is dropped. The metrics have counted it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from overlay.clock import monotonic, now_ns
from overlay.kafka.admin import Admin
from overlay.kafka.passed_over import PassedOver
from overlay.kafka.properties import Properties
from overlay.logs import get_logger
from overlay.replies.event_topic import encode_unreadable
from overlay.replies.reply_sender import ReplySender
from overlay.replies.reply_topics import ReplyTopics
from overlay.waits import is_set_within

log = get_logger(__name__)

LOOK_S = 1.0
"""Seconds between two looks at whether there is something to tell."""
WINDOW_S = 60.0
"""Seconds in which one event tells of a partition and a reason."""
MOST_EVENTS = 100
"""Most events of a worker in WINDOW_S. A stream may have thousands of partitions, and a client may write to each of them."""

_Kind = tuple[str, int, str]
"""Topic, partition and reason."""


@dataclass(slots=True)
class Unreadable:
    """The records that could not be read and that no event has told of yet, by partition and reason. There are few of both:
    the topics of the overlay and its sources, and the reasons that the metrics and the decoder name.
    """

    _waiting: dict[_Kind, PassedOver] = field(default_factory=dict)
    _told_at: dict[_Kind, float] = field(default_factory=dict)
    """When an event told of them last, monotonic seconds."""

    def note(self, found: PassedOver) -> None:
        """Keep what an event is to tell of. Of those that wait, the first offset and text are kept, and the sum of the
        counts.
        """
        kind = found.topic, found.partition, found.reason
        first = self._waiting.get(kind)
        self._waiting[kind] = found if first is None else replace(first, count=first.count + found.count)

    def take(self, now: float) -> list[PassedOver]:
        """Return what is to be told now: what waits, unless an event has told of its partition and reason within WINDOW_S.
        What is beyond MOST_EVENTS waits longer, and what was found first does not. `now`: monotonic seconds.
        """
        self._told_at = {kind: at for kind, at in self._told_at.items() if now - at < WINDOW_S}
        due = [kind for kind in self._waiting if kind not in self._told_at][: MOST_EVENTS - len(self._told_at)]
        self._told_at |= dict.fromkeys(due, now)
        return [self._waiting.pop(kind) for kind in due]


@dataclass(slots=True)
class UnreadableTeller:
    """Sends events of a worker about records that could not be read. `prefix`: how the names of the overlay's topics begin;
    `worker`: the name of the worker.
    """

    unreadable: Unreadable
    kafka: Properties
    admin: Admin
    prefix: str
    worker: str
    sender: ReplySender = field(init=False)

    def __post_init__(self) -> None:
        self.sender = ReplySender(self.kafka, ReplyTopics(self.admin), self._note_dropped)

    async def run(self, stop: asyncio.Event) -> None:
        """Look every LOOK_S, and at the end, whether there is something to tell, until `stop`."""
        try:
            while not await is_set_within(stop, LOOK_S):
                self.tell()
            self.tell()
        finally:
            await self.sender.close()

    def tell(self) -> None:
        """Queue the events that are due. Raises nothing: an error is logged, since the metrics have counted what the events
        tell of, and the task that calls this is one of those that end the service.
        """
        found = self.unreadable.take(monotonic())
        try:
            self.sender.put([encode_unreadable(self.worker, each, now_ns(), self.prefix) for each in found])
        except Exception:
            log.exception("records that cannot be read are not told of in the events topic", count=len(found))

    def _note_dropped(self, reason: str, count: int) -> None:
        log.warning("records that cannot be read are not told of in the events topic", reason=reason, count=count)
