"""Which chunks of a partition need to be read: probes asked of all chunk headers at once.

Chunk headers are columns (chunks.py), so a question is asked of a million chunks by a few passes over arrays. What
costs is Bloom filters, which lie all over the memory. So questions are asked in the order of their price (offsets and
times, zones, counted subjects, terms), and each one only of the chunks that it can still change: of AND those that are
not refused yet, of OR those that are not let through yet. A question that is not asked counts as MAYBE.

The rules of the three answers are Kleene's (probes.py): AND is `minimum`, OR is `maximum`. A header that does not know
(its chunk was sealed before the property was declared, or keeps nothing) answers MAYBE, and so does everything that has
no header.

Each chunk also has its residual: the parts of the conditions that records of it still have to be tested for. A part
that all records pass is dropped; one that none passes stays, so that a chunk that is read nevertheless loses nothing of
its refusal.

For people every leaf keeps its tally: of how many chunks it was asked, and how many it refused or let through. As a
chunk that is refused by one is not asked of the next, the refusals of an AND add up to what it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any as Anything
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overlay.subject import Pattern

from .expressions import MOST_TERMS
from .intervals import Interval
from .probes import (
    NO_PART,
    Alike,
    All,
    Answer,
    Any,
    Conditions,
    Everything,
    Has,
    Nothing,
    NullIn,
    Offsets,
    Part,
    Probe,
    SubjectIs,
    Times,
    Unsure,
    ValueIn,
    Within,
    leaves,
)
from .terms import Term, pattern_terms

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Levels = npt.NDArray[np.int8]
"""One Answer for each chunk."""


class Zone(Protocol):
    """A property's bounds, one entry a chunk. Where `known` is False the rest means nothing, without values min and max do."""

    @property
    def min(self) -> npt.NDArray[Anything]:
        """int64 (long, timestamp), float64 (double), or uint64[n, 2], the halves of text keys."""

    @property
    def max(self) -> npt.NDArray[Anything]: ...

    @property
    def has_null(self) -> Flags: ...

    @property
    def has_value(self) -> Flags: ...

    @property
    def known(self) -> Flags: ...


class Chunks(Protocol):
    """What the planner reads of a partition's chunks: arrays of one entry each, in the order of offsets."""

    def __len__(self) -> int: ...

    @property
    def first_offset(self) -> Ints: ...

    @property
    def next_offset(self) -> Ints: ...

    @property
    def bytes(self) -> Ints: ...

    @property
    def addressed(self) -> Ints: ...

    @property
    def current(self) -> Flags:
        """The chunk was sealed with the subjects that the stream has today. Else other records belonged to the stream, and
        what was found out about them says nothing; offsets and times are those of all records."""

    @property
    def exact(self) -> Flags: ...

    @property
    def min_time(self) -> Ints:
        """Below 0 where the times of a chunk are not known."""

    @property
    def max_time(self) -> Ints: ...

    def might_contain(self, terms: Sequence[Term], among: Flags | None = None) -> Flags:
        """False where one of the terms is certainly not in the chunk; that needs a filter which takes in such terms today.

        What stands outside `among` has no meaning.
        """

    def zone(self, name: str) -> Zone | None: ...

    def subject_counts(self, patterns: Sequence[Pattern]) -> tuple[Ints, Flags]:
        """How many records have a subject that matches, and where that is known."""


@dataclass(slots=True)
class Tally:
    """Of how many chunks a question was asked, and the final answers."""

    asked: int = 0
    refused: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """`levels`: an Answer for each chunk. `residual`: the parts to test, as bits of Part. `tallies`: by leaf."""

    levels: Levels
    residual: npt.NDArray[np.uint8]
    asked: Part
    """The parts that say anything: what a record without a chunk has to be tested for."""
    tallies: Mapping[Probe, Tally] = field(default_factory=dict)

    def count(self, answer: Answer) -> int:
        return int(np.count_nonzero(self.levels == answer))


NO, MAYBE, ALL = (np.int8(answer) for answer in Answer)


