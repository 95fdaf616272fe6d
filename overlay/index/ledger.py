"""The ledger of a stream in memory: from offsets of its partitions to sequences and back, a million runs at once.

Rounds (runs.py) come in the order of the index topic. A round is taken in if all its sequences lie above those of the rounds
before it, and its offsets above those that their partition has in the ledger already. So the rows are in the order of
sequences, and within a partition in that of offsets, and no sequence and no offset is ever in two of them; gaps there may be. A
round that contradicts what was taken in before is passed over as a whole, and the answer says why. Sequencers cannot write
one: they go on from the ledger, and whoever was fenced cannot commit. What is left are strangers who write to the index
topic, and their rounds must not change what the others say. When the true rounds below such a one have gone with the
topic's retention, nothing tells it from a true one any more: only the topic's access rules keep strangers out.

A restart (a run of no records) moves the end of its partition, and voids the rows of the partition that reach beyond it.

An offset without a sequence lies at or past `end_of` its partition and has none yet, or it lies below and will never have one:
the record of its round could not be read, or retention has taken it.

Memory: 32 bytes a row, and up to half as much in reserve. A row is a run, or several that go on from one another in offset
and in sequence, as they do while a single partition of the stream has anything new. In the topic runs are never merged.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt

from overlay.source.mark import Mark, Source

from .rounds import Standing
from .runs import Ints, Round, Rounds, Run, encode, parse_values

_BEYOND = 1 << 62


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
    """Not for two threads at once."""

    def __init__(self) -> None:
        self._codes: dict[Source, int] = {}
        self._names: list[Source] = []
        self._first_sequence, self._first_offset, self._count = (_Column(np.int64) for _ in range(3))
        self._source = _Column(np.int32)
        self._rows: list[_Column] = []  # of each partition, in order
        self._ends, self._epochs, self._crcs = (np.zeros(0, np.int64) for _ in range(3))
        self._next = 1

    def __len__(self) -> int:
        """Rows, see the module's essay."""
        return self._source.used

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        columns = (*self._columns, *self._rows)
        return sum(column.data.nbytes for column in columns) + 3 * self._ends.nbytes

    @property
    def next_sequence(self) -> int:
        """The one that is given out next."""
        return self._next

    @property
    def first_sequence(self) -> int:
        """That of the first record that the logs may still have; next_sequence when there is none."""
        return int(self._first_sequence.view[0]) if len(self) else self._next

    @property
    def standing(self) -> Standing:
        """From where the sequencer goes on."""
        return Standing(self._next, {source: int(self._ends[code]) for source, code in self._codes.items()})

    def end_of(self, source: Source) -> int:
        """The first offset of a partition that has no sequence yet; 0 for one that is not known."""
        return self.mark_of(source).position

    def mark_of(self, source: Source) -> Mark:
        """`end_of`, and the batch before it."""
        code = self._codes.get(source)
        if code is None:
            return Mark(0)
        return Mark(int(self._ends[code]), int(self._epochs[code]), int(self._crcs[code]))

    def append(self, round: Round) -> Refusal:
        """Take in one round. Raises ValueError for figures that no record can hold."""
        rounds = parse_values([encode("", round)[1]])
        if rounds.flaws[0]:
            raise ValueError(f"not to be written: {round}")
        return Refusal(int(self.extend(rounds)[0]))

    def extend(self, rounds: Rounds) -> npt.NDArray[np.uint8]:
        """Take in rounds in the order of the index topic; of each value the Refusal, 0 for one with a flaw."""
        known = np.array([self._find_code(source) for source in rounds.sources], np.int64)
        codes = known[rounds.source]
        refusals = np.zeros(rounds.flaws.size, np.uint8)
        before, touched = np.empty(codes.size, np.int64), np.full(len(self._codes), -1, np.int64)
        begin = 0
        while begin < refusals.size:
            used = len(self)
            first_sequence, first_offset, count, source = (column.reserve(codes.size) for column in self._columns)
            begin, now_used, self._next, goes_back = _admit(
                begin, rounds.starts, rounds.first_sequence, rounds.flaws,
                codes, rounds.first_offset, rounds.count, rounds.epoch, rounds.crc,
                self._ends, self._epochs, self._crcs, before, touched,
                first_sequence, first_offset, count, source, used, self._next, refusals,
            )  # fmt: skip
            for column in self._columns:
                column.used = now_used
            self._assign_rows(used)
            if goes_back:
                self._void(codes[rounds.starts[begin - 1] : rounds.starts[begin]])
        return refusals

    def sequence_of(self, source: Source, offsets: Ints) -> Ints:
        """Of each offset its sequence, 0 where it has none (see the module's essay). Quickest when offsets ascend."""
        out = np.zeros(offsets.size, np.int64)
        if source in self._codes:
            _find_sequences(self._rows[self._codes[source]].view, *self._figures, offsets, out)
        return out

    def sequence_from(self, source: Source, offset: int) -> int:
        """The sequence of the first record of a partition from an offset on; next_sequence when none has one yet."""
        if source not in self._codes:
            return self._next
        rows = self._rows[self._codes[source]].view
        found = _find_sequence_from(rows, *self._figures, offset)
        return int(found) if found else self._next

    def locate(self, sequence: int) -> Run | None:
        """The run that has a sequence, from there on; else all of the next one above; None where there is none.

        So first_sequence and first_offset of the answer are the sequence, or the next one that there is, and where it is.
        """
        row = max(int(np.searchsorted(self._first_sequence.view, sequence, side="right")) - 1, 0)
        for at in range(row, min(row + 2, len(self))):
            first_sequence, first_offset, count = (int(column[at]) for column in self._figures)
            passed = max(sequence - first_sequence, 0)
            if passed < count:
                topic, partition = self._names[int(self._source.view[at])]
                return Run(topic, partition, first_offset + passed, count - passed, first_sequence + passed)
        return None

    def positions_at(self, sequence: int) -> dict[Source, int]:
        """Of each known partition the first offset whose sequence is this one or above it; its end when there is none."""
        return {
            source: _find_position(self._rows[code].view, *self._figures, sequence, self._ends[code])
            for source, code in self._codes.items()
        }

    def drop(self, starts: Mapping[Source, int]) -> None:
        """Forget the offsets below these: the logs begin there now. Takes a pass over all rows if there are any to forget."""
        lows = np.zeros(len(self._codes), np.int64)
        for source, start in starts.items():
            if source in self._codes:
                lows[self._codes[source]] = start
        if any(
            rows.used and self._first_offset.view[rows.view[0]] < lows[code] for code, rows in enumerate(self._rows)
        ):
            first_sequence, first_offset, count = self._figures
            gone = np.clip(lows[self._source.view] - first_offset, 0, count)
            for column, change in ((first_sequence, gone), (first_offset, gone), (count, -gone)):
                column += change
            self._take(count > 0)

    @property
    def _columns(self) -> tuple[_Column, ...]:
        return self._first_sequence, self._first_offset, self._count, self._source

    @property
    def _figures(self) -> tuple[Ints, Ints, Ints]:
        return self._first_sequence.view, self._first_offset.view, self._count.view

    def _find_code(self, source: Source) -> int:
        code = self._codes.setdefault(source, len(self._codes))
        if code == len(self._names):
            self._names.append(source)
            self._rows.append(_Column(np.int32))
            if code == self._ends.size:
                more = max(16, code)
                self._ends = np.concatenate((self._ends, np.zeros(more, np.int64)))
                self._epochs, self._crcs = (
                    np.concatenate((one, np.full(more, -1, np.int64))) for one in (self._epochs, self._crcs)
                )
        return code

    def _assign_rows(self, first: int) -> None:
        """Enter the rows from `first` on at their partitions."""
        fresh = self._source.view[first:]
        order = np.argsort(fresh, kind="stable")
        codes, begins = np.unique(fresh[order], return_index=True)
        for code, rows in zip(codes.tolist(), np.split(order, begins[1:]), strict=False):
            self._rows[code].append(rows + first)

    def _void(self, codes: Ints) -> None:
        """Take away what reaches beyond the ends of these partitions."""
        _, first_offset, count = self._figures
        for code in codes.tolist():
            rows = self._rows[code].view
            rows = rows[int(np.searchsorted(first_offset[rows] + count[rows], self._ends[code], side="right")) :]
            count[rows] = np.clip(self._ends[code] - first_offset[rows], 0, None)
        self._take(count > 0)

    def _take(self, kept: npt.NDArray[np.bool_]) -> None:
        for column in self._columns:
            column.take(kept)
        for rows in self._rows:
            rows.clear()
        self._assign_rows(0)


