"""Spark's predicates as conditions of the overlay, so that they skip chunks and drop records before
any columns are built.

| predicate on | becomes | Spark tests it again |
|---|---|---|
| `subject` by =, IN, and LIKE 'a.b.%' | subject patterns | no |
| `timestamp` | since and until | yes, but for = |
| a declared property, a field of `properties` | a condition beside the user's own | no, but for times; = and IN of these, no |
| `sequence`, `offset`, `partition`, `topic` | bounds of what is read | yes |
| anything else | nothing | yes |

A predicate is only taken from Spark if it is true for exactly the same records. Spark keeps a
record if a predicate is true, so null and false are the same. So `a <> 1`, which is null where `a`
is null, may become the overlay's `<>`, which is unknown there. Positions are only bounds, because
in a stream of several partitions sequences are not offsets.

A time outside the years 1 to 9999 is null in Spark's columns (times.py), and the overlay compares it like any other. So such
a record may pass the overlay's condition, and Spark tests again. IS NULL of a time is left to Spark alone.

Nothing is taken where the two sides could differ: constants of another type than the field, NaN and
infinities, times finer than a millisecond for properties, and patterns with control characters, which
the overlay's LIKE refuses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from overlay.client.read.question import CheckedQuestion
from overlay.client.read.typed_columns import list_fields, list_own
from overlay.filter import Filter as OverlayFilter
from overlay.filter import nodes
from overlay.filter.describe import describe
from overlay.filter.families import FAMILIES, Family
from overlay.filter.nodes import And, Column, Compare, Node, Section
from overlay.filter.rewrite import rewrite
from overlay.scan.decode import NO_STOP
from overlay.subject import Pattern, is_subject

from .plan import EVERYTHING, PositionWindow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARES: dict[type[Filter], Compare] = {
    EqualTo: Compare.EQ,
    EqualNullSafe: Compare.EQ,
    GreaterThan: Compare.GT,
    GreaterThanOrEqual: Compare.GE,
    LessThan: Compare.LT,
    LessThanOrEqual: Compare.LE,
}
_EQUALITIES = EqualTo | EqualNullSafe | In
_LIKE_ESCAPE = "!"


@dataclass(frozen=True, slots=True)
class Pushed:
    """A request with the predicates that were taken, the window that positions leave, and the
    predicates left for Spark. Spark does not test again what was taken: it is true for exactly the same records.
    Predicates on positions narrow the window and are left for Spark too.
    """

    request: CheckedQuestion
    window: PositionWindow = EVERYTHING
    left: tuple[Filter, ...] = ()
    is_empty: bool = False
    """Whether no record can pass."""


@dataclass(slots=True)
class _Draft:
    """The conditions collected so far.

    Each `take` method returns whether Spark need not test the predicate again, except for
    positions, which Spark always tests again.
    """

    request: CheckedQuestion
    window: PositionWindow = EVERYTHING
    conditions: list[Node] = field(default_factory=list)
    is_empty: bool = False

    def take(self, filter: Filter, fields: Mapping[tuple[str, ...], Column]) -> bool:
        """Add the predicate to the conditions, if the overlay can evaluate it or use it as a bound.

        Return whether Spark need not test it again: False for a bound too, and for what may let more records pass.
        `fields`: the typed fields by the path of their column.
        """
        negated = isinstance(filter, Not)
        inner = filter.child if isinstance(filter, Not) else filter
        path: tuple[str, ...] = getattr(inner, "attribute", ())
        # by column: subject, timestamp, a position (Spark tests it again), or a typed field
        match path:
            case ("subject",):
                return not negated and self._take_subject(inner)
            case ("timestamp",):
                # a time that Spark's columns cannot have may pass, but for a test for equality
                return not negated and self._take_time(inner) and isinstance(inner, _EQUALITIES)
            case ("sequence" | "offset" | "partition" | "topic",):
                if not negated:
                    self._take_position(path[0], inner)
                return False
            case _ if path in fields:
                return self._take_property(inner, fields[path], negated=negated)
        return False

    def _take_property(self, filter: Filter, column: Column, *, negated: bool) -> bool:
        is_time = column.type == "timestamp"
        # a time that Spark's columns cannot have is null for Spark alone
        asks_for_null = isinstance(filter, IsNotNull if negated else IsNull)
        condition = None if is_time and asks_for_null else to_condition(filter, column)
        if condition is None or (negated and isinstance(filter, EqualNullSafe)):
            return False  # the negation of <=> is true for nulls
        self.conditions.append(nodes.Not(condition) if negated else condition)
        return not is_time or (not negated and isinstance(filter, _EQUALITIES))

    def _take_subject(self, filter: Filter) -> bool:
        match filter:
            case IsNotNull():
                return True  # a record without a subject is not in the stream
            case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)):
                return self._narrow_subjects([text])
            case In(value=texts) if all(isinstance(text, str | None) for text in texts):
                return self._narrow_subjects([text for text in texts if text is not None])
            case StringStartsWith(value=text) if text.endswith(".") and self.request.patterns == (Pattern(">"),):
                # wildcards of subject patterns are plain characters for Spark
                if is_subject(text[:-1]):
                    self.request = replace(self.request, patterns=(Pattern.parse(f"{text}>"),))
                    return True
        return False

    def _narrow_subjects(self, texts: Sequence[str]) -> bool:
        known = self.request.patterns
        kept = [text for text in dict.fromkeys(texts) if is_subject(text) and any(p.matches(text) for p in known)]
        self.is_empty = self.is_empty or not kept
        if kept:
            self.request = replace(self.request, patterns=tuple(map(Pattern.parse, kept)))
        return True

    def _take_time(self, filter: Filter) -> bool:
        """Narrow since and until by a predicate on `timestamp`. Return False if the overlay cannot use it, and then
        nothing is changed.

        Records have whole milliseconds, so a bound between two of them becomes the later one, and no
        record can pass a test for equality with such a time.
        """
        since = until = None
        match filter:
            case EqualTo(value=datetime() as time) | EqualNullSafe(value=datetime() as time):
                low = count_micros(time)
                if low % 1000:
                    self.is_empty = True
                    return True
                since, until = low // 1000, low // 1000 + 1
            case GreaterThan(value=datetime() as time):
                since = count_micros(time) // 1000 + 1
            case GreaterThanOrEqual(value=datetime() as time):
                since = -(-count_micros(time) // 1000)
            case LessThan(value=datetime() as time):
                until = -(-count_micros(time) // 1000)
            case LessThanOrEqual(value=datetime() as time):
                until = count_micros(time) // 1000 + 1
            case _:
                return False
        request = self.request
        if since is not None:
            since = since if request.since is None else max(since, request.since)
            request = replace(request, since=since)
        if until is not None:
            until = until if request.until is None else min(until, request.until)
            request = replace(request, until=until)
        self.request = request
        return True

    def _take_position(self, name: str, filter: Filter) -> None:
        values = _list_values(filter)
        if name == "topic" and values is not None:
            texts = frozenset(value for value in values if isinstance(value, str))
            before = self.window.topics
            self.window = replace(self.window, topics=texts if before is None else texts & before)
        elif name == "partition" and values is not None:
            numbers = frozenset(value for value in values if isinstance(value, int))
            known = self.window.partitions
            self.window = replace(self.window, partitions=numbers if known is None else numbers & known)
        elif name == "sequence":
            self.window = replace(self.window, sequences=_meet(self.window.sequences, _find_range(filter)))
        elif name == "offset":
            self.window = replace(self.window, offsets=_meet(self.window.offsets, _find_range(filter)))


def push(filters: Iterable[Filter], request: CheckedQuestion) -> Pushed:
    """Return the request with as many of the predicates as the overlay can use, and the predicates that
    Spark still has to test. `filters`: predicates of which all have to be true.
    """
    draft = _Draft(request)
    fields: dict[tuple[str, ...], Column] = {(name,): column for name, column in list_own(request.stream).items()}
    fields.update(((section, name), column) for (section, name), column in list_fields(request.stream).items())
    left = tuple(filter for filter in filters if not draft.take(filter, fields))
    return Pushed(_add_conditions(draft.request, draft.conditions), draft.window, left, draft.is_empty)


def _add_conditions(request: CheckedQuestion, conditions: Sequence[Node]) -> CheckedQuestion:
    if not conditions:
        return request
    every = (*([request.filter.bound] if request.filter else []), *conditions)
    node = every[0] if len(every) == 1 else And(every)
    more = {"clock": request.filter.clock} if request.filter else {}
    return replace(request, filter=OverlayFilter(node, rewrite(node), describe(node), **more))


def to_condition(filter: Filter, column: Column) -> Node | None:
    """Return a condition of the overlay that is true for the same records as the predicate on this
    field; None if there is none.
    """
    if column.section is Section.HEADER and column.name == "priority":
        return None  # a missing value is NULL for Spark and DEFAULT_PRIORITY for a filter
    match filter:
        case IsNull():
            return nodes.IsNull(column)
        case IsNotNull():
            return nodes.IsNull(column, negated=True)
        case In(value=values):
            literals = [to_literal(value, column.type) for value in values if value is not None]
            known = [literal for literal in literals if literal is not None]
            is_exact = len(known) == len(values) and known
            return nodes.In(column, tuple(known)) if is_exact else None
        case StringStartsWith(value=text) | StringEndsWith(value=text) if column.type == "string":
            return nodes.Affix(column, text.encode(), is_suffix=isinstance(filter, StringEndsWith))
        case StringContains(value=text) if column.type == "string" and text.isprintable():
            for char in (_LIKE_ESCAPE, "%", "_"):
                text = text.replace(char, _LIKE_ESCAPE + char)
            return nodes.Like(column, f"%{text}%", _LIKE_ESCAPE)
    compare = _COMPARES.get(type(filter))
    literal = None if compare is None else to_literal(filter.value, column.type)  # type: ignore[attr-defined]
    is_ordered = compare is Compare.EQ or FAMILIES[column.type] is not Family.BOOLEAN
    if compare is None or literal is None or not is_ordered:
        return None
    return nodes.Comparison(compare, column, literal)


def to_literal(value: Any, type: str) -> nodes.Literal | None:
    """Return a value of Spark as a constant to compare a column of `type` with; None if the two
    could differ.
    """
    match value, type:
        case bool(), "boolean":
            return nodes.Literal(value)
        case int(), ("long" | "double") if not isinstance(value, bool):
            return nodes.Literal(value)
        case float(), "double" if math.isfinite(value):
            return nodes.Literal(value)
        case str(), "string":
            return nodes.Literal(value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray(), "binary":
            return nodes.Literal(bytes(value))
        case datetime(), "timestamp":
            micros = count_micros(value)
            return None if micros % 1000 else nodes.Literal(micros // 1000)
    return None


def count_micros(time: datetime) -> int:
    """Return microseconds since 1970. Spark passes times without a zone, in the zone of this process."""
    aware = time if time.tzinfo is not None else time.astimezone(UTC)
    passed = aware - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _list_values(filter: Filter) -> list[Any] | None:
    match filter:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return [value]
        case In(value=values):
            return list(values)
    return None


def _meet(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


def _find_range(filter: Filter) -> tuple[int, int]:
    """Return the range start <= x < stop that has all whole numbers for which the predicate may be
    true.
    """
    values = _list_values(filter)
    if values is not None:
        numbers = [value for value in values if isinstance(value, int)]
        return (min(numbers), max(numbers) + 1) if numbers else (0, 0)
    match filter:
        case GreaterThan(value=int(value)):
            return value + 1, NO_STOP
        case GreaterThanOrEqual(value=int(value)):
            return value, NO_STOP
        case LessThan(value=int(value)):
            return 0, value
        case LessThanOrEqual(value=int(value)):
            return 0, value + 1
    return 0, NO_STOP
