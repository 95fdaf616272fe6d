"""The ledger of a stream in memory: from offsets of its partitions to sequences and back, for
millions of runs.

Ledger entries (entries.py; `rounds` in the code below) come in the order of the index topic. An
entry is taken in if all its sequences are above those of the entries before it, its offsets are
above those that their partition already has, and it names no partition twice. So rows are in the
order of sequences, within a partition also in that of offsets, and no sequence or offset is in two
of them. Gaps may occur. An entry that contradicts what was taken in before is skipped as a whole,
and the result says why. A sequencer cannot write such an entry: it continues from the ledger, and a
fenced one cannot commit. Only a stranger that writes to the index topic can, and its entries must
not change what the others say. If retention has removed the true entries below such a one, it can
no longer be told from a true one: then only the topic's access rules keep strangers out.

A restart (a run of no records) moves the end of its partition, and voids the rows of the partition
beyond it.

An offset without a sequence is either at or past `end_of` its partition and has none yet, or below
it. Then its ledger record is lost (unreadable, or removed by retention), no entry had the offset,
or `drop` hides it.

Memory: two to four bytes a row (pages.py), and up to a quarter more in reserve. A row is one run,
or several that continue each other both in offset and in sequence, as happens while only one
partition has new records. In the topic, runs are never merged.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kernels import kernel

from .allocate import Standing
from .entries import LedgerEntries, LedgerEntry, LedgerRun, encode, parse_values
from .pages import PAGE_ROWS, Pages

_NO_LOCK = nullcontext()


class Refusal(enum.IntEnum):
    """Why a ledger entry was not taken in; NONE (0) if it was."""

    NONE = 0
    SEQUENCES = 1
    """Some of its sequences were given out, or skipped, before."""
    OFFSETS = 2
    """Some of its offsets have a sequence already, or were skipped before."""
    TWICE = 3
    """It names a partition twice."""


class Ledger:
    """The sequences of a stream's records, by partition and offset.

    `lock`: held while entries are taken in, while sequences or offsets are looked up, and in
    `drop`, so that two threads may do so. `next_sequence`, `standing`, `end_of` and
    `log_position_of` read without it. A copy has no lock.
    """

    def __init__(self, page_rows: int = PAGE_ROWS, lock: AbstractContextManager[object] = _NO_LOCK) -> None:
        self._codes: dict[TopicPartition, int] = {}
        self._names: list[TopicPartition] = []
        self._pages = Pages(page_rows)
        self._ends, self._epochs, self._crcs = (np.zeros(0, np.int64) for _ in range(3))
        self._next = 1
        self._lock = lock

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies, which must not be made while entries are taken in. The lock
        is left out.
        """
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=_NO_LOCK)

    def __len__(self) -> int:
        """Return the number of rows in memory. A row is one run of consecutive offsets and
        sequences, or several that continue each other. Rows whose records retention has removed may
        be counted.
        """
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory."""
        return self._pages.nbytes + 3 * self._ends.nbytes

    @property
    def next_sequence(self) -> int:
        """Return the sequence that is given out next."""
        return self._next

    @property
    def first_sequence(self) -> int:
        """Return the lowest sequence whose offset is not below the log starts passed to `drop`;
        next_sequence if there is none.
        """
        first = self.locate(0)
        return first.first_sequence if first is not None else self._next

    @property
    def standing(self) -> Standing:
        """Return the end of the ledger, where the sequencer continues: the next sequence, and
        `end_of` each known partition. For an empty ledger: 1, and no partitions.
        """
        return Standing(self._next, {source: int(self._ends[code]) for source, code in self._codes.items()})

    def end_of(self, source: TopicPartition) -> int:
        """Return the offset of a partition from which on no record has a sequence yet; 0 for an
        unknown partition.
        """
        return self.log_position_of(source).position

    def log_position_of(self, source: TopicPartition) -> LogPosition:
        """Return the offset of a partition from which on no record has a sequence yet (`end_of`),
        with epoch and CRC of the batch before it, -1 if unknown. It is offset 0 for an unknown
        partition.
        """
        code = self._codes.get(source)
        if code is None:
            return LogPosition(0)
        return LogPosition(int(self._ends[code]), int(self._epochs[code]), int(self._crcs[code]))

    def append(self, round: LedgerEntry) -> Refusal:
        """Add one ledger entry to the ledger in memory. Return Refusal.NONE if it was added,
        otherwise why it contradicts the entries before it; then nothing changes. Raises ValueError for
        numbers that no ledger record can hold.
        """
        rounds = parse_values([encode("", round)[1]])
        if rounds.flaws[0]:
            raise ValueError(f"not to be written: {round}")
        return Refusal(int(self.extend(rounds)[0]))

    def extend(self, rounds: LedgerEntries) -> Bytes:
        """Add ledger entries to the ledger in memory, in the order of the index topic. Return a
        Refusal for each value (uint8): 0 if it was added. A value with a flaw is left out and also
        gets 0. An entry that is refused changes nothing.
        """
        refusals = np.zeros(rounds.flaws.size, np.uint8)
        with self._lock:
            known = np.array([self._find_code(source) for source in rounds.sources], np.int64)
            codes = known[rounds.source]
            self._pages.enlist(len(self._codes))
            before, touched = np.empty(codes.size, np.int64), np.full(len(self._codes), -1, np.int64)
            rows = np.empty((4, codes.size), np.int64)
            begin = 0
            while begin < refusals.size:
                begin, used, self._next, goes_back = _admit(
                    begin, rounds.starts, rounds.first_sequence, rounds.flaws,
                    codes, rounds.first_offset, rounds.count, rounds.epoch, rounds.crc,
                    self._ends, self._epochs, self._crcs, before, touched, rows, self._next, refusals,
                )  # fmt: skip
                self._pages.append(*rows[:, :used])
                if goes_back:
                    for code in codes[rounds.starts[begin - 1] : rounds.starts[begin]].tolist():
                        self._pages.void(code, int(self._ends[code]))
        return refusals

    def sequence_of(self, source: TopicPartition, offsets: Ints) -> Ints:
        """Return the sequence of each offset of a partition (int64, one per offset). It is 0 if the
        offset has none, or is below a log start passed to `drop`. Any order is allowed; ascending
        offsets are fastest.
        """
        if source not in self._codes:
            return np.zeros(offsets.size, np.int64)
        with self._lock:
            return self._pages.find_sequences(self._codes[source], offsets)

    def sequence_from(self, source: TopicPartition, offset: int) -> int:
        """Return the sequence of the first offset of a partition, from `offset` on, that has one.
        If there is none, return next_sequence.
        """
        if source not in self._codes:
            return self._next
        with self._lock:
            return self._pages.find_sequence(self._codes[source], offset) or self._next

    def locate(self, sequence: int) -> LedgerRun | None:
        """Return the run with `sequence`, cut so that it begins there. If no offset has that
        sequence, return the next run above it; None if there is none. Offsets below the log starts
        passed to `drop` are left out. Epoch and CRC of the result are -1 (unknown).

        So first_sequence and first_offset of the result are this sequence, or the next existing
        one, and its offset.
        """
        with self._lock:
            code, first_sequence, first_offset, count = self._pages.locate(sequence)
        return LedgerRun(*self._names[code], first_offset, count, first_sequence) if count else None

    def positions_at(self, sequence: int) -> dict[TopicPartition, int]:
        """Return for each known partition the first offset whose sequence is at or above this one;
        the partition's end if there is none.
        """
        with self._lock:
            found = {source: self._pages.find_offset(code, sequence) for source, code in self._codes.items()}
            return {source: int(self._ends[self._codes[source]]) if at < 0 else at for source, at in found.items()}

    def drop(self, starts: Mapping[TopicPartition, int]) -> None:
        """Treat offsets below these log starts as having no sequence, since retention has removed
        the records. Their memory may be freed. Partitions that the ledger does not know are
        ignored.
        """
        with self._lock:
            lows = np.zeros(len(self._codes), np.int64)
            for source, start in starts.items():
                if source in self._codes:
                    lows[self._codes[source]] = start
            self._pages.forget(lows)

    def _find_code(self, source: TopicPartition) -> int:
        code = self._codes.setdefault(source, len(self._codes))
        if code == len(self._names):
            self._names.append(source)
            if code == self._ends.size:
                more = max(16, code)
                self._ends = np.concatenate((self._ends, np.zeros(more, np.int64)))
                self._epochs, self._crcs = (
                    np.concatenate((one, np.full(more, -1, np.int64))) for one in (self._epochs, self._crcs)
                )
        return code


@kernel
def _admit(
    begin: int, starts: Ints, sequences: Ints, flaws: Bytes, source: Ints, first: Ints, count: Ints, epoch: Ints,
    crc: Ints, ends: Ints, epochs: Ints, crcs: Ints, before: Ints, touched: Ints, rows: Ints, next_sequence: int,
    refusals: Bytes,
) -> tuple[int, int, int, bool]:  # fmt: skip
    """Go through ledger entries from number `begin` on, and add or refuse each, up to and including
    one that moves the end of a partition back. Entry i has the runs starts[i] to starts[i + 1] - 1;
    one with a flaw is passed over. A run with offsets of an added entry becomes a row in `rows`
    (code of the partition, first sequence, first offset, count); `ends`, `epochs` and `crcs`, by
    code, and `refusals`, by entry, are updated. `before`, `touched`: working memory.

    Return the number of the entry to continue at, how many rows were written, the next sequence,
    and whether the last entry moved an end back.
    """
    used = 0
    for i in range(begin, sequences.size):
        if flaws[i]:
            continue
        if sequences[i] < next_sequence:
            refusals[i] = Refusal.SEQUENCES
            continue
        # move the ends of the entry's partitions, unless one of its runs contradicts the ledger
        run = starts[i]
        while run < starts[i + 1]:
            place = source[run]
            if touched[place] == i:
                refusals[i] = Refusal.TWICE
            elif count[run] and first[run] < ends[place]:
                refusals[i] = Refusal.OFFSETS
            if refusals[i]:
                break
            touched[place], before[run] = i, ends[place]
            ends[place] = first[run] + count[run]
            run += 1
        # a refused entry changes nothing: restore the ends that it has moved
        if refusals[i]:
            for j in range(starts[i], run):
                ends[source[j]] = before[j]
            continue
        # an accepted entry: write its rows; a restart writes none and may move an end back
        sequence = sequences[i]
        goes_back = False
        for j in range(starts[i], starts[i + 1]):
            epochs[source[j]], crcs[source[j]] = epoch[j], crc[j]
            goes_back = goes_back or ends[source[j]] < before[j]
            if count[j]:
                rows[0, used], rows[1, used], rows[2, used], rows[3, used] = source[j], sequence, first[j], count[j]
                used += 1
            sequence += count[j]
        next_sequence = max(sequence, sequences[i] + 1)
        if goes_back:
            return i + 1, used, next_sequence, True
    return sequences.size, used, next_sequence, False
