"""The distinct terms of a growing chunk: hashes in a list, and a hash table that finds them there,
filled by kernels.

A Bloom filter must be sized for its terms, and how many are distinct is known only at the end.
Beyond `limit` terms a filter would say nothing, so no more are added.

The table holds numbers instead of hashes, four bytes a slot. Between two chunks the records of a
slice pass through the CPU cache, so every access to the table comes from memory, and a small table
needs fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVarTuple

import numpy as np

from overlay.arrays import Bytes, Flags, Int32s, Ints
from overlay.kernels import kernel

from .murmur import hash128
from .terms import Hashes, Term, as_hashes

_START = 1 << 12
_KEPT = 1 << 14  # a larger table is not cleared but replaced by a small one


Given = TypeVarTuple("Given")


class TermSet:
    """A set of distinct terms, as hashes. Once it has `limit` terms or more, further ones may be
    left out. Not for two threads at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        # a slot has 1 + the number of a term, 0 if free; at most half of the slots are used
        self._table = np.zeros(_START, np.int32)
        self._hashes = np.empty((_START // 2, 2), np.uint64)

    @property
    def is_full(self) -> bool:
        """Whether `limit` is reached. From then on terms may be left out."""
        return self.count >= self._limit

    @property
    def hashes(self) -> Hashes:
        """Return all hashes in the order of arrival. Valid until the set is cleared."""
        return self._hashes[: self.count]

    def clear(self) -> None:
        """Remove all terms. A table that has grown large is replaced by a small one."""
        if self._table.size > _KEPT:
            self._begin()
        else:
            self._table[:] = 0
            self.count = 0

    def add(self, *terms: Term) -> None:
        """Add terms."""
        self.add_hashes(as_hashes(*terms))

    def add_hashes(self, hashes: Hashes) -> None:
        """Add terms given by their hashes."""
        self.fill(_add_hashes, len(hashes), hashes)

    def add_slices(self, buf: Bytes, at: Ints, size: Ints, seed: int) -> None:
        """Hash the bytes buf[at[i] : at[i] + size[i]] and add the hashes; skip those with a size
        below 0. `seed`: of the hash.
        """
        self.fill(_add_slices, at.size, buf, at, size, np.uint64(seed))

    def fill(
        self,
        kernel: Callable[[*Given, int, Int32s, Hashes, int], tuple[int, int]],
        rows: int,
        *arrays: *Given,
    ) -> int:
        """Let a kernel add the terms of `rows` rows. Return how many rows it has done: fewer only
        if the set is full.

        The kernel gets the arrays, the row to continue at, the table, the hashes, and the number of
        terms. It continues until find_room returns 0, and returns the rows done and the number of
        terms. It is called again after the table has grown.
        """
        done = 0
        while done < rows and not self.is_full:
            done, self.count = kernel(*arrays, done, self._table, self._hashes, self.count)
            if done < rows:
                self._grow()
        return done

    def _grow(self) -> None:
        table = np.zeros(self._table.size * 2, np.int32)
        hashes = np.empty((self._table.size, 2), np.uint64)
        _add_hashes(self.hashes, 0, table, hashes, 0)
        self._table, self._hashes = table, hashes


class TermNumbers:
    """A numbering of distinct terms, from 0 on. Subjects share most of their terms, and numbers are
    compared faster than hashes.
    """

    def __init__(self) -> None:
        self.count = 0
        self._table = np.zeros(_START, np.int32)
        self._hashes = np.empty((_START // 2, 2), np.uint64)
        self._marks = np.zeros(_START // 2, np.bool_)

    def number(self, hashes: Hashes) -> Int32s:
        """Return the number of each term, one per hash. A term that is new gets the next number."""
        needed = self.count + len(hashes)
        if 2 * needed > self._table.size:
            size = 1 << (2 * needed).bit_length()
            known = self._hashes[: self.count]
            self._table, self._hashes = np.zeros(size, np.int32), np.empty((size // 2, 2), np.uint64)
            self._marks = np.zeros(size // 2, np.bool_)
            _number(known, self._table, self._hashes, 0, np.empty(len(known), np.int32))
        numbers = np.empty(len(hashes), np.int32)
        self.count = _number(hashes, self._table, self._hashes, self.count, numbers)
        return numbers

    def put(self, groups: Int32s, starts: Ints, numbers: Int32s, terms: TermSet) -> None:
        """Add the terms with the numbers numbers[starts[g] : starts[g + 1]], for all g of `groups`,
        to the set `terms`.
        """
        picked = np.empty(self.count + 1, np.int32)  # one more, for what is written and not kept
        count = _pick(groups, starts, numbers, self._marks, picked)
        terms.fill(_add_numbers, count, picked[:count], self._hashes)


@kernel(inline="always")
def find_room(table: Int32s, count: int) -> int:
    """Return how many more terms a table takes before it must grow. `count`: how many it has."""
    return table.size // 2 - count


@kernel(inline="always")
def insert(table: Int32s, hashes: Hashes, count: int, h1: np.uint64, h2: np.uint64) -> tuple[int, int]:
    """Find the term with the hash (h1, h2), or add it. `count`: how many terms the table has.
    Return (1 + the term's number, how many terms there are now). The table must have room for one
    more.
    """
    mask = np.uintp(table.size - 1)
    slot = np.uintp(h1) & mask
    number = table[slot]
    while number and (hashes[number - 1, 0] != h1 or hashes[number - 1, 1] != h2):
        slot = (slot + np.uintp(1)) & mask
        number = table[slot]
    if not number:
        hashes[count, 0], hashes[count, 1] = h1, h2
        count += 1
        table[slot] = number = count
    return number, count


@kernel
def _number(hashes: Hashes, table: Int32s, known: Hashes, count: int, out: Int32s) -> int:
    """Write the number of each term to `out`; new terms are added to the table, which must have
    room for them. Return how many terms there are now.
    """
    for row in range(hashes.shape[0]):
        number, count = insert(table, known, count, hashes[row, 0], hashes[row, 1])
        out[row] = number - 1
    return count


@kernel
def _pick(groups: Int32s, starts: Ints, numbers: Int32s, marks: Flags, picked: Int32s) -> int:
    """Write the numbers numbers[starts[g] : starts[g + 1]] of all g in `groups` to `picked`, each
    once, and return how many there are. `picked` has room for one more. `marks` (one flag per
    number) are all clear before and after.
    """
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


@kernel
def _add_hashes(added: Hashes, row: int, table: Int32s, hashes: Hashes, count: int) -> tuple[int, int]:
    while row < added.shape[0] and find_room(table, count) > 0:
        _, count = insert(table, hashes, count, added[row, 0], added[row, 1])
        row += 1
    return row, count


@kernel
def _add_numbers(
    numbers: Int32s, known: Hashes, row: int, table: Int32s, hashes: Hashes, count: int
) -> tuple[int, int]:
    while row < numbers.size and find_room(table, count) > 0:
        _, count = insert(table, hashes, count, known[numbers[row], 0], known[numbers[row], 1])
        row += 1
    return row, count


@kernel
def _add_slices(
    buf: Bytes, at: Ints, size: Ints, seed: np.uint64, row: int, table: Int32s, hashes: Hashes, count: int
) -> tuple[int, int]:
    while row < at.size and find_room(table, count) > 0:
        if size[row] >= 0:
            h1, h2 = hash128(buf, at[row], size[row], seed)
            _, count = insert(table, hashes, count, h1, h2)
        row += 1
    return row, count
