"""The heap of deadlines: pairs of time and stream sequence in two arrays.

Entries are never changed. A deadline that moves gets a second entry. The first one is known to be
stale when it comes up, because the row is settled, queued or due later. The window rebuilds the
heap without stale entries once they are many (`Window._set_deadline`). Deadlines with equal waits
are pushed in order, and then a push costs one comparison.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Ints
from overlay.kernels import kernel

NEVER = (1 << 63) - 1
"""A deadline that never comes, in ns since 1970."""


class Deadlines:
    """A heap of deadlines, earliest first: pairs of a time (ns since 1970) and a stream sequence. A
    deadline that was moved or has ended stays as a stale pair; the caller recognises it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._times = np.empty(64, np.int64)
        self._sequences = np.empty(64, np.int64)

    @property
    def first(self) -> int:
        """The earliest time in the heap, which may be that of a stale pair; NEVER if the heap is
        empty.
        """
        return int(self._times[0]) if self.size else NEVER

    @property
    def nbytes(self) -> int:
        return self._times.nbytes + self._sequences.nbytes

    def push(self, times: Ints, sequences: Ints) -> None:
        """Add pairs: a time and a stream sequence each, in any order."""
        needed = self.size + times.size
        if needed > self._times.size:
            room = needed + needed // 4
            self._times, self._sequences = _widen(self._times, room), _widen(self._sequences, room)
        _push(self._times, self._sequences, self.size, times, sequences)
        self.size = needed

    def pop_due(self, now: int) -> tuple[Ints, Ints]:
        """Remove the pairs whose time is `now` (ns since 1970) or earlier, stale ones included.
        Return their times and their stream sequences, earliest first.
        """
        due = _count_due(self._times, self.size, now)
        times, sequences = np.empty(due, np.int64), np.empty(due, np.int64)
        _pop(self._times, self._sequences, self.size, times, sequences)
        self.size -= due
        return times, sequences

    def rebuild(self, times: Ints, sequences: Ints) -> None:
        """Replace all pairs by these: a time and a stream sequence each, in any order."""
        order = np.argsort(times, kind="stable")
        self._times, self._sequences, self.size = times[order], sequences[order], times.size


def _widen(array: Ints, room: int) -> Ints:
    wider = np.empty(room, np.int64)
    wider[: array.size] = array
    return wider


@kernel
def _push(times: Ints, sequences: Ints, size: int, new_times: Ints, new_sequences: Ints) -> None:
    for i in range(new_times.size):
        at, time = size + i, new_times[i]
        while at > 0 and times[(at - 1) // 2] > time:
            times[at] = times[(at - 1) // 2]
            sequences[at] = sequences[(at - 1) // 2]
            at = (at - 1) // 2
        times[at] = time
        sequences[at] = new_sequences[i]


@kernel
def _count_due(times: Ints, size: int, now: int) -> int:
    """Return how many of the heap's `size` pairs have a time of `now` or earlier.

    Children of an entry that is not due are never due, so they are not visited.
    """
    if size == 0 or times[0] > now:
        return 0
    stack = [0]
    count = 0
    while len(stack) > 0:
        at = stack.pop()
        count += 1
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and times[child] <= now:
                stack.append(child)  # noqa: PERF401 - numba has no extend from a generator
    return count


@kernel
def _pop(times: Ints, sequences: Ints, size: int, out_times: Ints, out_sequences: Ints) -> None:
    for i in range(out_times.size):
        out_times[i], out_sequences[i] = times[0], sequences[0]
        size -= 1
        time, sequence, at = times[size], sequences[size], 0
        while 2 * at + 1 < size:
            child = 2 * at + 1
            if child + 1 < size and times[child + 1] < times[child]:
                child += 1
            if times[child] >= time:
                break
            times[at], sequences[at] = times[child], sequences[child]
            at = child
        times[at], sequences[at] = time, sequence