def evaluate(conditions: Conditions, chunks: Chunks) -> Answers:
    """Ask every part of the conditions of every chunk."""
    count = len(chunks)
    asking = _Asking(chunks)
    levels = np.full(count, ALL)
    levels[chunks.current & (chunks.addressed == 0)] = NO
    residual = np.zeros(count, np.uint8)
    asked = NO_PART
    for part, probe in conditions.parts():
        if isinstance(probe, Everything):
            continue
        asked |= part
        found = asking.ask(probe, levels != NO)
        residual[(found != ALL) | (levels == NO)] |= np.uint8(part)
        np.minimum(levels, found, out=levels)
    return Answers(levels, residual, asked, asking.tallies)


@dataclass(slots=True)
class _Asking:
    chunks: Chunks
    tallies: dict[Probe, Tally] = field(default_factory=dict)

    def ask(self, probe: Probe, among: Flags) -> Levels:
        """An answer for each chunk; where one is not `among` those asked it means nothing."""
        match probe:
            case All(probes=probes):
                return self.ask_all(probes, among)
            case Any(probes=probes):
                return self.ask_any(probes, among)
            case Alike(probes=probes):
                return self.ask_alike(probes, among)
            case Unsure():
                return np.full(among.size, MAYBE)
        found = self.ask_leaf(probe, among)
        tally = self.tallies.setdefault(probe, Tally())
        tally.asked += int(np.count_nonzero(among))
        tally.refused += int(np.count_nonzero(among & (found == NO)))
        tally.passed += int(np.count_nonzero(among & (found == ALL)))
        return found

    def ask_all(self, probes: Sequence[Probe], among: Flags) -> Levels:
        levels = np.full(among.size, ALL)
        for probe in sorted(probes, key=_price):
            left = among & (levels != NO)
            if not left.any():
                break
            np.minimum(levels, self.ask(probe, left), out=levels)
        return levels

    def ask_any(self, probes: Sequence[Probe], among: Flags) -> Levels:
        levels = np.full(among.size, NO)
        for probe in sorted(probes, key=_price):
            left = among & (levels != ALL if _can_pass(probe) else levels == NO)
            if left.any():
                np.maximum(levels, self.ask(probe, left), out=levels, where=left)
        return levels

    def ask_alike(self, probes: Sequence[Probe], among: Flags) -> Levels:
        levels = np.full(among.size, MAYBE)
        for probe in sorted(probes, key=_price):
            left = among & (levels == MAYBE)
            if not left.any():
                break
            np.copyto(levels, self.ask(probe, left), where=left)
        return levels

    def ask_leaf(self, probe: Probe, among: Flags) -> Levels:
        chunks = self.chunks
        match probe:
            case Nothing():
                return np.full(among.size, NO)
            case Everything():
                return np.full(among.size, ALL)
            case Offsets(start=start, stop=stop):
                return _compare_spans(chunks.first_offset, chunks.next_offset - 1, _half_open(start, stop))
            case Times(since=since, until=until, negated=negated):
                levels = _compare_spans(chunks.min_time, chunks.max_time, _half_open(since, until), negated)
                levels[chunks.min_time < 0] = MAYBE
                return levels
            case Within(name=name):
                zone = chunks.zone(name)
                return np.full(among.size, MAYBE) if zone is None else _compare_zone(zone, probe)
            case ValueIn(name=name, null=null) | NullIn(name=name, null=null):
                return self.look_for_nulls(name, null, among, isinstance(probe, NullIn))
            case Has(term=term):
                return chunks.might_contain((term,), among).view(np.int8)
            case SubjectIs(patterns=patterns):
                return self.count_subjects(patterns, among)
        return np.full(among.size, MAYBE)

    def look_for_nulls(self, name: str, null: Term | None, among: Flags, wanted: bool) -> Levels:
        without_null = without_value = np.zeros(among.size, np.bool_)
        zone = self.chunks.zone(name)
        if zone is not None:
            without_null, without_value = zone.known & ~zone.has_null, zone.known & ~zone.has_value
        if null is not None:
            # what a zone has said of NULL is final
            left = among if zone is None else among & ~zone.known
            if left.any():
                without_null = without_null | (left & ~self.chunks.might_contain((null,), left))
        none, every = (without_null, without_value) if wanted else (without_value, without_null)
        return _settle(none, every)

    def count_subjects(self, patterns: tuple[Pattern, ...], among: Flags) -> Levels:
        chunks = self.chunks
        counts, known = chunks.subject_counts(patterns)
        levels = _settle(known & (counts == 0), known & (counts == chunks.addressed))
        left = among & ~known
        if left.any():
            levels[left & ~might_match(chunks, patterns, left)] = NO
        return levels


