"""Reply topics as they stand: which of them are there and take records, and which have refused of late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.kafka.admin import Admin
from overlay.output.entry import Entry
from overlay.output.topics import find_fault

FRESH_S = 30.0
"""How long it is believed that a topic is there, or is not."""
KNOWN = 10_000
"""Topics that are remembered at once: strangers name them."""


@dataclass(slots=True)
class ReplyTopics:
    """Which topics may be answered to, asked of Kafka now and then."""

    admin: Admin
    _known: dict[str, tuple[int, float]] = field(default_factory=dict)

    async def sort(self, entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Those whose topic takes records and has the partition, and those that would go nowhere. Raises SourceUnavailable."""
        given = list(entries)
        partitions = await self._count_partitions({entry.topic for entry in given})
        reachable = [entry for entry in given if entry.partition < partitions[entry.topic]]
        lost = [entry for entry in given if entry.partition >= partitions[entry.topic]]
        return reachable, lost

    def avoid(self, topics: Iterable[str], seconds: float) -> None:
        """Count these topics as unreachable for a while: they have refused."""
        until = monotonic() + seconds
        self._known.update(dict.fromkeys(topics, (0, until)))

    async def _count_partitions(self, topics: set[str]) -> dict[str, int]:
        now = monotonic()
        # what is known may be cleared or change while Kafka is asked
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
                counts[topic] = self._known[topic][0]  # it may have refused meanwhile
        return counts
