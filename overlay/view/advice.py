"""Advice on what to add to a stream's file, so that a filter skips more.

The advice is found by trying. Every property that the filter compares is listed as if the file had
it, and the probes are derived again. A property is worth listing if it leads to a new probe. All of
them together must be able to refuse a chunk: if no header knows one side of an OR, the other side
is useless. So nothing here repeats a rule of the planner.

How a property is compared decides between the two lists: terms for comparison by value, zones for
comparison by range. Whether it pays depends on the data, which is not read here. A value that is in
every chunk refuses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from overlay.config.stream import Property, StreamConfig, place_property
from overlay.filter import Filter
from overlay.filter.nodes import Affix, Column, Compare, Comparison, In, IsNull, Like, Node, Not, Section, walk
from overlay.index.skip.catalog import find_known
from overlay.index.skip.derive import derive_filter
from overlay.index.skip.probes import Alike, All, Any, Everything, Has, NullIn, Probe, Unsure, ValueIn, Within, leaves
from overlay.index.skip.zones import TYPES

_PREFIXES = {Section.HEADER: "h.", Section.PROPERTIES: "p.", Section.APPLICATION: ""}


@dataclass(frozen=True, slots=True)
class Missing:
    """Properties that could be added to the index lists `terms` and `zones` of a stream's file.
    `declare`: the types of those that the file does not declare yet.
    """

    terms: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    declare: Mapping[str, str] = field(default_factory=dict)

    def write(self, stream: StreamConfig) -> list[str]:
        """Return YAML lines for the stream's file: `properties` with those of `declare`, if there are
        any, and `index` with each list that gets new entries. Such a list begins with its present
        entries, so that the line can replace the old one; a list without new entries is left out.
        """
        index = stream.index
        lines = [f"  {name}: {type}" for name, type in self.declare.items()]
        lines = ["properties:", *lines] if lines else []
        lists = (("terms", index.terms, self.terms), ("zones", index.zones, self.zones))
        return [*lines, "index:", *(f"  {key}: [{', '.join((*old, *new))}]" for key, old, new in lists if new)]


NOTHING = Missing()


def can_refuse(probe: Probe) -> bool:
    """Return whether there could be a header from which it follows that no record of its chunk
    passes the probe (answer NO). False means that the probe never leaves out a chunk.
    """
    match probe:
        case All(probes=probes):
            return any(map(can_refuse, probes))
        case Any(probes=probes):
            return all(map(can_refuse, probes))
        case Alike(probes=probes):
            return any(map(can_refuse, probes))
    return not isinstance(probe, Unsure | Everything)


def find_missing(stream: StreamConfig, filter: Filter, now: int) -> Missing:
    """Return the properties that the stream's file should list in its index, so that headers tell more
    about this filter. An empty one (NOTHING) if the index lists all that helps already, or if no
    header could refuse a chunk even then.

    `filter`: compiled for the stream. `now`: ms since 1970.
    """
    before = set(leaves(derive_filter(stream, filter, now)))
    wishes = _list_wishes(stream, filter)
    after = derive_filter(extend(stream, wishes), filter, now)
    added = set(leaves(after)) - before
    terms = {leaf.term.property for leaf in added if isinstance(leaf, Has)}
    is_null = any(isinstance(each, IsNull) for each in walk(filter.bound))
    zones = {leaf.name for leaf in added if _is_worth_a_zone(leaf, is_null)}
    kept = Missing(tuple(n for n in wishes.terms if n in terms), tuple(n for n in wishes.zones if n in zones))
    named = {*kept.terms, *kept.zones}
    kept = replace(kept, declare={name: type for name, type in wishes.declare.items() if name in named})
    return kept if can_refuse(derive_filter(extend(stream, kept), filter, now)) else NOTHING


def _is_worth_a_zone(leaf: Probe, is_null: bool) -> TypeGuard[Within | NullIn | ValueIn]:
    """Return whether a probe justifies a zone for its property. A range (Within) does, unless it admits every value.
    A test for NULL or for a value (NullIn, ValueIn) does only if the filter has an IS NULL or IS NOT NULL itself
    (`is_null`): every comparison comes with such a test, which refuses next to nothing.
    """
    if isinstance(leaf, Within):
        return leaf.negated or not leaf.possible.is_full
    return isinstance(leaf, NullIn | ValueIn) and is_null


def extend(stream: StreamConfig, more: Missing) -> StreamConfig:
    """Return a copy of the stream's config with these properties declared and listed in its index."""
    declared = {name: _declare(name, type) for name, type in more.declare.items()}
    index = stream.index.model_copy(
        update={"terms": (*stream.index.terms, *more.terms), "zones": (*stream.index.zones, *more.zones)}
    )
    return stream.model_copy(update={"properties": {**stream.properties, **declared}, "index": index})


def _declare(name: str, type: str) -> Property:
    source = {"from": f"{{header:{name}}}"} if place_property(name)[0] is Section.APPLICATION else {}
    return Property.model_validate({"type": type, **source})


def _list_wishes(stream: StreamConfig, filter: Filter) -> Missing:
    """Return the properties that the filter compares by value and that have no terms, and those that it
    compares otherwise, whose type can have a zone, and that have none. Left out is what headers know
    without a list, such as the time and the subject.
    """
    names = {place_property(name): name for name in stream.properties}
    columns = [column for column in filter.columns if isinstance(column, Column)]
    known = find_known(stream, columns)
    terms: dict[str, None] = {}
    zones: dict[str, None] = {}
    declare: dict[str, str] = {}
    for column, by_value in _find_uses(filter.bound):
        own = known[column]
        if own.is_time or own.is_subject or own.cover is not None:
            continue
        name = names.get((column.section, column.name), _PREFIXES[column.section] + column.name)
        if by_value and not own.has_terms:
            terms[name] = None
        elif not by_value and not own.has_zone and column.type in TYPES:
            zones[name] = None
        else:
            continue
        if name not in stream.properties:
            declare[name] = column.type
    return Missing(tuple(terms), tuple(zones), declare)


def _find_uses(node: Node) -> Iterator[tuple[Column, bool]]:
    """Yield a column for each condition that uses it: with True if the condition compares by value (`=`
    or IN), with False for any other (ranges, `<>`, NOT IN, LIKE, IS NULL). A boolean column is also
    yielded with True wherever it stands.
    """
    conditions = (each for each in walk(node) if isinstance(each, Comparison | In | Like | Affix | IsNull))
    for each in conditions:
        match each:
            case Comparison(operator=operator):
                by_value = operator is Compare.EQ
            case In(negated=negated):
                by_value = not negated
            case _:
                by_value = False
        yield from ((column, by_value) for column in _columns(walk(each)))
    # a boolean property may be a condition by itself, without a comparison
    bare = (each.operand if isinstance(each, Not) else each for each in walk(node))
    yield from ((column, True) for column in _columns(bare) if column.type == "boolean")


def _columns(nodes: Iterable[Node]) -> Iterator[Column]:
    return (node for node in nodes if isinstance(node, Column))