def might_match(chunks: Chunks, patterns: Sequence[Pattern], among: Flags) -> Flags:
    """Of the chunks `among`, those whose Bloom filter does not refuse every subject of some patterns."""
    asked = [pattern_terms(pattern) for pattern in patterns]
    if len(asked) > MOST_TERMS or not all(asked):
        return among
    found = np.zeros(among.size, np.bool_)
    for terms in asked:
        found |= chunks.might_contain(terms, among & ~found)
    return found


_CHEAP, _ZONES, _SUBJECTS, _TERMS = range(4)


def _price(probe: Probe) -> int:
    return max(_PRICES.get(type(leaf), _CHEAP) for leaf in leaves(probe))


_PRICES: dict[type[Probe], int] = {
    Within: _ZONES,
    NullIn: _ZONES,
    ValueIn: _ZONES,
    SubjectIs: _SUBJECTS,
    Has: _TERMS,
}


def _can_pass(probe: Probe) -> bool:
    """Whether the answer can be ALL."""
    match probe:
        case All(probes=probes):
            return all(map(_can_pass, probes))
        case Any(probes=probes) | Alike(probes=probes):
            return any(map(_can_pass, probes))
    return not isinstance(probe, Has | Nothing | Unsure)


def _settle(none: Flags, every: Flags) -> Levels:
    """NO where `none`, ALL where `every`; a chunk without a record is both, and need not be read."""
    levels = MAYBE + every.view(np.int8)
    levels[none] = NO
    return levels


def _half_open(low: int | None, high: int | None) -> Interval:
    return Interval(low, None if high is None else high - 1)


def _compare_spans(low: Ints, high: Ints, wanted: Interval, negated: bool = False) -> Levels:
    """Chunks whose values lie somewhere between `low` and `high`."""
    outside, inside = _lie_outside(low, high, wanted), _lie_inside(low, high, wanted)
    return _settle(inside, outside) if negated else _settle(outside, inside)


def _compare_zone(zone: Zone, probe: Within) -> Levels:
    outside = _lie_outside(zone.min, zone.max, probe.possible)
    inside = _lie_inside(zone.min, zone.max, probe.sure)
    none, every = (inside, outside) if probe.negated else (outside, inside)
    levels = _settle(none | ~zone.has_value, every & ~zone.has_null)
    levels[~zone.known] = MAYBE
    return levels


def _lie_outside(low: npt.NDArray[Anything], high: npt.NDArray[Anything], wanted: Interval) -> Flags:
    outside = _is_below(high, wanted.low) if wanted.low is not None else np.zeros(len(low), np.bool_)
    if wanted.high is not None:
        outside |= _is_above(low, wanted.high)
    return outside


def _lie_inside(low: npt.NDArray[Anything], high: npt.NDArray[Anything], wanted: Interval) -> Flags:
    if wanted.is_empty:
        return np.zeros(len(low), np.bool_)
    inside = ~_is_below(low, wanted.low) if wanted.low is not None else np.ones(len(low), np.bool_)
    if wanted.high is not None:
        inside &= ~_is_above(high, wanted.high)
    return inside


_HALF = (1 << 64) - 1


def _is_below(values: npt.NDArray[Anything], bound: int | float) -> Flags:
    """values < bound. Whole numbers of any size compare exactly; text keys come in halves."""
    if values.ndim == 1:
        return np.asarray(values < bound)
    assert isinstance(bound, int)
    high, low = np.uint64(bound >> 64), np.uint64(bound & _HALF)
    below: Flags = (values[:, 0] < high) | ((values[:, 0] == high) & (values[:, 1] < low))
    return below


def _is_above(values: npt.NDArray[Anything], bound: int | float) -> Flags:
    if values.ndim == 1:
        return np.asarray(values > bound)
    assert isinstance(bound, int)
    high, low = np.uint64(bound >> 64), np.uint64(bound & _HALF)
    above: Flags = (values[:, 0] > high) | ((values[:, 0] == high) & (values[:, 1] > low))
    return above
