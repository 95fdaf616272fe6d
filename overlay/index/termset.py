"""The distinct terms of a chunk while it grows: a hash table of hashes, filled by kernels.

A Bloom filter must be sized for the terms it holds, and how many are distinct is known only at the end. Terms are hashes
already, so a slot is the hash itself. Past `limit` a filter would say nothing, and no more are taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overlay.kernels import kernel
from overlay.scan.header import Bytes

from .murmur import hash128
from .terms import Hashes, Term, as_hashes

Ints = npt.NDArray[np.int64]

_START = 1 << 12
_KEPT = 1 << 14  # a larger table is not cleared but replaced by a small one


class TermSet:
    """Distinct terms, `limit` of them at most. Not for two threads at once."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        # the hash (0, 0) stands for an empty slot; no term has it but by a chance of 2**-128
        self._table = np.zeros((_START, 2), np.uint64)

    @property
    def is_full(self) -> bool:
        return self.count >= self._limit

    @property
    def hashes(self) -> Hashes:
        """All of them, in no order. A copy."""
        hashes = np.empty((self.count, 2), np.uint64)
        _list_hashes(self._table, hashes)
        return hashes

    def clear(self) -> None:
        self.count = 0
        if len(self._table) > _KEPT:
            self._table = np.zeros((_START, 2), np.uint64)
        else:
            self._table[:] = 0

    def add(self, *terms: Term) -> None:
        self.add_hashes(as_hashes(*terms))

    def add_hashes(self, hashes: Hashes) -> None:
        self._fill(_add_hashes, len(hashes), hashes)

    def add_slices(self, buf: Bytes, at: Ints, size: Ints, seed: int) -> None:
        """Hash and add the bytes buf[at[i] : at[i] + size[i]]; those of a size below 0 are no values."""
        self._fill(_add_slices, at.size, buf, at, size, np.uint64(seed))

    def _fill(self, kernel: Any, rows: int, *arrays: Any) -> None:
        done = 0
        while done < rows and not self.is_full:
            done, self.count = kernel(*arrays, done, self._table, self.count)
            if done < rows:
                table = np.zeros((len(self._table) * 2, 2), np.uint64)
                _add_hashes(self.hashes, 0, table, 0)
                self._table = table


class TermNumbers:
    """Numbers for terms, dense from 0: subjects share most of theirs, and a number is told from another at once."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers = np.full(_START, -1, np.int32)
        self._hashes = np.empty((_START, 2), np.uint64)
        self._marks = np.zeros(_START, np.bool_)

    def number(self, hashes: Hashes) -> npt.NDArray[np.int32]:
        """The number of each term; new ones are given to terms that come for the first time."""
        needed = self.count + len(hashes)
        if 2 * needed > self._numbers.size:
            size = 1 << (2 * needed).bit_length()
            known = self._hashes[: self.count].copy()
            self._numbers = np.full(size, -1, np.int32)
            self._hashes = np.resize(self._hashes, (size, 2))
            self._marks = np.zeros(size, np.bool_)
            _number(known, self._numbers, self._hashes, 0, np.empty(len(known), np.int32))
        numbers = np.empty(len(hashes), np.int32)
        self.count = _number(hashes, self._numbers, self._hashes, self.count, numbers)
        return numbers

    def pick(self, groups: npt.NDArray[np.int32], starts: Ints, numbers: npt.NDArray[np.int32]) -> Hashes:
        """The terms numbers[starts[g] : starts[g + 1]] of all g of `groups`, each once."""
        picked = np.empty(self.count + 1, np.int32)  # one more, for what is written and not kept
        count = _pick(groups, starts, numbers, self._marks, picked)
        return self._hashes[picked[:count]]


@kernel
def _number(hashes, table, known, count, out):  # type: ignore[no-untyped-def]
    """Number terms by a table of numbers that is less than half full; returns how many terms there are now."""
    mask = table.size - 1
    for row in range(hashes.shape[0]):
        slot = np.int64(hashes[row, 0] & np.uint64(mask))
        number = table[slot]
        while number >= 0 and (known[number, 0] != hashes[row, 0] or known[number, 1] != hashes[row, 1]):
            slot = (slot + 1) & mask
            number = table[slot]
        if number < 0:
            known[count, 0], known[count, 1] = hashes[row, 0], hashes[row, 1]
            table[slot] = number = count
            count += 1
        out[row] = number
    return count


@kernel
def _pick(groups, starts, numbers, marks, picked):  # type: ignore[no-untyped-def]
    """List the numbers of all groups, each once. `marks` are clear before and after."""
    count = 0
    for group in groups:
        for i in range(starts[group], starts[group + 1]):
            number = numbers[i]
            picked[count] = number
            count += not marks[number]
            marks[number] = True
    for i in range(count):
        marks[picked[i]] = False
    return count


@kernel(inline="always")
def _insert(table, count, h1, h2):  # type: ignore[no-untyped-def]
    """The number of terms afterwards. The caller has made sure of a free slot."""
    mask = table.shape[0] - 1
    slot = np.int64(h1 & np.uint64(mask))
    while table[slot, 0] != 0 or table[slot, 1] != 0:
        if table[slot, 0] == h1 and table[slot, 1] == h2:
            return count
        slot = (slot + 1) & mask
    table[slot, 0], table[slot, 1] = h1, h2
    return count + 1


@kernel
def _list_hashes(table, out):  # type: ignore[no-untyped-def]
    put = 0
    for slot in range(table.shape[0]):
        if table[slot, 0] != 0 or table[slot, 1] != 0:
            out[put, 0], out[put, 1] = table[slot, 0], table[slot, 1]
            put += 1


@kernel
def _add_hashes(hashes, row, table, count):  # type: ignore[no-untyped-def]
    """Add rows from `row` on until half of the table is in use: (rows done, terms)."""
    while row < hashes.shape[0] and 2 * count < table.shape[0]:
        count = _insert(table, count, hashes[row, 0], hashes[row, 1])
        row += 1
    return row, count


@kernel
def _add_slices(buf, at, size, seed, row, table, count):  # type: ignore[no-untyped-def]
    while row < at.size and 2 * count < table.shape[0]:
        if size[row] >= 0:
            h1, h2 = hash128(buf, at[row], size[row], seed)
            count = _insert(table, count, h1, h2)
        row += 1
    return row, count
