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
from typing import NamedTuple

import numpy as np

from overlay.arrays import Ints
from overlay.kernels import kernel
from overlay.subject import Matcher, Pattern
from overlay.subject.dictionary import Codes, Dictionary

from .values import Values, narrow


@dataclass(slots=True, eq=False)
class Selection:
    """Rows of a slice per group of consumers, and how many rows each consumer wants. Valid until the next slice is decoded.

    `wanted`: the rows that any consumer wants, ascending. `codes`: the subject codes of all rows of the slice. The groups that
    want code c are ids[starts[c]:starts[c+1]]. Group g wants bounds[g + 1] - bounds[g] rows.
    """

    wanted: Ints
    codes: Codes
    starts: Ints
    ids: Ints
    bounds: Ints
    groups: Ints
    """The group number of each consumer."""
    _rows: Ints | None = None
    """Those of group g are at bounds[g] to bounds[g+1]; None until one group's are asked for."""
    _parts: dict[int, Ints] = field(default_factory=dict)

    def of(self, consumer: int) -> Ints:
        """Return the rows that a consumer wants, ascending: the same array for all consumers of a
        group, not to be changed.
        """
        group = int(self.groups[consumer])
        if group not in self._parts:
            if self._rows is None:
                self._rows = self._place()
            self._parts[group] = self._rows[self.bounds[group] : self.bounds[group + 1]]
        return self._parts[group]

    def _place(self) -> Ints:
        """Return the rows of all groups, one group after the other."""
        if self.bounds.size == 2:
            return self.wanted
        rows = np.empty(int(self.bounds[-1]), np.int64)
        _place(self.wanted, self.codes, self.starts, self.ids, self.bounds[:-1].copy(), rows)
        return rows

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


class Dealt(NamedTuple):
    """Deliveries of a slice by pile: those of pile i are at bounds[i] to bounds[i+1] of the columns `rows`, `members` and
    `places`, in the order of the log.

    `rows`: the slice's row of each delivery. `members`: the consumer that gets it, as an index in `members` of Piles.
    `places`: how many rows the same member gets before it. `counts`, `first`, `last`: by member, how many rows it gets, and
    the first and the last of them. For a member without rows `first` and `last` mean nothing.
    """

    bounds: Ints
    rows: Ints
    members: Ints
    places: Ints
    counts: Ints
    first: Ints
    last: Ints


class Piles:
    """Deals the rows of slices out into piles, each for some of the consumers of an audience: one pass over the records for
    thousands of consumers.

    The members of pile i are the consumers `members[bounds[i]:bounds[i+1]]`, by their numbers. No consumer is in two piles.
    """

    def __init__(self, audience: Audience, members: Ints, bounds: Ints) -> None:
        self._members, self._bounds = members, bounds
        groups = audience.groups[members]
        # of each group, its members
        self._by_group = np.argsort(groups, kind="stable")
        self._starts = np.searchsorted(groups[self._by_group], np.arange(audience.count + 1))
        self._piles = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))

    def deal(self, selection: Selection) -> Dealt:
        """Return what the members want of a slice. `selection`: of the audience."""
        counts = selection.count(self._members)
        ends = np.zeros(counts.size + 1, np.int64)
        np.cumsum(counts, out=ends[1:])
        bounds, size = ends[self._bounds], int(ends[-1])
        rows, members, places = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
        dealt = Dealt(bounds, rows, members, places, counts, np.empty_like(counts), np.empty_like(counts))
        if size:
            _deal(
                selection.wanted, selection.codes, selection.starts, selection.ids, self._starts, self._by_group, self._piles,
                bounds[:-1].copy(), np.zeros_like(counts), rows, members, places, dealt.first, dealt.last,
            )  # fmt: skip
        return dealt


class Audience:
    """The consumers of one scan, numbered from 0 by their place in `filters`. Each wants the
    records whose subject one of its patterns matches.

    `dictionary`: the one that the codes passed to `select` are from. `values`: the filter values
    that each consumer wants; empty if none wants any. Values that are subjects narrow the patterns;
    others are not looked at here. `groups`: the group number of each consumer, `count`: how many
    groups there are.
    """

    def __init__(
        self, dictionary: Dictionary, filters: Sequence[Sequence[Pattern]], values: Sequence[Values | None] = ()
    ) -> None:
        self._dictionary = dictionary
        if values:
            filters = [narrow(patterns, each) for patterns, each in zip(filters, values, strict=True)]
        groups = {patterns: group for group, patterns in enumerate(dict.fromkeys(map(frozenset, filters)))}
        self._matcher = Matcher([(pattern, group) for patterns, group in groups.items() for pattern in patterns])
        self.groups = np.array([groups[frozenset(patterns)] for patterns in filters], np.int64)
        self.count = len(groups)
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
        bounds = np.zeros(self.count + 1, np.int64)
        if self.count == 1:
            bounds[1] = wanted.size
        else:
            _count(wanted, codes, self._starts, self._ids, bounds[1:])
            np.cumsum(bounds, out=bounds)
        return Selection(wanted, codes, self._starts, self._ids, bounds, self.groups)


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
def _deal(
    wanted: Ints, codes: Codes, starts: Ints, ids: Ints, group_starts: Ints, by_group: Ints, piles: Ints,
    free: Ints, dealt: Ints, rows: Ints, members: Ints, places: Ints, first: Ints, last: Ints,
) -> None:  # fmt: skip
    """Write the deliveries of a slice to `rows`, `members` and `places`, each at the next place of its pile, and each member's
    first and last row to `first` and `last` (see Dealt).

    The members of group g are by_group[group_starts[g]:group_starts[g+1]]. `piles`: the pile of each member. `free`: by pile,
    where its next delivery goes. `dealt`: by member, how many rows it has got so far. The last two are changed.
    """
    for row in wanted:
        for i in range(starts[codes[row]], starts[codes[row] + 1]):
            for at in range(group_starts[ids[i]], group_starts[ids[i] + 1]):
                member = by_group[at]
                put = free[piles[member]]
                free[piles[member]] = put + 1
                rows[put], members[put], places[put] = row, member, dealt[member]
                if dealt[member] == 0:
                    first[member] = row
                last[member] = row
                dealt[member] += 1
