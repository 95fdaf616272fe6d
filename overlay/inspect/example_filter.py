"""An example filter for a drafted consumer: a condition on a sampled field that some of its records meet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from overlay.config.stream import PropertyType, place_property
from overlay.filter.describe import describe
from overlay.filter.nodes import Compare, Comparison, IsNull, Literal, Name

from .column import SampledField, guess_type
from .proposal import MAX_TEXT, MAX_VALUES, Proposal

Number = int | float


@dataclass(frozen=True, slots=True)
class ExampleFilter:
    """A condition as SQL, and how many of the consumer's `rows` sampled records meet it."""

    sql: str
    passed: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Condition:
    compare: Compare
    value: bool | Number | bytes
    passes: Callable[[str], bool]
    """Whether a sampled value meets the condition."""


def make_example(proposal: Proposal, first_value: str) -> ExampleFilter | None:
    """Return a condition for a consumer that wants the records whose first field of the subject has this value; None
    if there are no properties. The proposed subject must have a field.

    It is on a field that tells records apart and is not part of the subject, if there is one: a text with few values,
    then a number, then a boolean. At least one of the consumer's records meets it. Texts and whole numbers that
    seldom come back, such as ids, are not shown. If no field makes such a condition, it is `IS NOT NULL` of the first
    property, which no record may meet.
    """
    if not proposal.properties:
        return None
    rows = [row for row, text in enumerate(proposal.subject.columns[0].texts) if text == first_value]
    in_subject = {column.field for column in proposal.subject.columns}
    ranked = sorted(
        ((name, column) for name, column in proposal.properties if column.type in _RANKS),
        key=lambda each: (each[1].field in in_subject, _RANKS[each[1].type]),
    )
    for name, column in ranked:
        texts = [text for row in rows if (text := column.texts[row]) is not None]
        if condition := _make_condition(column, texts):
            comparison = Comparison(condition.compare, Name(*place_property(name)), Literal(condition.value))
            return ExampleFilter(describe(comparison), sum(map(condition.passes, texts)), len(rows))
    name, column = proposal.properties[0]
    node = IsNull(Name(*place_property(name)), negated=True)
    return ExampleFilter(describe(node), sum(column.texts[row] is not None for row in rows), len(rows))


def _make_condition(column: SampledField, texts: Sequence[str]) -> _Condition | None:
    """Return a condition on a field that at least one of `texts` meets; None if the field is not worth one. `texts`:
    the field's values in the records of the consumer, `column` has those of all sampled records.
    """
    match column.type:
        case PropertyType.STRING:
            return _equal_text(column, texts)
        case PropertyType.BOOLEAN:
            return _equal_boolean(column, texts)
        case PropertyType.LONG:
            # whole numbers that do not come back are ids
            return _at_least(column, texts, int) if 2 * column.distinct <= column.present else None
    return _at_least(column, texts, float)


def _equal_text(column: SampledField, texts: Sequence[str]) -> _Condition | None:
    """Return the condition that a field equals the commonest of those `texts` that are printable and do not look like
    a number, a boolean or a time. None if the field has one value only or too many, if there is no such text, or if
    it is too long.
    """
    if not 1 < column.distinct <= min(MAX_VALUES, max(4, column.rows // 4)):
        return None
    # what looks like a number may be spelled otherwise in the JSON
    plain = [text for text in texts if guess_type(text) is PropertyType.STRING and text.isprintable()]
    value = Counter(plain).most_common(1)[0][0] if plain else ""
    if not 0 < len(value) <= MAX_TEXT:
        return None
    return _Condition(Compare.EQ, value.encode(), lambda text: text == value)


def _equal_boolean(column: SampledField, texts: Sequence[str]) -> _Condition | None:
    """Return the condition that a field equals the commoner of true and false in `texts`. None if the field has only
    one of them, or if `texts` is empty.
    """
    if column.distinct < 2 or not texts:
        return None
    value = Counter(texts).most_common(1)[0][0]
    return _Condition(Compare.EQ, value == "true", lambda text: text == value)


def _at_least(column: SampledField, texts: Sequence[str], read: Callable[[str], Number]) -> _Condition | None:
    """Return the condition that a field is at least the median of `texts`, which `read` turns into numbers; of two in
    the middle, the larger. None if the field has one value only, or if none of `texts` is a finite number.
    """
    numbers = sorted(number for number in (_parse(text, read) for text in texts) if not math.isnan(number))
    if column.distinct < 2 or not numbers:
        return None
    median = numbers[len(numbers) // 2]
    return _Condition(Compare.GE, median, lambda text: _parse(text, read) >= median)


def _parse(text: str, read: Callable[[str], Number]) -> Number:
    """Return what `read` makes of a text; NaN if it raises ValueError, or if the number is not finite."""
    try:
        number = read(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


_RANKS = {PropertyType.STRING: 0, PropertyType.DOUBLE: 1, PropertyType.LONG: 1, PropertyType.BOOLEAN: 2}
"""Types of fields for conditions; the lowest is taken first."""
