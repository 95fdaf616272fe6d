"""num_pending while rounds pass: how many records of a consumer's subjects lie ahead of it. No IO.

There are two sources for it:

- A consumer that has read up to the last stable offset has nothing ahead of it but the rest of the
  same slice. That needs no index and costs next to nothing; it serves consumers at the tail.
- For a consumer that is behind, chunk headers count the records, minus those it has passed since
  (overlay/index/pending/backlog.py). The count is exact once headers reach from its position to the
  end of the log. A slice that reaches the end makes up for records that no header covers.

Otherwise the number is unknown, and reply tokens say 0 (docs/consumers.md). Tokens also say 0 if
the number is an estimate. That is so in compacted topics, while new records arrive that no header
covers, and if a filter made the reader skip a part of a chunk. A consumer info request gets the
estimate, marked as one.

In a stream of several partitions all of them count, each from where the consumer is when the record
goes out.

Only consumers that want something of a slice are looked at. Records count if they match the
consumer's subjects (and its `filter.values`, if these are subjects), whether or not the rest of its
filter lets them through: they are pending until it has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig
from overlay.index.pending.backlog import Backlog
from overlay.index.pending.estimate import simplify
from overlay.index.skip.chunks import Chunks
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition
from overlay.match.values import narrow
from overlay.scan.decode import Records
from overlay.state.shard_state import ConsumerId, StreamPartition

from .task import Reader, Task

CONTROL = 1 << 5
"""The attribute bit of control batches, which hold no records but the end of a transaction."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a consumer has ahead of it in one partition: `count` matching records below the offset
    `end`. `is_exact`: whether that is exactly known."""

    count: int
    is_exact: bool
    end: int


NOTHING_AHEAD = Sight(0, True, 0)
UNKNOWN = Sight(0, False, 0)


class _Behind(NamedTuple):
    """A partition that the readers of a task have not read to `end`, the last stable offset; -1 if
    unknown.

    `chunks`: None if the index has none ahead of `position`.
    """

    source: TopicPartition
    position: int
    end: int
    chunks: Chunks | None


@dataclass(slots=True)
class PendingEstimate:
    """The num_pending of a session's consumers, kept up to date from round to round.

    `compacted`: topics from which compaction removes records. Not thread-safe. The thread that
    submits rounds may call `find` at any time, `publish` and `settle` between rounds; everything
    else belongs to the thread that processes rounds.
    """

    streams: Mapping[str, StreamConfig]
    indexes: Mapping[str, Index]
    compacted: Collection[str] = ()
    _backlogs: dict[StreamPartition, dict[ConsumerId, Backlog]] = field(default_factory=dict)
    """Counts of consumers that are behind the end of the index, by partition."""
    _sights: dict[tuple[ConsumerId, TopicPartition], Sight] = field(default_factory=dict)
    """What these consumers had ahead of them when they last wanted something, as of the last
    finished round."""
    _news: dict[tuple[ConsumerId, TopicPartition], Sight | None] = field(default_factory=dict)
    """What the current round changes in `_sights`; None if it is unknown from now on."""
    _reached: dict[tuple[str, int, TopicPartition], int] = field(default_factory=dict)
    """Offsets reached in the current round, by stream, cursor group and partition."""
    _told: dict[ConsumerId, int] = field(default_factory=dict)
    """How much lies ahead beyond the offers, as machines were last told; consumers without an entry
    were told 0."""

    def begin_round(self) -> None:
        """Forget how far the tasks of the last round came. Call before the tasks of the next
        one."""
        self._reached.clear()

    def open(self, task: Task) -> View:
        """Return the object that counts what is ahead of a task's readers. The task's slices are to
        be passed to it in order.

        If no chunk header covers anything ahead, what was counted for these readers is forgotten.
        """
        place = task.stream, task.source
        chunks = self._find_chunks(*place, task.position)
        if chunks is None and (passed := self._backlogs.get(place)):
            for reader in task.readers:
                passed.pop(reader.id, None)
                self._news[reader.id, task.source] = None
        return View(self, task, chunks, self._backlogs.setdefault(place, {}))

    def publish(self) -> None:
        """Make what the last round has counted visible to `find`. Call after the cursors were moved
        by that round."""
        for key, sight in self._news.items():
            if sight is None:
                self._sights.pop(key, None)
            else:
                self._sights[key] = sight
        self._news.clear()

    def find(self, consumer: ConsumerId, source: TopicPartition) -> Sight | None:
        """Return what a consumer had ahead of it in a partition when a slice last had records for
        it; None if unknown. As of the last `publish`."""
        return self._sights.get((consumer, source))

    def forget(self, consumers: Collection[ConsumerId]) -> None:
        """Forget what was counted for these consumers: they want something else now, or are gone. Call between two
        rounds."""
        for backlogs in self._backlogs.values():
            for consumer in consumers:
                backlogs.pop(consumer, None)
        for kept in (self._sights, self._news):
            for key in [key for key in kept if key[0] in consumers]:
                del kept[key]
        for consumer in consumers:
            self._told.pop(consumer, None)

    def settle(self, is_done: Callable[[ConsumerId], bool]) -> dict[ConsumerId, int]:
        """Return a count of 0 for each consumer that has reached the end of the log and whose
        machine was last told that records lie ahead. Each is returned once.

        Needed for consumers that skipped to the end: no task has told their machines. `is_done`:
        whether a consumer is at the end.
        """
        done = {consumer: 0 for consumer in self._told if is_done(consumer)}
        for consumer in done:
            del self._told[consumer]
        return done

    def _find_chunks(self, stream: str, source: TopicPartition, position: int) -> Chunks | None:
        """Return the chunks of a partition, None if none of them ends behind `position`."""
        index = self.indexes.get(stream)
        chunks = None if index is None else index.chunks.get(source)
        return chunks if chunks is not None and len(chunks) and int(chunks.next_offset[-1]) > position else None

    def _make_backlog(self, place: StreamPartition, reader: Reader, position: int, chunks: Chunks) -> Backlog:
        """Return a new count of the records from `position` on that match the reader's subjects, and its filter
        values if these are subjects, by the headers of `chunks`.
        """
        subjects = narrow(reader.subjects, reader.values)
        backlog = Backlog(simplify(self.streams[place[0]], subjects) if subjects else (), position)
        backlog.learn(chunks)
        return backlog

    def _look(self, backlog: Backlog, source: TopicPartition, end: int) -> Sight:
        """Return what a backlog counts below the offset `end`, and whether that is exact; in a
        compacted topic only 0 is."""
        ahead = backlog.pending_at(end)
        is_exact = ahead.is_whole and ahead.is_exact and (not ahead.count or source[0] not in self.compacted)
        return Sight(ahead.count, is_exact, end)

    def _list_behind(self, task: Task) -> list[_Behind]:
        """Return the partitions of the task's stream, without the task's own, that the task's
        readers have not read to the end, or whose end is unknown. Empty if its cursor is in no
        group."""
        behind = []
        for source, (position, end) in task.others.items():
            position = max(position, self._reached.get((task.stream, task.cursor_group, source), 0))
            if end < 0 or position < end:
                behind.append(_Behind(source, position, end, self._find_chunks(task.stream, source, position)))
        return behind

    def _look_aside(self, stream: str, reader: Reader, behind: Iterable[_Behind]) -> Sight:
        """Return how many matching records a reader has ahead of it in all partitions of `behind`
        together. A partition without chunks ahead counts as 0 and makes the result inexact. `end` of
        the result means nothing."""
        count, is_exact = 0, True
        for source, position, end, chunks in behind:
            if chunks is None:
                is_exact = False
                continue
            place = stream, source
            known = self._backlogs.setdefault(place, {})
            backlog = known.get(reader.id)
            if backlog is None or not min(position, int(chunks.first_offset[0])) <= backlog.position <= position:
                backlog = known[reader.id] = self._make_backlog(place, reader, position, chunks)
            elif backlog.position < position:
                backlog.learn(chunks)
                backlog.skip(chunks, position, was_read=reader.takes_all)
            sight = self._look(backlog, source, end)
            count, is_exact = count + sight.count, is_exact and sight.is_exact and end >= 0
        return Sight(count, is_exact, 0)


@dataclass(slots=True)
class View:
    """Counts what lies ahead of the readers of one task while its slices are processed."""

    _pending_estimate: PendingEstimate
    _task: Task
    _chunks: Chunks | None
    """None if no header covers anything ahead."""
    _backlogs: dict[ConsumerId, Backlog]
    _position: int = field(init=False)

    def __post_init__(self) -> None:
        self._position = self._task.position

    def look(self, records: Records) -> Sight | None:
        """Return what each reader of the task has ahead of it after a slice, if that is the same for all: NOTHING_AHEAD at
        the end of all partitions, else UNKNOWN. None if it differs from reader to reader, since chunk headers count what is
        ahead or the task delivers selected offsets only."""
        behind = self._pending_estimate._list_behind(self._task)
        if self._chunks is not None or self._task.only is not None or any(each.chunks is not None for each in behind):
            return None
        # without headers ahead, the number is known only at the end of all partitions
        is_end = self._find_reach(records.next_offset) >= self._task.fetched.stable_end
        return NOTHING_AHEAD if is_end and not behind else UNKNOWN

    def pass_by(self, records: Records, wanted: Mapping[int, Ints], common: Sight | None) -> Mapping[int, Sight]:
        """Move on to the end of a slice. Return, by reader number, what the reader has ahead of it
        after the slice in all partitions, exactly or as an estimate. Nothing is known of a reader
        without an entry.

        `wanted`: by reader number, the rows of the slice that match its subjects, before its
        filter; at least one of each reader in it. `common`: what `look` has returned for the slice.
        """
        position = self._find_reach(records.next_offset)
        if common is not None:
            self._position = position
            return dict.fromkeys(wanted, common) if common.is_exact else {}
        fetched, only = self._task.fetched, self._task.only
        is_end, behind = position >= fetched.stable_end, self._pending_estimate._list_behind(self._task)
        found = {}
        for i, rows in wanted.items():
            reader = self._task.readers[i]
            if only is not None:
                sight = self._look_past_snapshot(reader, int(records.offset[rows[-1]]), only)
            elif self._chunks is not None:
                backlog = self._catch_up(reader, self._chunks)
                backlog.advance(position, records.offset[rows])
                sight = self._pending_estimate._look(backlog, self._task.source, fetched.stable_end)
            else:
                sight = Sight(0, is_end, fetched.stable_end)
            if self._chunks is not None or only is not None:
                self._pending_estimate._news[reader.id, self._task.source] = sight
            if behind:
                aside = self._pending_estimate._look_aside(self._task.stream, reader, behind)
                sight = Sight(sight.count + aside.count, sight.is_exact and aside.is_exact, sight.end)
            if sight.is_exact or sight.count:
                found[i] = sight
        self._position = position
        return found

    def close(self, position: int) -> dict[ConsumerId, int]:
        """Record that the task has reached the offset `position`. Return, by consumer, how many records
        lie ahead of it now, for the readers whose machines were last told a number other than 0 and
        other than this one. The caller tells the machines."""
        told = self._pending_estimate._told
        self._pending_estimate._reached[self._task.stream, self._task.cursor_group, self._task.source] = position
        self._position = max(self._position, position)
        readers = self._task.readers if told else ()
        now = {reader.id: self._look_again(reader) for reader in readers if reader.id in told}
        return self.tell({consumer: count for consumer, count in now.items() if count != told[consumer]})

    def tell(self, beyond: Mapping[ConsumerId, int]) -> dict[ConsumerId, int]:
        """Return the entries of `beyond` that machines have to be told, and record them as told. An
        entry of 0 is left out if the machine knows it already."""
        told = self._pending_estimate._told
        news = {consumer: count for consumer, count in beyond.items() if count or consumer in told}
        for consumer, count in news.items():
            if count:
                told[consumer] = count
            else:
                del told[consumer]
        return news

    def _look_again(self, reader: Reader) -> int:
        """Return how many matching records lie ahead of a reader in all partitions, an estimate. Partitions without
        chunk headers ahead count as 0.
        """
        count = 0
        if self._chunks is not None:
            count = self._catch_up(reader, self._chunks).pending_at(self._task.fetched.stable_end).count
        behind = self._pending_estimate._list_behind(self._task)
        return count + self._pending_estimate._look_aside(self._task.stream, reader, behind).count

    def _catch_up(self, reader: Reader, chunks: Chunks) -> Backlog:
        """Return the reader's backlog (the count of records ahead of it), moved to the view's
        position. The caller knows that no record in between matched the reader's subjects."""
        place, backlog = (self._task.stream, self._task.source), self._backlogs.get(reader.id)
        floor = self._task.floors.get(reader.id, 0)
        # start anew below the log's start, since retention took records unread, and beyond the
        # view, since a reader that was sent back passes records again
        if backlog is None or not self._task.fetched.log_start <= backlog.position <= max(self._position, floor):
            at = max(self._position, floor)
            backlog = self._backlogs[reader.id] = self._pending_estimate._make_backlog(place, reader, at, chunks)
        else:
            backlog.learn(chunks)
            if backlog.position < self._position:
                backlog.skip(chunks, self._position, was_read=reader.takes_all)
        return backlog

    def _look_past_snapshot(self, reader: Reader, offset: int, only: Ints) -> Sight:
        """Return how many messages a reader of last messages has ahead: those of `only` after
        `offset`, and the matching records after its snapshot."""
        count, end = int(only.size - np.searchsorted(only, offset, side="right")), self._task.fetched.stable_end
        if end <= self._task.stop:
            return Sight(count, True, end)
        place = self._task.stream, self._task.source
        if (chunks := self._pending_estimate._find_chunks(*place, self._task.stop)) is None:
            return Sight(count, False, end)
        if reader.id not in self._backlogs:
            self._backlogs[reader.id] = self._pending_estimate._make_backlog(place, reader, self._task.stop, chunks)
        sight = self._pending_estimate._look(self._backlogs[reader.id], self._task.source, end)
        return Sight(count + sight.count, sight.is_exact, end)

    def _find_reach(self, position: int) -> int:
        """Return the offset at which a slice that ends at `position` really ends. If only control
        batches follow up to the end of the log, which have no records, that is behind them."""
        fetched = self._task.fetched
        if position >= fetched.next_offset or fetched.next_offset < fetched.stable_end:
            return position
        rest = fetched.batches[np.searchsorted(fetched.batches["last_offset"], position) :]
        is_over = bool((rest["attributes"] & CONTROL).all())
        return min(fetched.next_offset, self._task.stop) if is_over else position
