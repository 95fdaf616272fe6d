"""Which chunks of a partition need to be read: probes asked of all chunk headers at once.

Chunk headers are columns (chunks.py), so a few passes over arrays ask a question of a million
chunks. The expensive part is Bloom filters, which are scattered over memory. So questions are asked
in the order of their price (offsets and times, zones, counted subjects, terms), and each one only
of the chunks whose answer it can still change: for AND those that are not refused yet, for OR those
that are not accepted yet. A question that is not asked counts as MAYBE.

The rules of the three answers are Kleene's (probes.py): AND is `minimum`, OR is `maximum`. A header
that does not know (its chunk was sealed before the property was declared, or keeps nothing of it)
answers MAYBE, and so do offsets without a header.

Each chunk also gets a residual: the parts of the conditions that its records still have to be
tested for. A part that all records pass is dropped. A part that no record passes is kept, so that a
refused chunk is tested correctly if it is read nevertheless.

For people, every leaf but Unsure has a tally: of how many chunks it was asked, and how many it
refused or accepted. A chunk that one leaf refuses is not asked the next one, so the refusals of an
AND add up to its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from overlay.arrays import AnyArray, Bytes, Flags, Int8s, Ints
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

Levels = Int8s
"""One Answer for each chunk."""


class Zone(Protocol):
    """The bounds of a property, one item per chunk. They are meaningful only if `known`; min and
    max only if `has_value`.
    """

    @property
    def min(self) -> AnyArray:
        """int64 (long, timestamp), float64 (double), or uint64[n, 2], the halves of text keys."""

    @property
    def max(self) -> AnyArray: ...

    @property
    def has_null(self) -> Flags: ...

    @property
    def has_value(self) -> Flags: ...

    @property
    def known(self) -> Flags: ...


class Chunks(Protocol):
    """The arrays that the planner reads of a partition's chunks: one item per chunk, in offset
    order.
    """

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
        """Whether the chunk was sealed with the current subjects and filter values of the stream.

        If not, other records belonged to the stream, and only offsets and times hold, since they
        are of all records.
        """

    @property
    def exact(self) -> Flags: ...

    @property
    def min_time(self) -> Ints:
        """Ms since 1970; below 0 if the times of a chunk are unknown."""

    @property
    def max_time(self) -> Ints: ...

    def might_contain(self, terms: Sequence[Term], among: Flags | None = None) -> Flags:
        """Return for each chunk whether its Bloom filter may contain all of the terms. False is
        certain. True if the filter is missing, or was not made from the current config.

        Results outside `among` are meaningless.
        """

    def zone(self, name: str) -> Zone | None: ...

    def subject_counts(self, patterns: Sequence[Pattern]) -> tuple[Ints, Flags]:
        """Return for each chunk how many of its records have a subject that matches one of the
        patterns, and whether that is known.
        """


@dataclass(slots=True)
class Tally:
    """Of how many chunks a question was asked, and how many answered NO (`refused`) or ALL
    (`passed`).
    """

    asked: int = 0
    refused: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The answers of a partition's chunks to conditions that a record has to satisfy together.

    `levels`: an Answer per chunk to their AND. `residual`: for each chunk the parts that its
    records must be tested for, as bits of Part. `tallies`: by probe that is not made of others, of
    how many chunks it was asked, and how many answered NO and ALL; without Unsure, and without some
    that no chunk was asked.
    """

    levels: Levels
    residual: Bytes
    asked: Part
    """The parts with a condition: what records outside all chunks have to be tested for."""
    tallies: Mapping[Probe, Tally] = field(default_factory=dict)

    def count(self, answer: Answer) -> int:
        """Return how many chunks gave this answer."""
        return int(np.count_nonzero(self.levels == answer))


NO, MAYBE, ALL = (np.int8(answer) for answer in Answer)


