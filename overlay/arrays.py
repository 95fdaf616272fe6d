"""The types of arrays, one name for each type of their items.

A module that gives an array a meaning of its own names it in terms of these: `Codes = Int32s`.

Kernels (kernels.py) are checked with these names as well. mypy sees the type of an array, but not of
one item of it, which it takes for Any. A number that a kernel has converted is numpy's and no
Python int, though both are the same 64 bits to numba: that is what `Int` is for.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

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
