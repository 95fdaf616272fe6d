"""Probes: conditions that a chunk must meet for one of its records to pass, as a tree that chunk
headers can answer.

Every node stands for a condition on a record and is asked of a whole chunk. The answer is one of
three:

    NO     the condition is true of no addressed record of the chunk: the chunk need not be read
    ALL    it is true of each of them: the condition need not be tested
    MAYBE  anything else, and whatever the header does not say

Unknown, SQL's third value, is not a fourth answer. Only true delivers a record, so false and
unknown are both "not true": a NULL speaks against ALL and never against NO. This is why there is no
node for NOT: if no record satisfies a condition, that says nothing about its opposite, since the
records may be unknown. Conditions that can be negated carry a flag.

Answers combine by Kleene's tables with NO < MAYBE < ALL: AND is the least (`All`), OR the greatest
(`Any`). Both keep the guarantee above, whatever the records are. `Alike` is for one condition that
several parts of a header know something about, such as a property with terms and a zone. There NO
and ALL are both final, and MAYBE says nothing. Adding `Unsure` to `All` or `Any` makes a condition
that is only implied, or only implies.

A probe is a value: derive.py makes them, prune.py asks them of chunks, and its `str` is for people.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from overlay.subject import Pattern

from .intervals import Bound, Interval, show_key
from .terms import Term


class Answer(enum.IntEnum):
    """What a chunk header says of a condition. NO: no record of the chunk satisfies it. ALL: each
    does. MAYBE: the header cannot tell.
    """

    NO = 0
    MAYBE = 1
    ALL = 2


class Part(enum.IntFlag):
    """The kinds of conditions that a consumer or reader has, as flags: on the subject, on the
    filter value, the filter expression, and the window of offsets and times.
    """

    SUBJECT = 1
    VALUES = 2
    FILTER = 4
    WINDOW = 8


NO_PART = Part(0)


@dataclass(frozen=True, slots=True)
class Probe:
    """Base class of all probes: conditions on a record that are asked of a whole chunk by its
    header, with an Answer as the result.
    """


@dataclass(frozen=True, slots=True)
class Everything(Probe):
    """A condition that is true of every record."""

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True, slots=True)
class Nothing(Probe):
    """A condition that is true of no record."""

    def __str__(self) -> str:
        return "nothing"


@dataclass(frozen=True, slots=True)
class Unsure(Probe):
    """A condition that no header knows anything about: always MAYBE."""

    def __str__(self) -> str:
        return "not indexed"


@dataclass(frozen=True, slots=True)
class Has(Probe):
    """The condition that a record has put this term into the Bloom filter. A filter answers NO or
    MAYBE, never ALL.
    """

    term: Term

    def __str__(self) -> str:
        return f"bloom {self.term.text}"


@dataclass(frozen=True, slots=True)
class NullIn(Probe):
    """The condition that the property is NULL: missing or unreadable."""

    name: str
    null: Term | None = None
    """The term that stands for NULL, if the property has terms."""

    def __str__(self) -> str:
        return f"{self.name} IS NULL"


@dataclass(frozen=True, slots=True)
class ValueIn(Probe):
    """The condition that the property is not NULL."""

    name: str
    null: Term | None = None

    def __str__(self) -> str:
        return f"{self.name} IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Within(Probe):
    """The condition that the property has a value in an interval; if `negated`, that it has a value
    outside it. NULL satisfies neither.
    """

    name: str
    type: str
    possible: Interval
    """Only values in this interval may satisfy it. It is wider if texts are cut off."""
    sure: Interval
    """All values in this interval satisfy it."""
    negated: bool = False

    def __str__(self) -> str:
        low, high = (_show_bound(bound, self.type) for bound in (self.possible.low, self.possible.high))
        return f"zone {self.name} {'not ' if self.negated else ''}in {low}..{high}"


@dataclass(frozen=True, slots=True)
class Times(Probe):
    """The condition since <= timestamp < until, in ms since 1970; if `negated`, the opposite. None
    is no bound.
    """

    since: int | None
    until: int | None
    negated: bool = False

    def __str__(self) -> str:
        return f"time {'not ' if self.negated else ''}{_show_range(self.since, self.until)}"


@dataclass(frozen=True, slots=True)
class Offsets(Probe):
    """The condition start <= offset < stop; None is no bound."""

    start: int | None
    stop: int | None

    def __str__(self) -> str:
        return f"offset {_show_range(self.start, self.stop)}"


@dataclass(frozen=True, slots=True)
class SubjectIs(Probe):
    """The condition that the subject matches one of the patterns. The answer is exact if a header
    counts its subjects; otherwise the Bloom filter gives NO or MAYBE.
    """

    patterns: tuple[Pattern, ...]

    def __str__(self) -> str:
        shown = [pattern.text for pattern in self.patterns[:3]]
        return f"subject {' or '.join(shown)}{f' or {len(self.patterns) - 3} more' if len(self.patterns) > 3 else ''}"


@dataclass(frozen=True, slots=True)
class Any(Probe):
    """The OR of conditions. Its answer is the greatest one of theirs, with NO < MAYBE < ALL."""

    probes: tuple[Probe, ...]

    def __str__(self) -> str:
        return f"({' or '.join(map(str, self.probes))})"


@dataclass(frozen=True, slots=True)
class All(Probe):
    """The AND of conditions. Its answer is the least one of theirs, with NO < MAYBE < ALL."""

    probes: tuple[Probe, ...]

    def __str__(self) -> str:
        return f"({' and '.join(map(str, self.probes))})"


@dataclass(frozen=True, slots=True)
class Alike(Probe):
    """One condition that each probe asks in another way. The first NO or ALL is the answer; MAYBE
    if no probe gives one.
    """

    probes: tuple[Probe, ...]

    def __str__(self) -> str:
        return f"({' = '.join(map(str, self.probes))})"


@dataclass(frozen=True, slots=True)
class Conditions:
    """All conditions that a record has to satisfy, a probe for each part. Everything means that
    there is no such condition.
    """

    subject: Probe = Everything()
    values: Probe = Everything()
    filter: Probe = Everything()
    window: Probe = Everything()

    def parts(self) -> Iterator[tuple[Part, Probe]]:
        """Yield each part with its probe, those first that are answered fastest."""
        yield Part.WINDOW, self.window
        yield Part.SUBJECT, self.subject
        yield Part.FILTER, self.filter
        yield Part.VALUES, self.values


def all_of(probes: Iterable[Probe]) -> Probe:
    """Return the AND of conditions, simplified: nested ANDs become one, Nothing makes it Nothing,
    Everything is left out. It is Everything without conditions.
    """
    flat = _flatten(All, probes)
    if Nothing() in flat:
        return Nothing()
    flat.pop(Everything(), None)
    return _wrap(All, flat, Everything())


def any_of(probes: Iterable[Probe]) -> Probe:
    """Return the OR of conditions, simplified: nested ORs become one, Everything makes it
    Everything, Nothing is left out. It is Nothing without conditions.
    """
    flat = _flatten(Any, probes)
    if Everything() in flat:
        return Everything()
    flat.pop(Nothing(), None)
    return _wrap(Any, flat, Nothing())


def alike(probes: Iterable[Probe]) -> Probe:
    """Return a probe of one condition that each of `probes` asks in another way.

    A chunk's answer is NO or ALL if any of them says so, else MAYBE. The result is simplified:
    Nothing or Everything if that is among them, Unsure if no probe says more.
    """
    flat = _flatten(Alike, probes)
    for final in (Nothing(), Everything()):
        if final in flat:
            return final
    flat.pop(Unsure(), None)
    return _wrap(Alike, flat, Unsure())


def implied(probe: Probe) -> Probe:
    """Return a probe that answers NO where `probe` does, and MAYBE where `probe` says ALL. It fits
    a condition from which that of `probe` follows.
    """
    return all_of((probe, Unsure()))


def implying(probe: Probe) -> Probe:
    """Return a probe that answers ALL where `probe` does, and MAYBE where `probe` says NO. It fits
    a condition that follows from that of `probe`.
    """
    return any_of((probe, Unsure()))


def leaves(probe: Probe) -> Iterator[Probe]:
    """Yield the probes of a tree that are not made of others, from left to right."""
    if isinstance(probe, All | Any | Alike):
        for each in probe.probes:
            yield from leaves(each)
    else:
        yield probe


_Branch = All | Any | Alike


def _flatten(kind: type[_Branch], probes: Iterable[Probe]) -> dict[Probe, None]:
    flat: dict[Probe, None] = {}
    for probe in probes:
        flat |= dict.fromkeys(
            probe.probes if isinstance(probe, All | Any | Alike) and type(probe) is kind else (probe,)
        )
    return flat


def _wrap(kind: type[_Branch], flat: dict[Probe, None], empty: Probe) -> Probe:
    if not flat:
        return empty
    return next(iter(flat)) if len(flat) == 1 else kind(tuple(flat))


def _show_bound(bound: Bound, type: str) -> str:
    if bound is None:
        return ""
    return repr(show_key(bound)) if type == "string" and isinstance(bound, int) else str(bound)


def _show_range(low: int | None, high: int | None) -> str:
    return f"{'' if low is None else low}..{'' if high is None else high}"
