"""Which consumers want which records of a slice, found for all consumers at once.

Patterns are matched once per distinct subject, when the dictionary first meets it. The result is a
row of consumer numbers for the subject's code. Kernels then distribute the records of a slice: one
selects the records that any consumer wants, and of those each is visited once to count and once to
place. The cost is proportional to the matches: ten thousand consumers that want nothing of a slice
cost nothing. Consumers with the same patterns form one group for the kernels: a hundred that differ
only by their SQL filters get one list of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from overlay.arrays import Ints
from overlay.kernels import kernel
from overlay.subject import Matcher, Pattern
from overlay.subject.dictionary import Codes, Dictionary

from .values import Values, narrow


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Rows of a slice per group of consumers: those of group g are rows[bounds[g]:bounds[g+1]],
    ascending.
    """

    bounds: Ints
    rows: Ints
    groups: Ints
    """The group number of each consumer."""
    _parts: dict[int, Ints] = field(default_factory=dict)

    def of(self, consumer: int) -> Ints:
        """Return the rows that a consumer wants, ascending: the same array for all consumers of a
        group, not to be changed.
        """
        group = int(self.groups[consumer])
        if group not in self._parts:
            self._parts[group] = self.rows[self.bounds[group] : self.bounds[group + 1]]
        return self._parts[group]

    def wanting(self, among: Ints | None = None) -> list[int]:
        """Return the numbers of the consumers that want at least one row, in the order of `among`;
        ascending if that is None, for all consumers.
        """
        some = np.flatnonzero(np.diff(self.bounds)[self.groups]) if among is None else among[self.count(among) > 0]
        wanting: list[int] = some.tolist()
        return wanting

    def count(self, consumers: Ints) -> Ints:
        """Return how many rows each of these consumers wants."""
        groups = self.groups[consumers]
        return self.bounds[groups + 1] - self.bounds[groups]

    def gather(self, consumers: Ints, counts: Ints) -> Ints:
        """Return the rows of these consumers, one consumer after the other, each one's ascending.
        `counts`: how many each has, as `count` returns them.
        """
        gathered = np.empty(int(counts.sum()), np.int64)
        _gather(self.rows, self.bounds[self.groups[consumers]], counts, gathered)
        return gathered


class Audience:
    """The consumers of one scan, numbered from 0 by their place in `filters`. Each wants the
    records whose subject one of its patterns matches.

    `dictionary`: the one that the codes passed to `select` are from. `values`: the filter values
    that each consumer wants; empty if none wants any. Values that are subjects narrow the patterns;
    others are not looked at here.
    """

    def __init__(
        self, dictionary: Dictionary, filters: Sequence[Sequence[Pattern]], values: Sequence[Values | None] = ()
    ) -> None:
        self._dictionary = dictionary
        if values:
            filters = [narrow(patterns, each) for patterns, each in zip(filters, values, strict=True)]
        groups = {patterns: group for group, patterns in enumerate(dict.fromkeys(map(frozenset, filters)))}
        self._matcher = Matcher([(pattern, group) for patterns, group in groups.items() for pattern in patterns])
        self._groups = np.array([groups[frozenset(patterns)] for patterns in filters], np.int64)
        self._count = len(groups)
        self._forget()

    def _forget(self) -> None:
        self._generation = self._dictionary.generation
        self._known = 0
        self._starts = np.zeros(1024, np.int64)
        self._ids = np.empty(1024, np.int64)

    def _learn(self) -> None:
        """Find the groups of consumers whose patterns match each subject that the dictionary has
        added since the last call, and store them by its code.
        """
        subjects, known = self._dictionary.subjects, self._known
        if known == len(subjects):
            return
        found = [self._matcher.match(subject) for subject in subjects[known:]]
        start = int(self._starts[known])
        ends = start + np.cumsum([len(ids) for ids in found])
        self._starts = _make_room(self._starts, len(subjects) + 1)
        self._starts[known + 1 : len(subjects) + 1] = ends
        self._ids = _make_room(self._ids, int(ends[-1]))
        self._ids[start : int(ends[-1])] = list(chain.from_iterable(found))
        self._known = len(subjects)

    def select(self, codes: Codes) -> Selection:
        """Return which rows of a slice each consumer wants by its patterns. `codes`: the subject
        code of each record of the slice; a record with a negative one is wanted by none.
        """
        if self._generation != self._dictionary.generation:
            self._forget()
        self._learn()
        wanted = np.empty(codes.size, np.int64)
        wanted = wanted[: _sift(codes, self._starts, wanted)]
        bounds = np.zeros(self._count + 1, np.int64)
        if self._count == 1:
            bounds[1] = wanted.size
            return Selection(bounds, wanted, self._groups)
        _count(wanted, codes, self._starts, self._ids, bounds[1:])
        np.cumsum(bounds, out=bounds)
        rows = np.empty(int(bounds[-1]), np.int64)
        _place(wanted, codes, self._starts, self._ids, bounds[:-1].copy(), rows)
        return Selection(bounds, rows, self._groups)


def _make_room(array: Ints, size: int) -> Ints:
    """Return an array of at least `size` items that begins with those of `array`; `array` itself if it is large enough."""
    return array if size <= array.size else np.resize(array, max(size, 2 * array.size))


@kernel
def _sift(codes: Codes, starts: Ints, wanted: Ints) -> int:
    """Write the rows that any consumer wants to the front of `wanted`. Return how many. `starts`:
    code c has consumers if starts[c+1] > starts[c].

    Every row is written and only wanted ones are kept: an unpredictable branch would cost more than
    the write.
    """
    found = 0
    for row in range(codes.size):
        code = max(codes[row], 0)
        wanted[found] = row
        found += (codes[row] >= 0) & (starts[code + 1] > starts[code])
    return found


@kernel
def _count(wanted: Ints, codes: Codes, starts: Ints, ids: Ints, counts: Ints) -> None:
    for row in wanted:
        for i in range(starts[codes[row]], starts[codes[row] + 1]):
            counts[ids[i]] += 1


@kernel
def _place(wanted: Ints, codes: Codes, starts: Ints, ids: Ints, free: Ints, rows: Ints) -> None:
    for row in wanted:
        for i in range(starts[codes[row]], starts[codes[row] + 1]):
            rows[free[ids[i]]] = row
            free[ids[i]] += 1


@kernel
def _gather(rows: Ints, starts: Ints, counts: Ints, gathered: Ints) -> None:
    put = 0
    for i in range(starts.size):
        for at in range(starts[i], starts[i] + counts[i]):
            gathered[put] = rows[at]
            put += 1
