"""Which incarnation of a consumer gave out which of its consumer sequences
(docs/consumers.md#incarnations).

An incarnation is one ownership of one consumer's machine. Its name is never used again. A machine
may end with deliveries that were not committed. Its successor then gives the same consumer
sequences to other messages. The machine of a consumer that was deleted and created again does so
too. So an ack names the incarnation beside the consumer sequence. It counts if the committed state
says that this incarnation gave out this sequence.

The name is a secret of the consumer: only readers of its deliveries learn it. So a client that may
write acks for one consumer cannot settle messages of another. The state holds a digest in place of
the name (`hide`). A client that reads the state topic cannot write acks by it.

Names of earlier versions can be guessed: two numbers that all consumers of a shard share, or no
name at all. Acks that name these count for deliveries of earlier versions alone (settling.py).

The state holds runs: first and last consumer sequence, and the hidden name. The empty name stands
for machines of versions without incarnations, whose tokens name none. Checkpoints contain all runs
and deltas only the open one, so the size of a delta does not depend on how often a consumer changed
its owner. `join_runs` puts the list together again.

When a machine is restored, runs are dropped if no ack can settle a message by them. The newest
RECENT runs always stay, because knowing an incarnation also decides about its deliveries that were
never committed (settling.py). At most MOST runs are kept. An ack that names a dropped run is
refused; if its message is pending, it is delivered again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from overlay.arrays import Ints

from .deadlines import NEVER
from .ranges import Range

MOST = 1 << 16
"""Most runs that are kept. A session of a shard is one incarnation: at one a minute this lasts for
a month and a half.
"""
RECENT = 64

_GUESSABLE = re.compile("([0-9]+x[0-9]+)?")
"""Names of earlier versions: none, or producer id and epoch of a shard's transactions."""

Run = tuple[int, int, str]
"""First and last consumer sequence, and the incarnation's name as `hide` returns it."""


def hide(incarnation: str) -> str:
    """Return what the state keeps of an incarnation's name: 32 hexadecimal digits, from which the
    name cannot be told. A name of an earlier version, which is no secret, is returned as it is.
    """
    if _GUESSABLE.fullmatch(incarnation):
        return incarnation
    return hashlib.blake2b(incarnation.encode(), digest_size=16).hexdigest()


class Lineage:
    """Which incarnation (ownership) of one consumer gave out which consumer sequences, as runs in
    rising order.

    The last run is open: `incarnation` gives out all further consumer sequences. `former`: the runs
    of a committed state before it. `delivered`: the last consumer sequence of that state. The
    methods take names as tokens have them.
    """

    def __init__(self, incarnation: str = "", former: Sequence[Run] = (), delivered: int = 0) -> None:
        self.incarnation = incarnation
        self._hidden = hide(incarnation)
        self._open, self._former = delivered + 1, list(former)
        runs = sorted((*former, (self._open, NEVER, self._hidden)), key=lambda run: run[2])
        self._by_hidden = {name: list(own) for name, own in groupby(runs, key=lambda run: run[2])}

    def list_runs(self, delivered: int) -> list[Run]:
        """Return all runs, for a checkpoint. `delivered`: the last consumer sequence given out,
        where the open run ends now.
        """
        run = self.find_open(delivered)
        return [*self._former, run] if run else list(self._former)

    def find_open(self, delivered: int) -> Run | None:
        """Return the run of this machine, for a delta; None if it has given out nothing.

        `delivered`: the last consumer sequence given out, where the run ends now.
        """
        return (self._open, delivered, self._hidden) if self._open <= delivered else None

    def is_guessable(self, incarnation: str) -> bool:
        """Return whether any client can make up this name: it is one of an earlier version, and not
        the name of this machine.
        """
        return incarnation != self.incarnation and _GUESSABLE.fullmatch(incarnation) is not None

    def find_given(self, incarnation: str, consumer_seqs: Ints, delivered: int) -> npt.NDArray[np.bool_]:
        """Return for each consumer sequence whether `incarnation` gave it out; all False if the
        incarnation is unknown.

        `delivered`: the last consumer sequence that was given out by any incarnation. False for
        every one above it.
        """
        given = np.zeros(consumer_seqs.size, np.bool_)
        for first, last, _ in self._by_hidden.get(hide(incarnation), ()):
            given |= (consumer_seqs >= first) & (consumer_seqs <= min(last, delivered))
        return given

    def find_end(self, incarnation: str) -> int:
        """Return the last consumer sequence that `incarnation` gave out and committed, if it is an
        earlier one. 0 for the current incarnation, an unknown one, and the empty name.

        Deliveries of that incarnation above the result were never committed.
        """
        last = self._by_hidden.get(hide(incarnation), [(0, 0, "")])[-1][1]
        return 0 if last == NEVER or not incarnation else last

    def clip(self, incarnation: str, ranges: Iterable[Range]) -> tuple[Range, ...]:
        """Return the parts of the ranges (consumer sequences, both ends included) that this
        incarnation gave out; for the current one also sequences that it has yet to give out.
        """
        own = self._by_hidden.get(hide(incarnation), ())
        found = ((max(first, low), min(last, high)) for first, last in ranges for low, high, _ in own)
        return tuple((first, last) for first, last in found if first <= last)


def choose_runs(runs: Sequence[Run], named: Ints, *, is_cumulative: bool = False) -> list[Run]:
    """Return those runs of a committed state that have to be kept, in order: runs with one of the
    `named` consumer sequences, and the RECENT last runs. Of these, at most the MOST last ones.

    `named`: the consumer sequences that an ack may still name, in any order. `is_cumulative`: an ack
    also settles what was delivered before it, so all runs after a kept one are kept too.
    """
    bounds = np.array([run[:2] for run in runs], np.int64).reshape(-1, 2)
    rising = np.sort(named)
    begin = np.searchsorted(rising, bounds[:, 0])
    kept = np.searchsorted(rising, bounds[:, 1], side="right") > begin
    if is_cumulative:
        kept = np.maximum.accumulate(kept)
    kept[-RECENT:] = True
    return [runs[at] for at in np.flatnonzero(kept)[-MOST:].tolist()]


def join_runs(heads: Iterable[dict[str, Any]]) -> list[Run]:
    """Return the runs of a consumer, in order, from the heads of its state records (snapshot.py),
    in the order in which they were written. The names are as `hide` returns them.

    A record that gave out something and has neither `incarnations` nor `run` was written by a
    version without incarnations, or by a machine whose tokens name none: its run has the empty
    name. Such a record may be between records of a later version.
    """
    runs: list[Run] = []
    up_to = 0
    for head in heads:
        delivered = head["delivered"].consumer
        if "incarnations" in head:
            runs = list(head["incarnations"])
        elif "run" in head:
            _put(runs, head["run"])
        elif delivered > up_to:
            _put(runs, (runs[-1][0] if runs and not runs[-1][2] else up_to + 1, delivered, ""))
        up_to = delivered
    return runs


def _put(runs: list[Run], run: Run) -> None:
    """Append `run` to `runs`. If the last run has the same beginning and incarnation, replace it:
    `run` is a later state of it.
    """
    if runs and runs[-1][0] == run[0] and runs[-1][2] == run[2]:
        runs.pop()
    runs.append(run)