class _Column:
    """An array that grows at its end."""

    __slots__ = ("data", "used")

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.data: npt.NDArray[Any] = np.empty(0, dtype)
        self.used = 0

    @property
    def view(self) -> npt.NDArray[Any]:
        return self.data[: self.used]

    def reserve(self, more: int) -> npt.NDArray[Any]:
        """All of it, with room for so many items more."""
        if self.used + more > self.data.size:
            larger = np.empty(max(self.used + more, self.used * 3 // 2), self.data.dtype)
            larger[: self.used] = self.view
            self.data = larger
        return self.data

    def append(self, items: npt.NDArray[Any]) -> None:
        self.reserve(items.size)[self.used : self.used + items.size] = items
        self.used += items.size

    def take(self, kept: npt.NDArray[np.bool_]) -> None:
        self.data = self.view[kept]
        self.used = self.data.size

    def clear(self) -> None:
        self.data, self.used = self.data[:0].copy(), 0


@nb.njit(cache=True, nogil=True)
def _admit(  # type: ignore[no-untyped-def]
    begin, starts, sequences, flaws, source, first, count, epoch, crc,
    ends, epochs, crcs, before, touched,
    first_sequence, first_offset, counts, sources, used, next_sequence, refusals,
):  # fmt: skip
    """Take in rounds from `begin` on, up to one that moves the end of a partition back.

    Returns where to go on, the rows in use, the next sequence, and whether the last round moved an end back.
    """
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
            last = used - 1
            if count[j] == 0:
                continue
            if (
                used
                and sources[last] == source[j]
                and first_sequence[last] + counts[last] == sequence
                and first_offset[last] + counts[last] == first[j]
            ):
                counts[last] += count[j]
            else:
                first_sequence[used], first_offset[used], counts[used] = sequence, first[j], count[j]
                sources[used] = source[j]
                used += 1
            sequence += count[j]
        next_sequence = max(sequence, sequences[i] + 1)
        if goes_back:
            return i + 1, used, next_sequence, True
    return sequences.size, used, next_sequence, False


@nb.njit(cache=True, nogil=True)
def _rank(rows, column, value, low):  # type: ignore[no-untyped-def]
    """How many of the rows, of which the first `low` are known to be, have at most this value in an ascending column."""
    # whoever goes forward finds it among the next few; else the distance doubles until it is passed
    step = 1
    while low + step <= rows.size and column[rows[low + step - 1]] <= value:
        low += step
        step *= 2
    high = min(low + step - 1, rows.size)
    while low < high:
        middle = (low + high) // 2
        if column[rows[middle]] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@nb.njit(inline="always", cache=True, nogil=True)
def _begin(rows, first_offset, rank):  # type: ignore[no-untyped-def]
    return first_offset[rows[rank]] if rank < rows.size else _BEYOND


@nb.njit(cache=True, nogil=True)
def _find_sequences(rows, first_sequence, first_offset, count, offsets, out):  # type: ignore[no-untyped-def]
    rank, shift = 0, 0
    # of the run at hand, the last of `rank`, which ends at `after`; what follows it begins at `limit`
    low, after, limit = -_BEYOND, -_BEYOND, _begin(rows, first_offset, 0)
    for i in range(offsets.size):
        offset = offsets[i]
        if offset < low or offset >= limit:
            rank = 0 if offset < low else min(rank + 1, rows.size)
            limit = _begin(rows, first_offset, rank)
            if offset >= limit:
                rank = _rank(rows, first_offset, offset, rank)
                limit = _begin(rows, first_offset, rank)
            low = after = -_BEYOND
            if rank:
                row = rows[rank - 1]
                low = first_offset[row]
                after = low + count[row]
                shift = first_sequence[row] - low
        out[i] = offset + shift if offset < after else 0


@nb.njit(cache=True, nogil=True)
def _find_sequence_from(rows, first_sequence, first_offset, count, offset):  # type: ignore[no-untyped-def]
    rank = _rank(rows, first_offset, offset, 0)
    if rank:
        row = rows[rank - 1]
        passed = offset - first_offset[row]
        if passed < count[row]:
            return first_sequence[row] + passed
    return first_sequence[rows[rank]] if rank < rows.size else 0


@nb.njit(cache=True, nogil=True)
def _find_position(rows, first_sequence, first_offset, count, sequence, end):  # type: ignore[no-untyped-def]
    rank = _rank(rows, first_sequence, sequence, 0)
    if rank:
        row = rows[rank - 1]
        passed = sequence - first_sequence[row]
        if passed < count[row]:
            return first_offset[row] + passed
    return first_offset[rows[rank]] if rank < rows.size else end
