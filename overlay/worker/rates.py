"""What the sessions of a worker have read and delivered: counts since its start, and rates a second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from overlay.clock import now_ms
from overlay.state.shard_state import ConsumerId

from .commit.first_reads import FirstReads
from .round.task import Counts

WINDOW_MS = 10_000
"""The time over which rates are computed, in ms."""
SLOT_MS = 250
"""Counts within this time are kept as one, in ms: at the tail there are hundreds of rounds a
second."""


@dataclass(slots=True)
class Rates:
    """Counts since the service started, and rates a second over the last ten seconds."""

    delivered: Counter[ConsumerId] = field(default_factory=Counter)
    dead_letters: dict[ConsumerId, Counter[str]] = field(default_factory=dict)
    """Messages given up, by consumer and reason."""
    reads: FirstReads = field(default_factory=FirstReads)
    """What was read of each stream."""
    newest: dict[ConsumerId, int] = field(default_factory=dict)
    """The source timestamp of the last record delivered to each consumer, ms since 1970."""
    began: int = field(default_factory=now_ms)
    """When counting began, ms since 1970."""
    _recent: deque[tuple[int, Counter[ConsumerId], Counter[str], Counter[str]]] = field(default_factory=deque)
    """Slots of the last ten seconds: time in ms, delivered records by consumer, decoded and indexed
    records by stream."""
    _first: deque[tuple[int, Counter[str]]] = field(default_factory=deque)
    """The same of records that were read for the first time, by stream."""

    def note(self, counts: Counts, now: int) -> None:
        """Count the result of a committed round. `now`: ms since 1970."""
        self.delivered.update(counts.delivered)
        self.newest.update(counts.newest)
        for (consumer, reason), records in counts.dead_letters.items():
            self.dead_letters.setdefault(consumer, Counter())[reason] += records
        self._recall(now)
        if not self._recent or now - self._recent[-1][0] >= SLOT_MS:
            self._recent.append((now, Counter(), Counter(), Counter()))
        _, delivered, decoded, indexed = self._recent[-1]
        delivered.update(counts.delivered)
        decoded.update(counts.decoded)
        indexed.update(counts.indexed)

    def _recall(self, now: int) -> deque[tuple[int, Counter[ConsumerId], Counter[str], Counter[str]]]:
        """Drop the slots that are older than ten seconds, and return the others, the oldest first. `now`: ms since 1970."""
        while self._recent and self._recent[0][0] < now - WINDOW_MS:
            self._recent.popleft()
        return self._recent

    def forget(self, consumers: Iterable[ConsumerId]) -> None:
        """Drop the counts of consumers that were deleted, so that others under their names begin at 0."""
        for consumer in consumers:
            self.newest.pop(consumer, None)
            self.dead_letters.pop(consumer, None)
            for counts in (self.delivered, *(delivered for _, delivered, *_ in self._recent)):
                counts.pop(consumer, None)

    def list_active(self, now: int) -> set[ConsumerId]:
        """Return the consumers that were given records in the last ten seconds. `now`: ms since 1970."""
        return {consumer for _, delivered, *_ in self._recall(now) for consumer in delivered}

    def of_consumer(self, consumer: ConsumerId, now: int) -> float:
        """Return the records a second that were delivered to a consumer in the last ten seconds. `now`: ms since 1970."""
        return self._per_second(sum(delivered[consumer] for _, delivered, *_ in self._recall(now)), now)

    def of_stream(self, stream: str, now: int) -> float:
        """Return the records a second of a stream that were decoded in the last ten seconds. `now`: ms since 1970."""
        return self._per_second(sum(decoded[stream] for _, _, decoded, _ in self._recall(now)), now)

    def note_first_reads(self, stream: str, records: int, now: int) -> None:
        """Count records of a stream that this worker has read for the first time. `now`: ms since 1970."""
        while self._first and self._first[0][0] < now - WINDOW_MS:
            self._first.popleft()
        if not self._first or now - self._first[-1][0] >= SLOT_MS:
            self._first.append((now, Counter()))
        self._first[-1][1][stream] += records

    def of_first_reads(self, stream: str, now: int) -> float:
        """Return the records a second of a stream that this worker read in the last ten seconds, without those that it had
        read before: each counts once, however many shards read it. `now`: ms since 1970."""
        while self._first and self._first[0][0] < now - WINDOW_MS:
            self._first.popleft()
        return self._per_second(sum(records[stream] for _, records in self._first), now)

    def of_index(self, stream: str, now: int) -> float:
        """Return the records a second of a stream that went into chunks in the last ten seconds. `now`: ms since 1970."""
        return self._per_second(sum(indexed[stream] for *_, indexed in self._recall(now)), now)

    def _per_second(self, records: int, now: int) -> float:
        """Return a count divided by the window, or by the time since the start while that is
        shorter."""
        return records * 1000 / max(1, min(WINDOW_MS, now - self.began))
