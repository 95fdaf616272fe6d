"""The ledger of a stream in memory: from offsets of its partitions to sequences and back, a million runs at once.

Rounds (entries.py) come in the order of the index topic. A round is taken in if all its sequences lie above those of the rounds
before it, and its offsets above those that their partition has in the ledger already. So the rows are in the order of
sequences, and within a partition in that of offsets, and no sequence and no offset is ever in two of them; gaps there may be. A
round that contradicts what was taken in before is passed over as a whole, and the answer says why. Sequencers cannot write
one: they go on from the ledger, and whoever was fenced cannot commit. What is left are strangers who write to the index
topic, and their rounds must not change what the others say. When the true rounds below such a one have gone with the
topic's retention, nothing tells it from a true one any more: only the topic's access rules keep strangers out.

A restart (a run of no records) moves the end of its partition, and voids the rows of the partition that reach beyond it.

An offset without a sequence lies at or past `end_of` its partition and has none yet, or it lies below and will never have one:
the record of its round could not be read, or retention has taken it.

Memory: two to four bytes a row (pages.py), and up to a quarter as much in reserve. A row is a run, or several that go on from
one another in offset and in sequence, as they do while a single partition of the stream has anything new. In the topic runs are
never merged.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kernels import kernel

from .allocate import Standing
from .entries import Ints, LedgerEntries, LedgerEntry, LedgerRun, encode, parse_values
from .pages import PAGE_ROWS, Pages

_NO_LOCK = nullcontext()


class Refusal(enum.IntEnum):
    """Why a round was passed over. Kernels return the number."""

    NONE = 0
    SEQUENCES = 1
    """Some of its sequences were given out, or skipped, before."""
    OFFSETS = 2
    """Some of its offsets have a sequence, or were passed over, before."""
    TWICE = 3
    """It names a partition twice."""


class Ledger:
    """`lock`: held while rounds are taken in and while they are asked for, so that two threads may; a copy has none."""

    def __init__(self, page_rows: int = PAGE_ROWS, lock: AbstractContextManager[object] = _NO_LOCK) -> None:
        self._codes: dict[TopicPartition, int] = {}
        self._names: list[TopicPartition] = []
        self._pages = Pages(page_rows)
        self._ends, self._epochs, self._crcs = (np.zeros(0, np.int64) for _ in range(3))
        self._next = 1
        self._lock = lock

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which are not made while rounds are taken in."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=_NO_LOCK)

    def __len__(self) -> int:
        """Rows in memory, see the module's essay. Some of them retention may have taken."""
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._pages.nbytes + 3 * self._ends.nbytes

    @property
    def next_sequence(self) -> int:
        """The one that is given out next."""
        return self._next

    @property
    def first_sequence(self) -> int:
        """That of the first record that the logs may still have; next_sequence when there is none."""
        first = self.locate(0)
        return first.first_sequence if first is not None else self._next

    @property
    def standing(self) -> Standing:
        """From where the sequencer goes on."""
        return Standing(self._next, {source: int(self._ends[code]) for source, code in self._codes.items()})

    def end_of(self, source: TopicPartition) -> int:
        """The first offset of a partition that has no sequence yet; 0 for one that is not known."""
        return self.log_position_of(source).position

    def log_position_of(self, source: TopicPartition) -> LogPosition:
        """`end_of`, and the batch before it."""
        code = self._codes.get(source)
        if code is None:
            return LogPosition(0)
        return LogPosition(int(self._ends[code]), int(self._epochs[code]), int(self._crcs[code]))

    def append(self, round: LedgerEntry) -> Refusal:
        """Take in one round. Raises ValueError for figures that no record can hold."""
        rounds = parse_values([encode("", round)[1]])
        if rounds.flaws[0]:
            raise ValueError(f"not to be written: {round}")
        return Refusal(int(self.extend(rounds)[0]))

    def extend(self, rounds: LedgerEntries) -> npt.NDArray[np.uint8]:
        """Take in rounds in the order of the index topic; of each value the Refusal, 0 for one with a flaw."""
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
        """Of each offset its sequence, 0 where it has none (see the module's essay). Quickest when offsets ascend."""
        if source not in self._codes:
            return np.zeros(offsets.size, np.int64)
        with self._lock:
            return self._pages.find_sequences(self._codes[source], offsets)

    def sequence_from(self, source: TopicPartition, offset: int) -> int:
        """The sequence of the first record of a partition from an offset on; next_sequence when none has one yet."""
        if source not in self._codes:
            return self._next
        with self._lock:
            return self._pages.find_sequence(self._codes[source], offset) or self._next

    def locate(self, sequence: int) -> LedgerRun | None:
        """The run that has a sequence, from there on; else all of the next one above; None where there is none.

        So first_sequence and first_offset of the answer are the sequence, or the next one that there is, and where it is.
        """
        with self._lock:
            code, first_sequence, first_offset, count = self._pages.locate(sequence)
        return LedgerRun(*self._names[code], first_offset, count, first_sequence) if count else None

    def positions_at(self, sequence: int) -> dict[TopicPartition, int]:
        """Of each known partition the first offset whose sequence is this one or above it; its end when there is none."""
        with self._lock:
            found = {source: self._pages.find_offset(code, sequence) for source, code in self._codes.items()}
            return {source: int(self._ends[self._codes[source]]) if at < 0 else at for source, at in found.items()}

    def drop(self, starts: Mapping[TopicPartition, int]) -> None:
        """Forget the offsets below these: the logs begin there now."""
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
def _admit(  # type: ignore[no-untyped-def]
    begin, starts, sequences, flaws, source, first, count, epoch, crc,
    ends, epochs, crcs, before, touched, rows, next_sequence, refusals,
):  # fmt: skip
    """Take in rounds from `begin` on, up to one that moves the end of a partition back.

    Returns where to go on, how many rows there are now, the next sequence, and whether the last round moved an end back.
    """
    used = 0
    for i in range(begin, sequences.size):
        if flaws[i]:
            continue
        if sequences[i] < next_sequence:
            refusals[i] = 1
            continue
        run = starts[i]
        while run < starts[i + 1]:
            place = source[run]
            if touched[place] == i:
                refusals[i] = 3
            elif count[run] and first[run] < ends[place]:
                refusals[i] = 2
            if refusals[i]:
                break
            touched[place], before[run] = i, ends[place]
            ends[place] = first[run] + count[run]
            run += 1
        if refusals[i]:
            for j in range(starts[i], run):
                ends[source[j]] = before[j]
            continue
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
