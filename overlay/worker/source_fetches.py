"""The fetches of a session's cursors: does what the cursors wish, and handles positions that a log
does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.clock import now_ms
from overlay.errors import SourceChanged
from overlay.kafka.admin import Admin
from overlay.kafka.fetched import Changed, Denied, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.gate import Gate
from overlay.kafka.lost_position import find_start, refuse
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.logs import get_logger
from overlay.metrics import Metrics
from overlay.state.shard_state import StreamPartition

from .cursors.cursor import Cursor
from .cursors.cursors import Cursors, Moved, Wish
from .cursors.intake import Look, Round

log = get_logger(__name__)

BACKLOG_BYTES = 1 << 19
"""Bytes of one fetch from which on a partition that has more to read counts as a backlog."""


@dataclass(slots=True)
class SourceFetches:
    """The fetches for a session's cursors (shared reading positions): at most one partition fetch for each cursor.
    That of a halted cursor rests.
    """

    cursors: Cursors
    fetcher: Fetcher
    admin: Admin
    metrics: Metrics
    gates: Mapping[str, Gate] = field(default_factory=dict)
    """By stream, what holds records back. Streams without one are passed on at once."""
    _fetches: dict[Cursor, PartitionFetch] = field(default_factory=dict)
    _counted: int = 0
    """Bytes of the fetcher that are counted already."""

    def follow(self) -> None:
        """Start, move or stop fetches as the cursors now need them; does not wait for data. Also
        counts the chunks that the cursors skip by the index."""
        for cursor in self.cursors.take_gone():
            if fetch := self._fetches.pop(cursor, None):
                self.fetcher.shut(fetch)
        for partition, cursor, wish in self.cursors.take_wishes():
            self._follow(partition, cursor, wish)
        for stream, saving in self.cursors.savings:
            self.metrics.chunks.labels(stream, "no").inc(saving.skipped_chunks)
            self.metrics.chunks.labels(stream, "maybe").inc(saving.read_chunks)
        self.cursors.savings.clear()

    def look(self) -> dict[Cursor, Look]:
        """Return, for each cursor that has a fetch, the fetched data that is ready (None if there is
        none or the fetch has failed) and its partition's last stable offset (-1 if unknown). The data
        stays with the fetch until `take`."""
        return {
            cursor: Look(fetch.ready if isinstance(fetch.ready, Fetched) else None, fetch.stable_end)
            for cursor, fetch in self._fetches.items()
        }

    def take(self, made: Round) -> None:
        """Remove the data that a round has taken from its fetches, so that the fetcher fetches what
        follows. Counts its records, and the bytes fetched."""
        for (stream, _), cursor, fetched in made.taken:
            self._fetches[cursor].take()
            self.metrics.records_fetched.labels(stream).inc(fetched.records)
        self.metrics.bytes_fetched.inc(self.fetcher.bytes_fetched - self._counted)
        self._counted = self.fetcher.bytes_fetched

    def has_backlog(self, made: Round) -> bool:
        """Return whether a cursor of this round has much more to read, and no cursor of the round with
        consumers has come to the end of its partition, or may have. At the tail, readers wait for each
        commit, and a commit that waits for more of the backlog would make them wait as well.

        Much means that its data in the round was at least BACKLOG_BYTES, and that more offsets are
        still to be fetched.
        """
        left = [self._count_left(cursor) for _, cursor in made.owners]
        has_much = any(
            task.fetched.data.size >= BACKLOG_BYTES and count > 0 for task, count in zip(made.tasks, left, strict=True)
        )
        at_tail = (cursor.members for (_, cursor), count in zip(made.owners, left, strict=True) if count <= 0)
        return has_much and not any(at_tail)

    async def recover(self) -> Moved:
        """Handle the fetches that have failed. Return what the state must record for it, empty if
        no cursor was moved.

        A cursor whose position is no longer in the log, because of retention, goes on at the log's
        start; a halted one stays. Raises SourceChanged if Kafka denies access, or if the log was truncated below a
        cursor's position; SourceUnavailable if Kafka does not tell where the log starts.
        """
        first: dict[Cursor, int] = {}
        for partition, cursor in self.cursors.all():
            stream, source = partition
            advice = f"Run `overlay stream reset {stream}` to start anew"
            try:
                match self._fetches[cursor].ready if cursor in self._fetches else None:
                    case Denied(reason):
                        raise SourceChanged(reason)  # stops the stream, not the shard
                    case Changed() as found:
                        raise refuse(found, source, advice)
                    case Lost():
                        first[cursor] = await find_start(self.admin, source, cursor.position, advice)
            except SourceChanged as error:
                error.stream = stream
                raise
            # a halted cursor does not move; the next session counts what it has lost
            if not cursor.is_halted and (lost := first.get(cursor, 0) - cursor.position) > 0:
                self._note_loss(partition, cursor, lost)
        if not first:
            return Moved(set(), set())
        moved = self.cursors.pass_retention(first, now_ms())
        for cursor in first.keys() & self._fetches.keys():
            self._fetches[cursor].seek(cursor.position, cursor.log_position.epoch)
        return moved

    def _follow(self, partition: StreamPartition, cursor: Cursor, wish: Wish | None) -> None:
        """Make a cursor's fetch read where the cursor wishes; `wish` is None for a halted cursor,
        whose fetch stops. Data that is there already and is needed is kept.

        A fetch may move backwards: it may have been set beyond parts that the cursor had planned to
        skip before it joined a cursor that skips nothing.
        """
        fetch = self._fetches.get(cursor)
        if wish is None:
            if fetch is not None:
                fetch.rest()
            return
        at = wish.log_position
        if fetch is None:
            size = wish.find_size(at.position)
            fetch = self._fetches[cursor] = self.fetcher.start(
                *partition[1], at.position, size=size, epoch=at.epoch, gate=self.gates.get(partition[0])
            )
        elif not fetch.holds(at.position):
            fetch.seek(at.position, at.epoch)
        fetch.size = wish.find_size(fetch.position)
        fetch.urgent = wish.is_urgent

    def _count_left(self, cursor: Cursor) -> int:
        """Return how many offsets up to the last stable offset are still to be fetched for a
        cursor; 0 if it is halted or has no fetch, below 0 if the last stable offset is unknown."""
        fetch = self._fetches.get(cursor)
        return 0 if fetch is None or cursor.is_halted else fetch.stable_end - fetch.position

    def _note_loss(self, partition: StreamPartition, cursor: Cursor, lost: int) -> None:
        """Count and log records that retention deleted before a cursor read them.

        A cursor without consumers has lost nothing, such as one that only the index is made from: retention would
        delete its chunks as well.
        """
        if cursor.members:
            stream, source = partition
            self.metrics.records_lost.labels(stream).inc(lost)
            log.error("retention passed the position", stream=stream, partition=source, lost=lost)