def evaluate(conditions: Conditions, chunks: Chunks) -> Answers:
    """Ask the headers of all chunks about the conditions, and return each chunk's answer and what
    its records still have to be tested for. A chunk that has no record in the stream, by its
    current subjects, answers NO.
    """
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
    """The asking of probes about the chunks of one partition. It counts the answers to each probe
    that is not made of others (a leaf), but Unsure, in `tallies`.
    """

    chunks: Chunks
    tallies: dict[Probe, Tally] = field(default_factory=dict)

    def ask(self, probe: Probe, among: Flags) -> Levels:
        """Return each chunk's answer to a probe; meaningless outside `among`. The answers of leaves
        other than Unsure are counted in `tallies`.
        """
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
        """Return the answers to an AND, one per chunk; meaningless outside `among`.

        A chunk's answer is the least one (NO < MAYBE < ALL) that the probes give. Once it is NO,
        the chunk is not asked the other probes.
        """
        levels = np.full(among.size, ALL)
        for probe in sorted(probes, key=_price):
            left = among & (levels != NO)
            if not left.any():
                break
            np.minimum(levels, self.ask(probe, left), out=levels)
        return levels

    def ask_any(self, probes: Sequence[Probe], among: Flags) -> Levels:
        """Return the answers to an OR, one per chunk; meaningless outside `among`.

        A chunk's answer is the greatest one (NO < MAYBE < ALL) that the probes give. Once it is
        ALL, the chunk is not asked the other probes. Once it is MAYBE, it is asked only those that
        can answer ALL.
        """
        levels = np.full(among.size, NO)
        for probe in sorted(probes, key=_price):
            left = among & (levels != ALL if _can_pass(probe) else levels == NO)
            if left.any():
                np.maximum(levels, self.ask(probe, left), out=levels, where=left)
        return levels

    def ask_alike(self, probes: Sequence[Probe], among: Flags) -> Levels:
        """Return the answers to one condition that each probe asks in another way, one per chunk;
        MAYBE outside `among`.

        A chunk's answer is the first NO or ALL of a probe, MAYBE if there is none.
        """
        levels = np.full(among.size, MAYBE)
        for probe in sorted(probes, key=_price):
            left = among & (levels == MAYBE)
            if not left.any():
                break
            np.copyto(levels, self.ask(probe, left), where=left)
        return levels

    def ask_leaf(self, probe: Probe, among: Flags) -> Levels:
        """Return each chunk's answer to a probe that is not made of others; meaningless outside `among`."""
        chunks = self.chunks
        match probe:
            case Nothing():
                return np.full(among.size, NO)
            case Everything():
                return np.full(among.size, ALL)
            # offsets and times are of all records, so every header has them
            case Offsets(start=start, stop=stop):
                return _compare_spans(chunks.first_offset, chunks.next_offset - 1, _half_open(start, stop))
            case Times(since=since, until=until, negated=negated):
                levels = _compare_spans(chunks.min_time, chunks.max_time, _half_open(since, until), negated)
                levels[chunks.min_time < 0] = MAYBE
                return levels
            # zones, and terms for NULL
            case Within(name=name):
                zone = chunks.zone(name)
                return np.full(among.size, MAYBE) if zone is None else _compare_zone(zone, probe)
            case ValueIn(name=name, null=null) | NullIn(name=name, null=null):
                return self.look_for_nulls(name, null, among, isinstance(probe, NullIn))
            # Bloom filters and counts by subject
            case Has(term=term):
                return chunks.might_contain((term,), among).view(np.int8)
            case SubjectIs(patterns=patterns):
                return self.count_subjects(patterns, among)
        return np.full(among.size, MAYBE)

    def look_for_nulls(self, name: str, null: Term | None, among: Flags, wanted: bool) -> Levels:
        """Return each chunk's answer to "the property is NULL" if `wanted`, else to "is not NULL":
        by its zone, or by the term for NULL in its Bloom filter. `null`: that term, None if the
        property has none.
        """
        without_null = without_value = np.zeros(among.size, np.bool_)
        zone = self.chunks.zone(name)
        if zone is not None:
            without_null, without_value = zone.known & ~zone.has_null, zone.known & ~zone.has_value
        if null is not None:
            # a zone's answer about NULL is final
            left = among if zone is None else among & ~zone.known
            if left.any():
                without_null = without_null | (left & ~self.chunks.might_contain((null,), left))
        none, every = (without_null, without_value) if wanted else (without_value, without_null)
        return _settle(none, every)

    def count_subjects(self, patterns: tuple[Pattern, ...], among: Flags) -> Levels:
        """Return each chunk's answer to "the subject matches one of the patterns": by its counts of
        records by subject, or by its Bloom filter if they are not known.
        """
        chunks = self.chunks
        counts, known = chunks.subject_counts(patterns)
        levels = _settle(known & (counts == 0), known & (counts == chunks.addressed))
        left = among & ~known
        if left.any():
            levels[left & ~might_match(chunks, patterns, left)] = NO
        return levels


