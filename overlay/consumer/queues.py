"""Two queues of messages: those that the stream offers for the first time, and those that go out again.

Both hold arrays as they came and hand out runs of them; nobody copies a message's numbers before it is its turn. An entry of
the redelivery queue counts only while its row says that it is queued in just this place: an ack needs no search in the
queue, it changes the row.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints

from .pending import Pending, Row


@dataclass(frozen=True, slots=True)
class Run:
    """Messages in order. `sequences`: in the stream; `times`: ns when stored; `sizes`: bytes of subject, headers and value."""

    sequences: Ints
    times: Ints
    sizes: Ints

    def __len__(self) -> int:
        return self.sequences.size

    def cut(self, first: int, end: int) -> Run:
        return Run(self.sequences[first:end], self.times[first:end], self.sizes[first:end])

    def keep(self, kept: Ints) -> Run:
        return Run(self.sequences[kept], self.times[kept], self.sizes[kept])


class Offers:
    """Messages that match and have not been delivered."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.count = 0

    def put(self, run: Run) -> None:
        """Add messages behind all others."""
        if len(run):
            self._runs.append(run)
            self.count += len(run)

    def peek(self) -> tuple[int, int, int]:
        """Sequence, store time and size of the next message. There is one."""
        run = self._runs[0]
        return int(run.sequences[0]), int(run.times[0]), int(run.sizes[0])

    def take(self, most: int) -> Run:
        """The next messages, `most` or fewer, but one at least."""
        run = self._runs.popleft()
        if len(run) > most:
            self._runs.appendleft(run.cut(most, len(run)))
            run = run.cut(0, most)
        self.count -= len(run)
        return run

    def find_next_up(self, most: int) -> Run:
        """The next messages without taking them, `most` or fewer."""
        cut: list[Run] = []
        for run in self._runs:
            if most <= 0:
                break
            cut.append(run.cut(0, min(most, len(run))))
            most -= len(run)
        names = ("sequences", "times", "sizes")
        return Run(*(np.concatenate([np.empty(0, np.int64), *(getattr(run, name) for run in cut)]) for name in names))

    def remove(self, below: int, sequences: Ints) -> int:
        """Drop messages that left the stream; returns how many."""
        before = self.count
        kept = [run.keep(_stays(run.sequences, below, sequences)) for run in self._runs]
        self._runs = deque(run for run in kept if len(run))
        self.count = sum(map(len, self._runs))
        return before - self.count

    def clear(self) -> None:
        self._runs.clear()
        self.count = 0


def _stays(own: Ints, below: int, removed: Ints) -> Ints:
    return np.flatnonzero((own >= below) & ~np.isin(own, removed))


@dataclass(slots=True)
class Redeliveries:
    """The redelivery queue. `ticket`: the place that the next entry takes; a queued row's deadline is its place."""

    ticket: int = 0
    _runs: deque[tuple[int, Ints]] = field(default_factory=deque)

    def put(self, pending: Pending, rows: Ints) -> None:
        """Queue rows, in this order."""
        if not rows.size:
            return
        pending.become(rows, Row.QUEUED)
        pending.column["deadline"][rows] = np.arange(self.ticket, self.ticket + rows.size)
        self._runs.append((self.ticket, pending.view("sequence")[rows].copy()))
        self.ticket += rows.size

    def restore(self, pending: Pending) -> None:
        """The queue that a table tells of."""
        rows = np.flatnonzero(pending.view("state") == Row.QUEUED)
        rows = rows[np.argsort(pending.view("deadline")[rows])]
        self._runs.clear()
        self.put(pending, rows)

    def peek(self, pending: Pending) -> int:
        """The next row that is still queued; -1 without any."""
        while self._runs:
            ticket, sequences = self._runs[0]
            rows = _find_queued(pending, ticket, sequences[:1])
            if rows.size:
                return int(rows[0])
            if not pending.counts[Row.QUEUED]:
                self._runs.clear()
            else:
                self._drop(1)
        return -1

    def take(self, pending: Pending, most: int) -> Ints:
        """Rows of the next entries, `most` or fewer; none only when none is queued."""
        while self._runs:
            ticket, sequences = self._runs[0]
            rows = _find_queued(pending, ticket, sequences[:most])
            self._drop(min(most, sequences.size))
            if rows.size:
                return rows
        return np.empty(0, np.int64)

    def find_next_up(self, pending: Pending, most: int) -> Ints:
        """Rows of the next entries without taking them, `most` or fewer."""
        found = [np.empty(0, np.int64)]
        for ticket, sequences in self._runs:
            if most <= 0:
                break
            found.append(_find_queued(pending, ticket, sequences)[:most])
            most -= found[-1].size
        return np.concatenate(found)

    def _drop(self, count: int) -> None:
        ticket, sequences = self._runs.popleft()
        if count < sequences.size:
            self._runs.appendleft((ticket + count, sequences[count:]))


def _find_queued(pending: Pending, ticket: int, sequences: Ints) -> Ints:
    """Rows that are queued under the tickets from `ticket` on. Sequences need not rise."""
    own = pending.view("sequence")
    at = np.searchsorted(own, sequences)
    tickets = np.arange(ticket, ticket + sequences.size)
    known = at < pending.end
    at, sequences, tickets = at[known], sequences[known], tickets[known]
    state, place = pending.view("state")[at], pending.view("deadline")[at]
    found: Ints = at[(own[at] == sequences) & (state == Row.QUEUED) & (place == tickets)]
    return found
