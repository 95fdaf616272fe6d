"""Ranges of sequences in range acks: how they are joined into ranges without overlap, and which
sequences they contain.

Anyone with write access to an ack topic chooses the ranges. Joined and clipped ranges select each
delivery once. So the work that an ack causes is bounded by its own size and by the number of
pending messages, not by their product.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from overlay.arrays import Ints

Range = tuple[int, int]


def join(ranges: Iterable[Range], last: int) -> list[Range]:
    """Return the ranges in rising order and without overlap: overlapping and adjacent ranges become
    one. What lies above `last` is cut off, and ranges above it are left out.

    Both ends of a range are included. `ranges`: in any order.
    """
    joined: list[Range] = []
    for first, end in sorted(ranges):
        clipped = min(end, last)
        if clipped < first:
            continue
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], clipped)
        else:
            joined.append((first, clipped))
    return joined


def find_within(sequences: Ints, joined: list[Range]) -> npt.NDArray[np.bool_]:
    """Return for each sequence, in any order, whether it lies in one of the ranges.

    `joined`: as `join` returned them.
    """
    if not joined:
        return np.zeros(sequences.size, np.bool_)
    bounds = np.array(joined, np.int64)
    at = np.searchsorted(bounds[:, 0], sequences, side="right") - 1
    within: npt.NDArray[np.bool_] = (at >= 0) & (sequences <= bounds[at, 1])
    return within
