"""num_pending while rounds go by: how many records of a consumer's subjects lie ahead of it. No IO.

Two things tell:

- who has read up to the last stable offset has nothing ahead of it but what follows in the same slice. That needs no index
  and costs next to nothing, so it is what consumers at the tail go by
- who is behind goes by what chunk headers count, less what it has passed since (overlay/index/pending/backlog.py). It
  is exact once
  headers reach from its position to the end. A slice that comes to the end makes up for what headers do not reach

Otherwise it is not known, and tokens say 0 (interfaces). Tokens also say 0 where the sum is an estimate: in topics that are
compacted, while new records come that no header tells of, and where a filter has left out a part of a chunk. Whoever asks the
service sees the estimate, marked as one.

In a stream of several partitions all of them count, each as far as the consumer has come when the record goes out.

Only consumers that want something of a slice are looked at. What they want by their subjects counts, whether or not their
filters let it through: it is pending until it is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from overlay.config.stream import StreamConfig
from overlay.index.pending.backlog import Backlog
from overlay.index.pending.estimate import simplify
from overlay.index.skip.chunks import Chunks
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition
from overlay.match.values import narrow
from overlay.scan.columns import Ints
from overlay.scan.decode import Records
from overlay.state.shard_state import ConsumerId
from overlay.worker.cursors.positions import Place

if TYPE_CHECKING:
    from .pipeline import Reader, Task

CONTROL = 1 << 5
"""The attribute of batches that hold no records but the end of a transaction."""


@dataclass(frozen=True, slots=True)
class Sight:
    """`count` records ahead, of those that lie below `end`."""

    count: int
    is_exact: bool
    end: int


NOTHING_AHEAD = Sight(0, True, 0)


class _Behind(NamedTuple):
    """A partition that its readers have not read to `end`, -1 for not known. `chunks`: None where none lie ahead."""

    source: TopicPartition
    position: int
    end: int
    chunks: Chunks | None


@dataclass(slots=True)
class PendingEstimate:
    """`compacted`: topics that lose records out of their midst. Not for two threads at once. `find` and `publish` belong
    to the thread that hands in rounds, the rest to the one that works on them."""

    streams: Mapping[str, StreamConfig]
    indexes: Mapping[str, Index]
    compacted: Collection[str] = ()
    _backlogs: dict[Place, dict[ConsumerId, Backlog]] = field(default_factory=dict)
    """Of consumers that are behind the end of the index."""
    _sights: dict[tuple[ConsumerId, TopicPartition], Sight] = field(default_factory=dict)
    """Of these consumers, what they had ahead of them when they last wanted something, up to the last round that is over."""
    _news: dict[tuple[ConsumerId, TopicPartition], Sight | None] = field(default_factory=dict)
    """What the round that is under way has to say of that; None where it is not known any more."""
    _reached: dict[tuple[str, int, TopicPartition], int] = field(default_factory=dict)
    """In this round, by stream, cursor group and partition."""
    _told: dict[ConsumerId, int] = field(default_factory=dict)
    """What machines were told lies beyond their offers, where that is not 0."""

    def begin_round(self) -> None:
        self._reached.clear()

    def open(self, task: Task) -> View:
        """The view of one task, for its slices one after the other."""
        place = task.stream, task.source
        chunks = self._find_chunks(*place, task.position)
        if chunks is None and (passed := self._backlogs.get(place)):
            for reader in task.readers:
                passed.pop(reader.id, None)
                self._news[reader.id, task.source] = None
        return View(self, task, chunks, self._backlogs.setdefault(place, {}))

    def publish(self) -> None:
        """Have `find` tell what the last round has seen. Call when the cursors have been moved to where that round came."""
        for key, sight in self._news.items():
            if sight is None:
                self._sights.pop(key, None)
            else:
                self._sights[key] = sight
        self._news.clear()

    def find(self, consumer: ConsumerId, source: TopicPartition) -> Sight | None:
        """What a consumer that is behind had ahead of it when it last wanted something; None when that is not known."""
        return self._sights.get((consumer, source))

    def settle(self, is_done: Callable[[ConsumerId], bool]) -> dict[ConsumerId, int]:
        """What machines are to be told whose consumers have come to the end: those that leapt there had no task for it."""
        done = {consumer: 0 for consumer in self._told if is_done(consumer)}
        for consumer in done:
            del self._told[consumer]
        return done

    def _find_chunks(self, stream: str, source: TopicPartition, position: int) -> Chunks | None:
        """The chunks of a partition, None where none of them ends behind a position."""
        index = self.indexes.get(stream)
        chunks = None if index is None else index.chunks.get(source)
        return chunks if chunks is not None and len(chunks) and int(chunks.next_offset[-1]) > position else None

    def _make_backlog(self, place: Place, reader: Reader, position: int, chunks: Chunks) -> Backlog:
        subjects = narrow(reader.subjects, reader.values)
        backlog = Backlog(simplify(self.streams[place[0]], subjects) if subjects else (), position)
        backlog.learn(chunks)
        return backlog

    def _look(self, backlog: Backlog, source: TopicPartition, end: int) -> Sight:
        ahead = backlog.pending_at(end)
        is_exact = ahead.is_whole and ahead.is_exact and (not ahead.count or source[0] not in self.compacted)
        return Sight(ahead.count, is_exact, end)

    def _list_behind(self, task: Task) -> list[_Behind]:
        """The other partitions of the stream in which the readers of a task are not at the end."""
        behind = []
        for source, (position, end) in task.others.items():
            position = max(position, self._reached.get((task.stream, task.cursor_group, source), 0))
            if end < 0 or position < end:
                behind.append(_Behind(source, position, end, self._find_chunks(task.stream, source, position)))
        return behind

    def _look_aside(self, stream: str, reader: Reader, behind: Iterable[_Behind]) -> Sight:
        """What a consumer has ahead of it in other partitions."""
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
    """What lies ahead of the readers of one task, as it goes through its slices."""

    _pending_estimate: PendingEstimate
    _task: Task
    _chunks: Chunks | None
    """None where no header tells of anything ahead."""
    _backlogs: dict[ConsumerId, Backlog]
    _position: int = field(init=False)

    def __post_init__(self) -> None:
        self._position = self._task.position

    def pass_by(self, records: Records, wanted: Mapping[int, Ints]) -> Mapping[int, Sight]:
        """What the readers have ahead of them behind a slice. `wanted`: by reader, the rows of its subjects, before its filter;
        readers that are not in the answer do not know."""
        position = self._find_reach(records.next_offset)
        fetched, only = self._task.fetched, self._task.only
        is_end, behind = position >= fetched.stable_end, self._pending_estimate._list_behind(self._task)
        if self._chunks is None and only is None and all(each.chunks is None for each in behind):
            self._position = position
            return dict.fromkeys(wanted, NOTHING_AHEAD) if is_end and not behind else {}
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
        """The task has come to `position`: what lies ahead of consumers whose machines were told of something else."""
        told = self._pending_estimate._told
        self._pending_estimate._reached[self._task.stream, self._task.cursor_group, self._task.source] = position
        self._position = max(self._position, position)
        readers = self._task.readers if told else ()
        now = {reader.id: self._look_again(reader) for reader in readers if reader.id in told}
        return self.tell({consumer: count for consumer, count in now.items() if count != told[consumer]})

    def tell(self, beyond: Mapping[ConsumerId, int]) -> dict[ConsumerId, int]:
        """What machines are to be told that lies beyond their offers; nothing of those for whom it is nothing, as before."""
        told = self._pending_estimate._told
        news = {consumer: count for consumer, count in beyond.items() if count or consumer in told}
        for consumer, count in news.items():
            if count:
                told[consumer] = count
            else:
                del told[consumer]
        return news

    def _look_again(self, reader: Reader) -> int:
        count = 0
        if self._chunks is not None:
            count = self._catch_up(reader, self._chunks).pending_at(self._task.fetched.stable_end).count
        behind = self._pending_estimate._list_behind(self._task)
        return count + self._pending_estimate._look_aside(self._task.stream, reader, behind).count

    def _catch_up(self, reader: Reader, chunks: Chunks) -> Backlog:
        """The reader's backlog at the view's position, of which it has wanted nothing since it was looked at last."""
        place, backlog = (self._task.stream, self._task.source), self._backlogs.get(reader.id)
        floor = self._task.floors.get(reader.id, 0)
        # what retention took was never passed, and who was sent back passes some of it again
        if backlog is None or not self._task.fetched.log_start <= backlog.position <= max(self._position, floor):
            at = max(self._position, floor)
            backlog = self._backlogs[reader.id] = self._pending_estimate._make_backlog(place, reader, at, chunks)
        else:
            backlog.learn(chunks)
            if backlog.position < self._position:
                backlog.skip(chunks, self._position, was_read=reader.takes_all)
        return backlog

    def _look_past_snapshot(self, reader: Reader, offset: int, only: Ints) -> Sight:
        """What is left of last messages behind an offset, and what came after the snapshot was taken."""
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
        """Where a slice ends that goes to `position`: what follows may be the ends of transactions and nothing else."""
        fetched = self._task.fetched
        if position >= fetched.next_offset or fetched.next_offset < fetched.stable_end:
            return position
        rest = fetched.batches[np.searchsorted(fetched.batches["last_offset"], position) :]
        is_over = bool((rest["attributes"] & CONTROL).all())
        return min(fetched.next_offset, self._task.stop) if is_over else position
