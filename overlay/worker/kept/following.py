"""How far stream sequences are committed: no record becomes readable before its sequence. Ledgers that
other shards keep are read as they grow; for our own, commits tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.logs import get_logger
from overlay.worker.assignment import Assignment
from overlay.worker.cursors.cursors import Cursors

from . import blocked

log = get_logger(__name__)


@dataclass(slots=True)
class Following:
    """Reads the index topics of the streams whose sequences another shard gives out, so that this
    session learns the sequences once they are committed. One that stays behind an open transaction is said
    to wait (`look`); the stream is not left out, since it goes on as soon as the transaction has ended."""

    assignment: Assignment
    _partition_fetches: dict[str, PartitionFetch] = field(default_factory=dict)
    _open: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By stream whose index topic has an open transaction, the offset at which it begins, and when it was first seen,
    monotonic seconds."""

    async def open(self, fetcher: Fetcher) -> None:
        """Begin to fetch the index topics of the streams whose sequences another shard gives out, each
        from the position up to which it was read when the session was opened."""
        for stream in self.assignment.ledgers.keys() - self.assignment.heads.keys():
            topic, position = self.assignment.ledger_topics[stream], self.assignment.indexes[stream].position
            partition_fetch = self._partition_fetches[stream] = await fetcher.open(topic, 0, position)
            # fetched records of the stream may wait for nothing but this
            partition_fetch.urgent = True

    async def look(self, admin: Admin) -> None:
        """Put the streams into the assignment's `held` whose ledgers have been behind the same open transaction for
        `blocked.PATIENCE_S`, and take out those of which it has ended. Log both. Call it about once a second.

        The keeper's own transactions are open for moments. The answers to fetches tell of an open transaction, but the
        last one may be old. So Kafka is asked before the stream is said to wait.
        """
        for stream, partition_fetch in list(self._partition_fetches.items()):
            offset = partition_fetch.stable_end
            if not 0 <= offset < partition_fetch.end:
                self._open.pop(stream, None)
            elif stream not in self._open or self._open[stream][0] != offset:
                self._open[stream] = offset, monotonic()
            elif monotonic() - self._open[stream][1] >= blocked.PATIENCE_S:
                await self._hold(admin, stream, partition_fetch.topic, offset)
                continue
            if self.assignment.held.pop(stream, None) is not None:
                log.info("ledger is read on: the transaction has ended", stream=stream)

    async def _hold(self, admin: Admin, stream: str, topic: str, offset: int) -> None:
        """Note that a stream waits, unless that is known, if Kafka says that a transaction is open at `offset`."""
        if stream in self.assignment.held:
            return
        try:
            found = await blocked.find_blocked(admin, topic)
        except OverlayError as error:
            log.info("an index topic cannot be looked at", topic=topic, reason=str(error))
            return
        if found is not None and found.offset == offset:
            self.assignment.held[stream] = reason = found.explain(stream)
            log.warning("stream waits", stream=stream, reason=reason)

    def read(self) -> None:
        """Add what was fetched since the last call to the streams' indexes and ledgers; does not
        wait for more.

        Raises SourceUnavailable if a topic is not the log that was read, or cannot be read.
        """
        for stream, partition_fetch in self._partition_fetches.items():
            match partition_fetch.take():
                case Fetched() as fetched:
                    self.assignment.indexes[stream].take(partition_fetch.topic, fetched)
                case None:
                    pass
                case _:
                    raise SourceUnavailable(
                        f"{partition_fetch.topic}: the ledger of stream {stream} cannot be read on. Looking again"
                    )


def follow_given_out(
    cursors: Cursors, given_out: Mapping[str, int], changed: asyncio.Event
) -> Callable[[Sequence[int]], None] | None:
    """Return a callback for after the commit; None if `given_out` is empty. The callback records the
    sequences below those in `given_out` (by stream, the next one) as committed, and sets `changed`.

    This function itself has the ledgers of streams with many new records pause (`Cursors.rest`).
    `changed` is also set when the longest pause is over.
    """
    if not given_out:
        return None
    if pause := cursors.rest(given_out, monotonic()):
        asyncio.get_running_loop().call_later(pause, changed.set)

    def note_committed(_: Sequence[int]) -> None:
        cursors.note_committed(given_out)
        changed.set()  # cursor groups may wait for committed sequences

    return note_committed
