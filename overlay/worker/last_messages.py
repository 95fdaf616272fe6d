"""The last messages of `last_per_subject` consumers: which records below the ends of their
snapshots they are given.

In a stream without a ledger, the log alone tells, before a session reads anything. With a ledger,
the last message of a subject is the one with the highest sequence in all partitions.
Sequences are given out while a session reads, maybe by another shard. So such a consumer's cursors
stay where they are until the ledger has reached the ends of its snapshot. Then each partition is
searched, and the subjects are merged (index/pending/last_per_subject.py).

What was delivered need not be searched again. A consumer has been given everything below some
sequence. A record that supersedes an undelivered one has a higher sequence than that one, so it is
also undelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.clock import monotonic, now_ms
from overlay.index.pending.last_per_subject import find_lows, merge_lasts
from overlay.index.start_positions import find_lasts
from overlay.index.topic import Index
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import ConsumerId

from .assignment import Assignment
from .cursors.cursors import Cursors

log = get_logger(__name__)

PROGRESS_S = 2.0
"""Seconds between two log lines of a search."""
AT_ONCE = 4
"""Fetches of a search that are under way at once, besides those of the session."""


@dataclass(slots=True)
class Snapshots:
    """The searches of a session for the last record of each subject, for consumers with
    `deliver_policy: last_per_subject`. Call `load` before the session reads, `decide` between its
    rounds, `close` at its end."""

    client: AIOKafkaClient
    metrics: Metrics
    assignment: Assignment
    cursors: Cursors
    _searching: asyncio.Task[dict[TopicPartition, Ints]] | None = None
    """The current search; its result is the offsets to deliver in each partition."""
    _consumer: ConsumerId = ("", "")
    """The consumer of the current search."""

    async def load(self) -> None:
        """Search for all consumers that wait for it in streams without a ledger (of one partition),
        and have their cursors deliver what was found. Returns when all searches have ended. Raises
        SourceChanged, SourceUnavailable."""
        for (stream, source), cursor in self.cursors.all():
            if cursor.is_searching and stream not in self.assignment.ledgers:
                (consumer,) = cursor.members
                found = await self._search(consumer, source, cursor.position, cursor.snapshot_end)
                self.cursors.find(
                    consumer, {source: np.sort(np.fromiter(found.values(), np.int64, len(found)))}, now_ms()
                )

    def decide(self, note: Callable[[], None], now: int) -> None:
        """If the current search has ended, have its consumer's cursors deliver what was found. If no
        search runs then, start the next one in a task; does not wait for it.

        `note` is called when that task ends. `now`: ms since 1970. Raises SourceChanged or
        SourceUnavailable if the search has failed.
        """
        if self._searching is not None and self._searching.done():
            found, self._searching = self._searching.result(), None
            self.cursors.find(self._consumer, found, now)
        if self._searching is None and (consumer := self._find_next()) is not None:
            self._consumer = consumer
            self._searching = asyncio.create_task(self._search_all(consumer), name="snapshot")
            self._searching.add_done_callback(lambda _: note())

    async def close(self) -> None:
        """Cancel the current search, if there is one, and wait until it has ended. Its error is
        dropped."""
        if self._searching is not None:
            self._searching.cancel()
            await asyncio.gather(self._searching, return_exceptions=True)

    def _find_next(self) -> ConsumerId | None:
        """Return a consumer that waits for its search and whose stream's ledger reaches far enough in all partitions
        in which it waits: to the end of its snapshot, or to the last stable offset if that is lower. Return None if
        there is none.
        """
        waiting: dict[ConsumerId, bool] = {}
        for (stream, source), cursor in self.cursors.all():
            if cursor.is_searching:
                (consumer,) = cursor.members
                # the log may have lost its end since the snapshot was taken
                end = min(cursor.snapshot_end, cursor.stable_end) if cursor.stable_end >= 0 else cursor.snapshot_end
                is_known = self.assignment.ledgers[stream].end_of(source) >= end
                waiting[consumer] = waiting.get(consumer, True) and is_known
        return next((consumer for consumer, is_known in waiting.items() if is_known), None)

    async def _search_all(self, consumer: ConsumerId) -> dict[TopicPartition, Ints]:
        """Search all partitions of a consumer's stream, one after the other. Return by partition the offsets (int64,
        ascending) of the records that are the last of their subject among all that are searched: those of the
        consumer's subjects, from the offsets of `find_lows` on, below the ends of its snapshot. For streams with a
        ledger.
        """
        stream = consumer[0]
        ledger, ends = self.assignment.ledgers[stream], self.cursors.standing(consumer).snapshot
        positions = {source: cursor.position for source, cursor in self.cursors.members_of(consumer)}
        lows = find_lows(positions, ledger)
        fetcher = Fetcher(self.client, requests=AT_ONCE, apart=3)
        try:
            found = {
                source: await self._search(consumer, source, lows[source], ends[source], fetcher)
                for source in positions
                if source in ends
            }
        finally:
            await fetcher.close()
        return merge_lasts(found, ledger)

    async def _search(
        self, consumer: ConsumerId, source: TopicPartition, first: int, end: int, fetcher: Fetcher | None = None
    ) -> dict[str, int]:
        """Return by subject the offset of its last record from `first` to `end` (exclusive) in one
        partition, for the subjects that the consumer wants.

        `fetcher`: to be used for reading; None for a new one.
        """
        stream = consumer[0]
        span = (max(first, self.assignment.starts[source]), end)
        progress = _Progress(stream, consumer[1], source, span[1] - span[0], self.metrics)
        config = self.assignment.streams[stream]
        chunks = (self.assignment.indexes.get(stream) or Index(config)).of(source)
        wanted = self.assignment.readers[consumer].subjects
        found = await find_lasts(self.client, wanted, config, source, span, chunks, progress.step, fetcher)
        progress.finish(len(found))
        return found


@dataclass(slots=True)
class _Progress:
    """Logs and counts the progress of one search. `total`: offsets to be searched."""

    stream: str
    consumer: str
    source: TopicPartition
    total: int
    metrics: Metrics
    _told: float = field(default_factory=monotonic)

    def step(self, done: int, fetched: int) -> None:
        """Count `fetched` bytes, read since the last call, and log the progress if PROGRESS_S have
        passed since the last log line. `done`: offsets searched so far."""
        self.metrics.bytes_fetched.inc(fetched)
        if monotonic() - self._told >= PROGRESS_S:
            self._told = monotonic()
            percent = round(100 * done / max(1, self.total))
            log.info("looking for last messages", stream=self.stream, consumer=self.consumer, percent=percent)

    def finish(self, found: int) -> None:
        log.info("last messages found", stream=self.stream, consumer=self.consumer, partition=self.source, found=found)
