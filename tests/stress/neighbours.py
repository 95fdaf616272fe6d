"""Threads that allocate arrays of the shapes that kernels work with, and check that no other thread writes into them.

Arrays are made by numpy and, in a kernel, by numba: each has an allocator of its own before malloc.
"""

from __future__ import annotations

from itertools import count

import numpy as np
import numpy.typing as npt

from overlay.kernels import kernel

from .engine import Answer, Job, Work

HELD = 64
SHAPES = ((64, 4), (4, 4), (4, 8), (4, 12), (4, 20), (4,), (8,), (12,), (20,), (3, 200), (4096,), (5, 500))
"""Of templates, frames and log positions of met keys; and of columns of a few hundred records."""


def open_numpy() -> Work:
    """Hold arrays full of a number, and check each before it is let go."""
    held: list[npt.NDArray[np.int64]] = []
    numbers = count(1 << 40)

    def work() -> Answer:
        for shape in SHAPES * 8:
            number = next(numbers)
            held.append(np.full(shape, number, np.int64))
        while len(held) > HELD:
            array = held.pop(0)
            number = int(array.flat[-1])
            if not (array == number).all() or number < 1 << 40:
                return {"array": f"{array.shape} was written into: {np.unique(array)[:5].tolist()}"}
        return {}

    return work


@kernel
def _allocate(rows: int, columns: int, rounds: int) -> int:
    """Make arrays, fill them, and look again when others have been made: how many were written into."""
    bad = 0
    for _ in range(rounds):
        first = np.full((columns, rows), 77, np.int64)
        second = np.full(rows, -1, np.int64)
        third = np.zeros((64, 4), np.int64)
        for i in range(rows):
            for k in range(columns):
                bad += first[k, i] != 77
            bad += second[i] != -1
        for i in range(64):
            for k in range(4):
                bad += third[i, k] != 0
    return bad


def open_numba() -> Work:
    """The same inside a kernel."""

    def work() -> Answer:
        for rows in (4, 8, 12, 20, 64, 300):
            if bad := _allocate(rows, 4, 200):
                return {"array": f"{bad} numbers of arrays with {rows} rows were written over"}
        return {}

    return work


NEIGHBOURS = [Job("neighbour numpy", open_numpy), Job("neighbour numba", open_numba)]
