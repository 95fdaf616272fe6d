"""The state of reply topics: which of them exist and take records, and which have refused recently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.kafka.admin import Admin
from overlay.output.entry import Entry
from overlay.output.topics import find_fault

FRESH_S = 30.0
"""Seconds for which a lookup of a topic is cached."""
KNOWN = 10_000
"""Most topics in the cache, because any client may name topics."""


@dataclass(slots=True)
class ReplyTopics:
    """The topics that clients name for answers: the number of partitions of each that take records,
    asked of Kafka and cached for FRESH_S.
    """

    admin: Admin
    _known: dict[str, tuple[int, float]] = field(default_factory=dict)

    async def sort(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Return the entries that can be delivered, and those that cannot: the topic or partition
        does not exist, takes no records, is hidden from this user, or is avoided (`avoid`). Both
        keep their order.

        Raises SourceUnavailable if Kafka has to be asked and does not answer.
        """
        given = list(entries)
        partitions = await self._count_partitions({entry.topic for entry in given})
        reachable = [entry for entry in given if entry.partition < partitions[entry.topic]]
        lost = [entry for entry in given if entry.partition >= partitions[entry.topic]]
        return reachable, lost

    def avoid(self, topics: Iterable[str], seconds: float) -> None:
        """Let topics that have refused records count as not existing for the next `seconds`."""
        until = monotonic() + seconds
        self._known.update(dict.fromkeys(topics, (0, until)))

    async def _count_partitions(self, topics: set[str]) -> dict[str, int]:
        """Return the number of partitions of each topic, from the cache or from Kafka. It is 0 for
        a topic that does not exist, takes no answers or is avoided.
        """
        now = monotonic()
        # the cache may be cleared or change while Kafka is asked
        counts = {
            topic: self._known[topic][0] for topic in topics if topic in self._known and self._known[topic][1] > now
        }
        unknown = topics - counts.keys()
        if unknown:
            denied: dict[str, str] = {}
            found = await self.admin.find_topics(unknown, with_config=False, denied=denied)
            if len(self._known) > KNOWN:
                self._known.clear()
            for topic in unknown:
                if topic not in self._known or self._known[topic][1] <= now:
                    is_usable = topic in found and not find_fault(found[topic])
                    self._known[topic] = found[topic].partitions if is_usable else 0, now + FRESH_S
                counts[topic] = self._known[topic][0]  # the topic may have refused meanwhile
        return counts
