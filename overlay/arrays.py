"""The types of arrays, one name for each type of their items, and arrays with rows of different lengths.

A module that gives an array a meaning of its own names it in terms of these: `Codes = Int32s`.

Kernels (kernels.py) are checked with these names as well. mypy sees the type of an array, but not of
one item of it, which it takes for Any. A number that a kernel has converted is numpy's and no
Python int, though both are the same 64 bits to numba: that is what `Int` is for.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from .kernels import kernel

Item = TypeVar("Item", bound=np.generic)

Ints: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int8s: TypeAlias = npt.NDArray[np.int8]
Words: TypeAlias = npt.NDArray[np.uint64]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt16s: TypeAlias = npt.NDArray[np.uint16]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]
Doubles: TypeAlias = npt.NDArray[np.float64]
Structs: TypeAlias = npt.NDArray[np.void]
"""Items with named fields; their dtype says which."""
ArrayOf: TypeAlias = npt.NDArray[Item]
"""An array of any type that other arguments have as well: `ArrayOf[Item]`."""
AnyArray: TypeAlias = npt.NDArray[Any]
"""An array whose type is only known at run time. Not for kernels."""

Int: TypeAlias = int | np.int64
"""A whole number in a kernel."""
Bool: TypeAlias = bool | np.bool_
"""A truth value in a kernel."""


class Ragged:
    """An array of rows of different lengths that grows at the end: row i is data[starts[i] : starts[i + 1]].

    `rows` are in use; `data` and `starts` may have room for more.
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
        """Append rows of these sizes. Return their items end to end, for the caller to fill."""
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
        """Keep only the first `rows` rows."""
        self.rows = rows

    def take(self, kept: Ints) -> None:
        """Keep only these rows, in this order."""
        sizes = np.diff(self.starts[: self.rows + 1])[kept]
        starts = np.zeros(kept.size + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        data = np.empty(max(int(starts[-1]), 1), self.data.dtype)
        _gather(self.data, self.starts, kept, data)
        self.data, self.starts, self.rows = data, starts, kept.size

    def widen(self, largest: int) -> None:
        """Change the item type, if needed, so that it can hold `largest`."""
        if largest > np.iinfo(self.data.dtype).max:
            self.data = self.data.astype(np.min_scalar_type(largest))

    def shrink(self) -> None:
        """Free unused memory if less than half is in use."""
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
