"""Which incarnation of a consumer gave out which of its consumer sequences.

An incarnation is one ownership of one consumer's machine, named by a text that is never used again. A machine whose last
deliveries were not committed is followed by one that gives the same consumer sequences to other messages, and so is the
machine of a consumer that was deleted and made again. So an ack names the incarnation beside the consumer sequence, and it
counts if the committed state says that this incarnation gave out this sequence.

The state holds runs: first and last consumer sequence, and the incarnation. The empty text stands for machines of versions
that knew no incarnations; their tokens name none. Runs that no ack can settle a message by are left out when a machine is
restored, and of the others the newest MOST are kept. An ack by a run that was left out is refused: its message is delivered
again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from overlay.index.ragged import Ints

from .deadlines import NEVER

MOST = 256

Run = tuple[int, int, str]
Range = tuple[int, int]


class Lineage:
    """The runs of one consumer, rising. The last one is open: `incarnation` gives out what follows."""

    def __init__(self, incarnation: str = "") -> None:
        self.incarnation = incarnation
        self._runs: list[Run] = [(1, NEVER, incarnation)]

    def restore(self, runs: Iterable[Run], delivered: int, named: Ints) -> None:
        """Put the runs of a committed state in front of the open one.

        `delivered`: the last consumer sequence of that state. `named`: the consumer sequences that an ack may still name.
        """
        known = [run for run in runs if np.any((named >= run[0]) & (named <= run[1]))][-MOST:]
        self._runs = [*known, (delivered + 1, NEVER, self.incarnation)]

    def list_runs(self, delivered: int) -> list[Run]:
        """The runs to be written into the state; `delivered`: the last consumer sequence given out."""
        return [(first, min(last, delivered), name) for first, last, name in self._runs if first <= delivered]

    def find_given(self, incarnation: str, consumer_seqs: Ints, delivered: int) -> npt.NDArray[np.bool_]:
        """Return for each consumer sequence whether this incarnation gave it out; `delivered`: the last one given out."""
        given = np.zeros(consumer_seqs.size, np.bool_)
        for first, last, name in self._runs:
            if name == incarnation:
                given |= (consumer_seqs >= first) & (consumer_seqs <= min(last, delivered))
        return given

    def clip(self, incarnation: str, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Return the parts of the ranges that this incarnation gave out."""
        own = [run for run in self._runs if run[2] == incarnation]
        found = ((max(first, low), min(last, high)) for first, last in ranges for low, high, _ in own)
        return tuple((first, last) for first, last in found if first <= last)
