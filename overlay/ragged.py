"""Rows of different lengths in one array: row i is data[starts[i] : starts[i + 1]]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arrays import AnyArray, ArrayOf, Ints, Item
from .kernels import kernel


class Ragged:
    """An array of rows of different lengths that grows at the end: row i is data[starts[i] :
    starts[i + 1]]. `rows`: how many rows there are; `data` and `starts` may have room for more.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.rows = 0
        self.starts: Ints = np.zeros(1025, np.int64)
        self.data: AnyArray = np.empty(1024, dtype)

    @property
    def used(self) -> int:
        """Return the number of items in all rows."""
        return int(self.starts[self.rows])

    @property
    def nbytes(self) -> int:
        """Return the bytes in memory, unused room included."""
        return self.data.nbytes + self.starts.nbytes

    def extend(self, sizes: Ints) -> AnyArray:
        """Append rows with `sizes` items each. Return the part of `data` with their items, row
        after row, for the caller to fill in before the next call.
        """
        end, rows = self.used, self.rows + sizes.size
        if rows >= self.starts.size:
            self.starts = _grow(self.starts, self.rows + 1, rows + 1)
        np.cumsum(sizes, out=self.starts[self.rows + 1 : rows + 1])
        self.starts[self.rows + 1 : rows + 1] += end
        self.rows = rows
        if self.used > self.data.size:
            self.data = _grow(self.data, end, self.used)
        return self.data[end : self.used]

    def truncate(self, rows: int) -> None:
        """Keep only the first `rows` rows; there have to be at least that many. Frees no memory."""
        self.rows = rows

    def take(self, kept: Ints) -> None:
        """Keep only the rows with these numbers, in this order, in new arrays."""
        sizes = np.diff(self.starts[: self.rows + 1])[kept]
        starts = np.zeros(kept.size + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        data = np.empty(max(int(starts[-1]), 1), self.data.dtype)
        _gather(self.data, self.starts, kept, data)
        self.data, self.starts, self.rows = data, starts, kept.size

    def widen(self, largest: int) -> None:
        """Change the item type to a larger unsigned one if `largest` does not fit the present one.
        The items keep their values.
        """
        if largest > np.iinfo(self.data.dtype).max:
            self.data = self.data.astype(np.min_scalar_type(largest))

    def shrink(self) -> None:
        """Free unused memory of `data` if its items need less than half of it."""
        if 2 * self.used < self.data.size:
            self.data = self.data[: self.used].copy()


def _grow(array: AnyArray, used: int, needed: int) -> AnyArray:
    larger = np.empty(max(needed, array.size * 3 // 2), array.dtype)
    larger[:used] = array[:used]
    return larger


@kernel
def _gather(data: ArrayOf[Item], starts: Ints, kept: Ints, out: ArrayOf[Item]) -> None:
    put = 0
    for row in kept:
        for i in range(starts[row], starts[row + 1]):
            out[put] = data[i]
            put += 1