def might_match(chunks: Chunks, patterns: Sequence[Pattern], among: Flags) -> Flags:
    """Return `among` (one flag per chunk) without the chunks whose Bloom filters rule out all
    subjects of the patterns. Nothing is ruled out for more than MOST_TERMS patterns, or if one has
    no terms (`pattern_terms`); then the result is `among` itself.
    """
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
    """Return whether some header could answer ALL to this probe."""
    match probe:
        case All(probes=probes):
            return all(map(_can_pass, probes))
        case Any(probes=probes) | Alike(probes=probes):
            return any(map(_can_pass, probes))
    return not isinstance(probe, Has | Nothing | Unsure)


def _settle(none: Flags, every: Flags) -> Levels:
    """Return an answer per chunk: NO if `none` is set (no record satisfies the condition), ALL if
    `every` is set (each record does), else MAYBE. A chunk without records has both set, and gets
    NO.
    """
    levels = MAYBE + every.view(np.int8)
    levels[none] = NO
    return levels


def _half_open(low: int | None, high: int | None) -> Interval:
    return Interval(low, None if high is None else high - 1)


def _compare_spans(low: Ints, high: Ints, wanted: Interval, negated: bool = False) -> Levels:
    """Return the answer of each chunk to "the value is in `wanted`", if `negated` to "is outside".

    A chunk's values are between its items of `low` and `high`, both included.
    """
    outside, inside = _lie_outside(low, high, wanted), _lie_inside(low, high, wanted)
    return _settle(inside, outside) if negated else _settle(outside, inside)


def _compare_zone(zone: Zone, probe: Within) -> Levels:
    outside = _lie_outside(zone.min, zone.max, probe.possible)
    inside = _lie_inside(zone.min, zone.max, probe.sure)
    none, every = (inside, outside) if probe.negated else (outside, inside)
    levels = _settle(none | ~zone.has_value, every & ~zone.has_null)
    levels[~zone.known] = MAYBE
    return levels


def _lie_outside(low: AnyArray, high: AnyArray, wanted: Interval) -> Flags:
    outside = _is_below(high, wanted.low) if wanted.low is not None else np.zeros(len(low), np.bool_)
    if wanted.high is not None:
        outside |= _is_above(low, wanted.high)
    return outside


def _lie_inside(low: AnyArray, high: AnyArray, wanted: Interval) -> Flags:
    if wanted.is_empty:
        return np.zeros(len(low), np.bool_)
    inside = ~_is_below(low, wanted.low) if wanted.low is not None else np.ones(len(low), np.bool_)
    if wanted.high is not None:
        inside &= ~_is_above(high, wanted.high)
    return inside


_HALF = (1 << 64) - 1


def _is_below(values: AnyArray, bound: int | float) -> Flags:
    """Return for each item whether it is below `bound`. Whole numbers of any size compare exactly;
    text keys are two words, [n, 2].
    """
    if values.ndim == 1:
        return np.asarray(values < bound)
    assert isinstance(bound, int)
    high, low = np.uint64(bound >> 64), np.uint64(bound & _HALF)
    below: Flags = (values[:, 0] < high) | ((values[:, 0] == high) & (values[:, 1] < low))
    return below


def _is_above(values: AnyArray, bound: int | float) -> Flags:
    if values.ndim == 1:
        return np.asarray(values > bound)
    assert isinstance(bound, int)
    high, low = np.uint64(bound >> 64), np.uint64(bound & _HALF)
    above: Flags = (values[:, 0] > high) | ((values[:, 0] == high) & (values[:, 1] > low))
    return above
