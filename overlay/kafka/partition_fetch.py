"""A partition fetch: one reading position in a partition, and what has come for it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aiokafka.structs import TopicPartition

from overlay.clock import monotonic

from .fetched import Changed, Denied, Fetched, Lost
from .gate import Gate
from .log_cut import NO_EPOCH


class Filler(Protocol):
    """What fills a partition fetch: its fetcher."""

    changed: asyncio.Event
    """Set when the partition fetch has something ready, or learns another end."""

    def wake(self) -> None:
        """Check again which partition fetches need a fetch."""

    def hand(self, partition_fetch: PartitionFetch, fetched: Fetched) -> None:
        """Make data from the position on the ready data, or hold it for the gate."""


class PartitionFetch:
    """One reading position in a partition, and the next data for it. `take` empties `ready` and returns it: Fetched,
    Lost, Changed or Denied, or None if nothing is there; it never waits. While `ready` is empty and `position` is
    below the offset `stop`, the fetcher fetches the next data without being asked, but not while READY_BYTES wait to
    be taken, unless it is `urgent`. The data may reach beyond `stop`.
    """

    def __init__(
        self,
        fetcher: Filler,
        topic: str,
        partition: int,
        position: int,
        stop: int,
        size: int | None = None,
        epoch: int = NO_EPOCH,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate
        self.held: Fetched | None = None
        """Data that waits for the gate; it becomes ready, or the part of it that need not wait. Data that is held
        counts as there: nothing more is fetched, and `position` is behind it.
        """
        self.topic, self.partition, self.position, self.stop = topic, partition, position, stop
        self.tp = TopicPartition(topic, partition)
        self.epoch = epoch
        """Leader epoch of the batch before `position`. With NO_EPOCH (not known) the fetcher does
        not compare epochs.
        """
        self.size = size
        """Bytes from `position` to `stop`; None if unknown."""
        self.stable_end = -1
        """Last stable offset of the latest response; -1 before the first one."""
        self.end = -1
        """High watermark of the latest response; -1 before the first one."""
        self.ready: Fetched | Lost | Changed | Denied | None = None
        self.in_flight = False
        self.is_compacted = False
        """Whether the last offsets of the topic may have no batch: compaction removes batches, and an
        election may then take the end of the log down to where some were. If nothing is left up to
        `stop`, the next data is empty. Not for topics whose segments may be in remote storage, which
        compacted topics cannot be: a broker also answers without data while it loads these.
        """
        self.since = monotonic()
        """When it was started, or moved by `seek`, monotonic seconds."""
        self.asked = self.answered = -1.0
        """When its latest fetch was sent, and when that of its latest answer was, monotonic seconds; -1 before."""
        self._is_paused = False
        self._urgent = False
        self._fetcher = fetcher

    @property
    def is_idle(self) -> bool:
        """Return whether it wants data now: nothing is ready or held, no fetch is in flight, and `stop`
        is not reached.
        """
        return self.is_empty and not self.in_flight and self.position < self.stop and not self._is_paused

    @property
    def is_empty(self) -> bool:
        """Return whether no data is ready or held."""
        return self.ready is None and self.held is None

    def holds(self, position: int) -> bool:
        """Return whether a read at `position` needs no `seek`: the offset is in the data that is
        ready or held, or, without such data, the next fetch begins there.
        """
        there = self.held or self.ready
        if isinstance(there, Fetched):
            return there.position <= position < self.position
        return position == self.position

    @property
    def urgent(self) -> bool:
        """Whether other partition fetches wait for this one. It is then fetched even if READY_BYTES
        are waiting.
        """
        return self._urgent

    @urgent.setter
    def urgent(self, is_urgent: bool) -> None:
        if is_urgent and not self._urgent:
            self._fetcher.wake()
        self._urgent = is_urgent

    def take(self) -> Fetched | Lost | Changed | Denied | None:
        """Return what is ready, None if nothing is, and empty `ready`, so that the fetcher fetches
        the next data. Does not wait.

        Lost, Changed or Denied becomes ready again by the next fetch, until the caller calls `seek`.
        """
        taken, self.ready = self.ready, None
        if taken is not None:
            self._fetcher.wake()
        return taken

    def rest(self) -> None:
        """Send no more fetches for it, until `go_on` sets another `stop`, and drop the data that is ready. A fetch in
        flight may still fill `ready`.
        """
        self.stop, self.ready, self.held = 0, None, None
        self._fetcher.wake()

    def go_on(self, stop: int) -> None:
        """Replace `stop`. Once `position` has reached it nothing more is fetched; the last data may reach beyond it."""
        self.stop = stop
        self._fetcher.wake()

    def pause(self) -> None:
        """Send no more fetches for it until `resume`, which may come soon: other fetches must not wait for long."""
        self._is_paused = True

    def resume(self) -> None:
        """Fetch again after `pause`."""
        if self._is_paused:
            self._is_paused = False
            self._fetcher.wake()

    def wake(self) -> None:
        """Have its fetcher check again whether it needs a fetch."""
        self._fetcher.wake()

    def offer(self, fetched: Fetched) -> None:
        """Take data that another fetch has brought, as `Fetcher.hand` does."""
        self._fetcher.hand(self, fetched)

    def learn_ends(self, stable_end: int, end: int) -> None:
        """Take the last stable offset and the high watermark that another fetch has been told."""
        has_learnt, self.stable_end, self.end = self.stable_end != stable_end, stable_end, end
        if has_learnt:
            self._fetcher.changed.set()

    def seek(self, position: int, epoch: int = NO_EPOCH) -> None:
        """Continue at another position. Drop the data that is ready, and ignore a fetch in flight that began at
        another position. `epoch`: leader epoch of the batch before that position, if known.
        """
        self.position, self.epoch, self.ready, self.held = position, epoch, None, None
        self.since = monotonic()
        self._fetcher.wake()
