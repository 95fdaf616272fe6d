"""Cursors without Kafka: fetches of any length arrive for any cursor, and rounds run on whatever is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.scan import Malformed
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import Fault, split
from overlay.state.shard_state import StreamPartition
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.cursors import Cursors, Moved
from overlay.worker.cursors.intake import Look
from overlay.worker.round.task import Corruption, Progress, RoundResult, Task

EMPTY = np.empty(0, np.uint8)


def make_fetched(position: int, next_offset: int, stable_end: int) -> Fetched:
    """Return a fetch of some offsets. Its content does not matter."""
    return Fetched(position, EMPTY, split(EMPTY).batches, NO_ABORTS, stable_end, 0, LogPosition(next_offset))


@dataclass(slots=True)
class Fetch:
    """The fetch of one cursor: `ready` begins where it was led to, and the next one at `position`."""

    partition: StreamPartition
    position: int
    ready: Fetched | None = None

    def lead(self, position: int) -> None:
        held = self.position == position if self.ready is None else self.ready.position <= position < self.position
        if not held:
            self.position, self.ready = position, None


@dataclass(slots=True)
class Player:
    """Plays the session. `ends`: of the logs; `read`: takes the offsets of a task that were processed; `corrupt`: by
    partition, the offsets that cannot be read."""

    cursors: Cursors
    ends: Mapping[TopicPartition, int]
    read: Callable[[Task, range], None]
    corrupt: Mapping[TopicPartition, Set[int]] = field(default_factory=dict)
    fetches: dict[Cursor, Fetch] = field(default_factory=dict)
    stopped: dict[Cursor, Fetch] = field(default_factory=dict)
    """The last fetches of halted cursors, which may still be answered."""

    def follow(self) -> None:
        for cursor in self.cursors.take_gone():
            self.fetches.pop(cursor, None)
            self.stopped.pop(cursor, None)
        for partition, cursor, wish in self.cursors.take_wishes():
            if wish is None:
                if (fetch := self.fetches.pop(cursor, None)) is not None:
                    self.stopped[cursor] = fetch
            else:
                at = wish.log_position.position
                self.fetches.setdefault(cursor, Fetch(partition, at)).lead(at)

    def fetch(self, which: int, length: int) -> None:
        """Let some offsets arrive for a cursor that has none."""
        self.follow()
        if fetches := list(self.fetches.values()):
            fetch = fetches[which % len(fetches)]
            end = self.ends[fetch.partition[1]]
            if fetch.ready is None and fetch.position < end:
                fetch.ready = make_fetched(fetch.position, min(end, fetch.position + length), end)
                fetch.position = fetch.ready.next_offset

    def fetch_all(self, length: int) -> None:
        self.follow()
        for which in range(len(self.fetches)):
            self.fetch(which, length)

    def run_round(self, give_out: Callable[[list[Task]], None] = lambda tasks: None) -> tuple[bool, Moved]:
        """Whether there was anything to be worked on, and what moved. `give_out`: gives sequences to what is read."""
        self.follow()
        looks = {cursor: Look(fetch.ready, self.ends[fetch.partition[1]]) for cursor, fetch in self.fetches.items()}
        made = self.cursors.take_round(looks, 0.0)
        for _, cursor, _ in made.taken:
            self.fetches[cursor].ready = None
        self.follow()
        give_out(made.tasks)
        progress: list[Progress] = []
        corruptions: list[Corruption] = []
        for task in made.tasks:
            end = max(task.position, min(task.stop, task.fetched.next_offset))
            bad = self.corrupt.get(task.source, set()) & set(range(task.position, end))
            reached = min(bad, default=end)
            self.read(task, range(task.position, reached))
            progress.append(Progress(task, LogPosition(reached), stopped=bool(bad)))
            if bad:
                malformed = Malformed(Fault.CRC, reached, reached + 1)
                corruptions.append(Corruption(task.stream, task.source, malformed, skipped=False))
        moved = self.cursors.advance(made.owners, RoundResult(progress, corruptions=corruptions), 0)
        self.follow()
        return bool(made.tasks), moved
