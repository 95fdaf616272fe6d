"""From a consumer's conditions to probes of chunk headers: one each for subjects, filter values,
filter and window.

The rules for expressions are in expressions.py; what a probe guarantees is in probes.py. A probe
holds from the time that it was derived for. Deriving it again costs microseconds; if UTC() is used,
the new probe refuses more as time passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from overlay.config.stream import StreamConfig
from overlay.filter import Filter
from overlay.filter.nodes import Column
from overlay.match import Values
from overlay.match.values import narrow
from overlay.subject import Pattern
from overlay.subject.pattern import is_subset

from .catalog import find_known
from .expressions import MOST_TERMS, derive_expression
from .probes import Conditions, Everything, Has, Nothing, Offsets, Probe, SubjectIs, Times, Unsure, all_of, any_of
from .terms import UNFILTERED, value_term


def derive(
    stream: StreamConfig,
    patterns: Sequence[Pattern] = (),
    values: Values | None = None,
    filter: Filter | None = None,
    *,
    now: int,
    since: int | None = None,
    until: int | None = None,
    start: int | None = None,
    stop: int | None = None,
) -> Conditions:
    """Return the conditions of a consumer or reader as probes: questions that a chunk header can
    answer, one each for subject, filter values, filter and window. Without a condition the probe is
    Everything.

    `patterns`: its subject filters, any of which may match; none means all subjects. `values` and
    `filter`: its filter values and its expression, made for `stream`. `now`: ms since 1970, not
    later than any `now` that records will be tested with. `since` and `until` are ms since 1970:
    since <= timestamp < until, start <= offset < stop.
    """
    return Conditions(
        derive_subjects(stream, patterns),
        derive_values(values),
        Everything() if filter is None else derive_filter(stream, filter, now),
        derive_window(since, until, start, stop),
    )


def derive_subjects(stream: StreamConfig, patterns: Sequence[Pattern]) -> Probe:
    """Return the probe of the condition that a record's subject matches one of the patterns. It is
    Everything without patterns. It is Everything too if each pattern of the stream's subjects lies
    within one of them, or each that the stream's rule can build.
    """
    wanted = tuple(dict.fromkeys(patterns))
    # Compare with the subjects that the stream accepts, or those that its rule can build: the
    # patterns need to cover only one of the two.
    for whole in (stream.patterns, stream.subject.rule.patterns()):
        if all(any(is_subset(each, pattern) for pattern in wanted) for each in whole):
            return Everything()
    return SubjectIs(wanted) if wanted else Everything()


def derive_values(values: Values | None) -> Probe:
    """Return the probe of the condition that a record's filter value is wanted, or that it has none
    and those records are wanted. It is Everything for None. If filter values are the subjects, it
    is SubjectIs (Nothing without a possible subject). Otherwise it asks for terms, and is Unsure
    for more than MOST_TERMS of them.
    """
    if values is None:
        return Everything()
    if values.are_subjects:
        subjects = narrow((Pattern(">"),), values)
        return SubjectIs(subjects) if subjects else Nothing()
    terms = [value_term(value) for value in values.encoded] + ([UNFILTERED] if values.unfiltered else [])
    return any_of(map(Has, terms)) if len(terms) <= MOST_TERMS else Unsure()


def derive_filter(stream: StreamConfig, filter: Filter, now: int) -> Probe:
    """Return the probe of the condition that the expression is true; Unsure if its types depend on
    the data. `now`: ms since 1970, not later than when records are tested.
    """
    columns = [column for column in filter.columns if isinstance(column, Column)]
    if len(columns) < len(filter.columns):
        return Unsure()
    return derive_expression(filter.bound, find_known(stream, columns), now)


def derive_window(since: int | None, until: int | None, start: int | None, stop: int | None) -> Probe:
    """Return the probe of the condition since <= timestamp < until (ms since 1970) and start <=
    offset < stop. None is no bound.
    """
    probes: list[Probe] = []
    if start is not None or stop is not None:
        probes.append(Offsets(start, stop))
    if since is not None or until is not None:
        probes.append(Times(since, until))
    return all_of(probes)
