"""The table of deliveries that wait for their ack: columns, about fifty bytes per message and no
objects.

Messages are first delivered in stream order, so rows are in order of stream sequence and of first
consumer sequence at the same time. Rows are appended at the end and found by binary search under
either number. A settled row stays as GONE. Once GONE rows are the larger part, all of them are
dropped together. `lead` is the first row that is still pending. It only moves forward, because a
settled message never becomes pending again, and the ack floor ends there.

An EXHAUSTED row is not pending, because its deliveries are used up, but it is still known.
JetStream counts such messages as redelivered until they leave the stream.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from overlay.arrays import Bytes, Flags, Ints
from overlay.kernels import kernel

from .deadlines import NEVER

_FEW = 1024


class Row:
    """The states of a delivered message.

    WAITING for its ack, QUEUED for redelivery, DELAYED by a nak until its deadline, EXHAUSTED when
    its deliveries are used up (max_deliver), GONE when it is settled or has left the stream.

    Plain integers and no enum: numpy compares an array with a member of an enum in 7 us instead of
    0.6, which most steps of a machine with few messages would consist of.
    """

    GONE: Final = 0
    WAITING: Final = 1
    QUEUED: Final = 2
    DELAYED: Final = 3
    EXHAUSTED: Final = 4


_STATES = 5


COLUMNS: dict[str, type[np.generic]] = {
    "sequence": np.int64,
    "consumer_seq": np.int64,  # of the first delivery: floors count by it
    "first": np.int64,  # ns since 1970 of the first delivery
    "last": np.int64,  # ns since 1970 of the last one
    "deadline": np.int64,  # ns since 1970; of a queued row, its ticket in the queue
    "size": np.int32,
    "deliveries": np.int32,
    "state": np.uint8,
}


class Pending:
    """The table of a consumer's delivered messages; a row per message, in order of stream sequence.
    A row that is settled, or has left the stream, is GONE until `compact` removes it.

    `column` has the arrays by name (COLUMNS), with spare room at the end; `end` is the number of
    rows. `lead`: the first row that is neither GONE nor EXHAUSTED, `end` if there is none.

    `counts`: number of rows by state (Row). `redelivered`: rows that are not GONE and were
    delivered more than once.
    """

    def __init__(self, room: int = 64) -> None:
        self.end = self.lead = 0
        self.counts = [0] * _STATES
        self.redelivered = 0
        self.column: dict[str, npt.NDArray[Any]] = {name: np.empty(room, kind) for name, kind in COLUMNS.items()}

    @property
    def count(self) -> int:
        """Number of messages that can still be acked: WAITING, QUEUED and DELAYED rows. This is
        JetStream's num_ack_pending.
        """
        return self.counts[Row.WAITING] + self.counts[Row.QUEUED] + self.counts[Row.DELAYED]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.column.values())

    def view(self, name: str) -> npt.NDArray[Any]:
        """Return a column without the spare room at its end: one item per row. It shares the memory
        of the table.
        """
        return self.column[name][: self.end]

    def append(self, **columns: npt.NDArray[Any] | int) -> Ints:
        """Add rows at the end, one per message, and return their row numbers. `columns`: all of
        COLUMNS. A number instead of an array is the value of all rows; "sequence" is an array.

        Stream sequences and consumer sequences must rise and lie above all others.
        """
        sequences = np.asarray(columns["sequence"])
        end = self.end + sequences.size
        if end > self.column["state"].size:
            self._grow(end + end // 4)
        for name, values in columns.items():
            self.column[name][self.end : end] = values
        rows = np.arange(self.end, end)
        self.end = end
        for state, count in enumerate(np.bincount(self.column["state"][rows], minlength=_STATES).tolist()):
            self.counts[state] += count
        self.redelivered += int((self.column["deliveries"][rows] > 1).sum())
        self.lead = _skip_settled(self.column["state"], self.lead, self.end)
        return rows

    def find(self, sequences: Ints) -> Ints:
        """Return the row numbers of these stream sequences, without those that have no row or whose
        row is GONE. EXHAUSTED rows are included.

        `sequences` must rise.
        """
        own = self.view("sequence")
        at = own.searchsorted(sequences)
        if at.size and at[-1] >= self.end:  # they rise, so no other is higher
            known = at < self.end
            at, sequences = at[known], sequences[known]
        at = at[own[at] == sequences]
        found: Ints = at[self.view("state")[at] != Row.GONE]
        return found

    def find_delivered(self, ranges: list[tuple[int, int]]) -> Ints:
        """Return the row numbers, without GONE ones, of messages whose first delivery had a
        consumer sequence in one of the ranges. The ranges include both ends, rise and do not
        overlap.
        """
        own, bounds = self.view("consumer_seq"), np.array(ranges, np.int64).reshape(-1, 2)
        begin = np.searchsorted(own, bounds[:, 0])
        size = np.searchsorted(own, bounds[:, 1], side="right") - begin
        rows = np.repeat(begin - np.cumsum(size) + size, size) + np.arange(size.sum())
        found: Ints = rows[self.view("state")[rows] != Row.GONE]
        return found

    def find_covered(self, consumer_seq: int, sequences: Ints) -> tuple[Ints, Ints]:
        """Return for each stream sequence the last message at or below it, among the messages (not
        GONE) that were first delivered at consumer sequence `consumer_seq` or before.

        The first array has the stream sequences of these messages, 0 for none. The second has the
        consumer sequence up to which an ack of everything up to this message reaches: that of the
        message's first delivery, but `consumer_seq` itself for the last known one; 0 for none
        (`consumer_seq` if no message is known at all).
        """
        rows = self.find_delivered([(1, consumer_seq)])
        known, counted = (np.append(0, self.view(name)[rows]) for name in ("sequence", "consumer_seq"))
        counted[-1] = consumer_seq
        at = np.searchsorted(known, sequences, side="right") - 1
        return known[at], counted[at]

    def find_up_to(self, sequence: int) -> Ints:
        """Return the row numbers, without GONE ones, of messages whose stream sequence is `sequence`
        or lower.
        """
        end = int(np.searchsorted(self.view("sequence"), sequence, side="right"))
        found: Ints = (self.view("state")[:end] != Row.GONE).nonzero()[0]
        return found

    def find_pending(self, rows: Ints) -> Ints:
        """Return those of the row numbers whose messages can still be acked: neither GONE nor
        EXHAUSTED.
        """
        state = self.view("state")[rows]
        waiting: Ints = rows[(state != Row.GONE) & (state != Row.EXHAUSTED)]
        return waiting

    def become(self, rows: Ints, state: int) -> None:
        """Set the state of these rows, and update the counters. No row may be named twice."""
        if not rows.size:
            return
        column = self.column["state"]
        for former, count in enumerate(np.bincount(column[rows], minlength=_STATES).tolist()):
            self.counts[former] -= count
        self.counts[state] += rows.size
        column[rows] = state
        if state == Row.GONE:
            self.redelivered -= int((self.column["deliveries"][rows] > 1).sum())
        self.lead = _skip_settled(column, self.lead, self.end)

    def queue(self, rows: Ints, ticket: int) -> None:
        """Mark rows as QUEUED for redelivery. In this order they get the tickets from `ticket` on,
        by which the redelivery queue recognises them.
        """
        self.become(rows, Row.QUEUED)
        self.column["deadline"][rows] = np.arange(ticket, ticket + rows.size)

    def deliver_again(self, rows: Ints, now: int) -> None:
        """Count one more delivery of these rows at `now` (ns since 1970). They become WAITING, with
        the deadline NEVER, which the caller may set.
        """
        column = self.column
        self.redelivered += int((column["deliveries"][rows] == 1).sum())
        column["deliveries"][rows] += 1
        column["last"][rows] = now
        column["deadline"][rows] = NEVER
        self.become(rows, Row.WAITING)

    def set_deadlines(self, rows: Ints, deadlines: Ints) -> None:
        """Set the deadlines of rows, ns since 1970, one per row."""
        self.column["deadline"][rows] = deadlines

    def compact(self) -> None:
        """Remove all GONE rows if they are more than half of the rows and more than 1024, otherwise
        do nothing. After a removal, row numbers from before are invalid.
        """
        if self.counts[Row.GONE] <= max(_FEW, self.end // 2):
            return
        kept = np.flatnonzero(self.view("state") != Row.GONE)
        room = kept.size + kept.size // 4 + _FEW
        lead = int(np.searchsorted(kept, self.lead))
        for name in self.column:
            self.column[name] = _take(self.column[name], kept, room)
        self.end, self.lead, self.counts[Row.GONE] = kept.size, lead, 0

    def _grow(self, room: int) -> None:
        for name, column in self.column.items():
            wider = np.empty(room, column.dtype)
            wider[: self.end] = column[: self.end]
            self.column[name] = wider


def _take(column: npt.NDArray[Any], kept: Ints, room: int) -> npt.NDArray[Any]:
    narrower = np.empty(room, column.dtype)
    narrower[: kept.size] = column[kept]
    return narrower


def distinct(numbers: Ints) -> Ints:
    """Return each number once, in rising order.

    If the numbers rise already, as they mostly do, this is several times as fast as np.unique, and
    the array itself is returned.
    """
    if numbers.size < 2 or (numbers[1:] > numbers[:-1]).all():
        return numbers
    rising = np.sort(numbers)
    found: Ints = rising[np.concatenate((np.ones(1, np.bool_), rising[1:] != rising[:-1]))]
    return found


def are_among(numbers: Ints, others: Ints) -> Flags:
    """Return for each number whether it is one of the others. Both must rise. Many times as fast as
    np.isin if they are few.
    """
    if not others.size:
        return np.zeros(numbers.size, np.bool_)
    at = others.searchsorted(numbers)
    at[at == others.size] = 0  # higher than all others, and so not equal to the first either
    found: Flags = others[at] == numbers
    return found


def leave_out(numbers: Ints, others: Ints) -> Ints:
    """Return the numbers that are not among the others. Both must rise."""
    left: Ints = numbers[~are_among(numbers, others)]
    return left


@kernel
def _skip_settled(state: Bytes, at: int, end: int) -> int:
    """Return the first row from `at` on, below `end`, that is neither GONE (0) nor EXHAUSTED (4);
    `end` if there is none.
    """
    while at < end and (state[at] == 0 or state[at] == 4):
        at += 1
    return at
