"""Two queues of messages: those offered for the first time, and those to be delivered again.

Both keep whole arrays and cut slices off them, so a message has no object of its own. An entry of
the redelivery queue is valid only while its row says that it is queued with this entry's ticket. So
an ack only changes the row and never has to search the queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Ints

from .pending import Pending, Row


@dataclass(frozen=True, slots=True)
class Run:
    """Messages in order, as columns (int64, one entry per message).

    `sequences`: stream sequences. `times`: ns since 1970 when stored. `sizes`: bytes of the
    subject, and of key, value and headers as they are encoded in the log.
    """

    sequences: Ints
    times: Ints
    sizes: Ints

    def __len__(self) -> int:
        return self.sequences.size

    def cut(self, first: int, end: int) -> Run:
        """Return the messages at the positions from `first` to `end`, `end` excluded."""
        return Run(self.sequences[first:end], self.times[first:end], self.sizes[first:end])

    def keep(self, kept: Ints) -> Run:
        """Return the messages at these positions (indices, rising)."""
        return Run(self.sequences[kept], self.times[kept], self.sizes[kept])


class Offers:
    """The queue of messages that match and have not been delivered, in stream order. `count`: how
    many.
    """

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self.count = 0

    def put(self, run: Run) -> None:
        """Append messages, whose stream sequences have to be above those of all others."""
        if len(run):
            self._runs.append(run)
            self.count += len(run)

    def peek(self) -> tuple[int, int, int]:
        """Return sequence, store time (ns since 1970) and size (bytes) of the next message.

        The queue must not be empty.
        """
        run = self._runs[0]
        return int(run.sequences[0]), int(run.times[0]), int(run.sizes[0])

    def take(self, most: int) -> Run:
        """Remove and return the next messages: at least one, at most `most`. There may be fewer
        although more are queued.

        The queue must not be empty, and `most` must be at least 1.
        """
        run = self._runs.popleft()
        if len(run) > most:
            self._runs.appendleft(run.cut(most, len(run)))
            run = run.cut(0, most)
        self.count -= len(run)
        return run

    def find_next_up(self, most: int) -> Run:
        """Return the next messages without removing them, at most `most`."""
        cut: list[Run] = []
        for run in self._runs:
            if most <= 0:
                break
            cut.append(run.cut(0, min(most, len(run))))
            most -= len(run)
        if len(cut) == 1:
            return cut[0]
        names = ("sequences", "times", "sizes")
        return Run(*(np.concatenate([np.empty(0, np.int64), *(getattr(run, name) for run in cut)]) for name in names))

    def remove(self, below: int, sequences: Ints) -> int:
        """Drop messages that left the stream: those with a stream sequence below `below` or among
        `sequences`. Return how many of them were in the queue.
        """
        before = self.count
        kept = [run.keep(_stays(run.sequences, below, sequences)) for run in self._runs]
        self._runs = deque(run for run in kept if len(run))
        self.count = sum(map(len, self._runs))
        return before - self.count

    def clear(self) -> None:
        """Drop all messages."""
        self._runs.clear()
        self.count = 0


def _stays(own: Ints, below: int, removed: Ints) -> Ints:
    stays = own >= below
    if removed.size:
        stays &= ~np.isin(own, removed)
    return np.flatnonzero(stays)


@dataclass(slots=True)
class Redeliveries:
    """The queue of messages to be delivered again. It refers to rows of the table of pending
    messages; an entry whose row has left the state QUEUED is passed over.

    `ticket`: the number of the next entry. A queued row has its entry's ticket in the table's
    deadline column.
    """

    ticket: int = 0
    _runs: deque[tuple[int, Ints]] = field(default_factory=deque)

    @classmethod
    def restore(cls, pending: Pending, ticket: int) -> Redeliveries:
        """Return the queue of the table's QUEUED rows, in the order of their tickets. They get new
        tickets, from `ticket` on.
        """
        rows = np.flatnonzero(pending.view("state") == Row.QUEUED)
        queue = cls(ticket)
        queue.put(pending, rows[np.argsort(pending.view("deadline")[rows])])
        return queue

    def put(self, pending: Pending, rows: Ints) -> None:
        """Mark these rows of the table as QUEUED, and append them to the queue in this order."""
        if not rows.size:
            return
        pending.queue(rows, self.ticket)
        self._runs.append((self.ticket, pending.view("sequence")[rows].copy()))
        self.ticket += rows.size

    def peek(self, pending: Pending) -> int:
        """Return the number of the next row that is still QUEUED, -1 if none is. It stays in the
        queue; entries before it are dropped.
        """
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
        """Remove the next entries, and return the numbers of their rows that are still QUEUED, at
        most `most`, which must be at least 1. The rows stay QUEUED in the table: the caller changes
        their state.

        There may be fewer although more are queued; empty only if no row is queued.
        """
        while self._runs:
            ticket, sequences = self._runs[0]
            rows = _find_queued(pending, ticket, sequences[:most])
            self._drop(min(most, sequences.size))
            if rows.size:
                return rows
        return np.empty(0, np.int64)

    def find_next_up(self, pending: Pending, most: int) -> Ints:
        """Return the numbers of the next rows that are still QUEUED, at most `most`. They stay in
        the queue.
        """
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
    """Return the numbers of the rows that are still QUEUED with the ticket of their entry. The
    entries have the tickets from `ticket` on.

    `sequences`: the stream sequence of each entry, in any order.
    """
    own = pending.view("sequence")
    at = own.searchsorted(sequences)
    tickets = np.arange(ticket, ticket + sequences.size)
    known = at < pending.end
    at, sequences, tickets = at[known], sequences[known], tickets[known]
    state, place = pending.view("state")[at], pending.view("deadline")[at]
    found: Ints = at[(own[at] == sequences) & (state == Row.QUEUED) & (place == tickets)]
    return found
