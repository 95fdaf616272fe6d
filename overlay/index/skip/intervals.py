"""Conditions on a value as intervals of the values that its column can hold.

A zone has the least and the greatest value of a chunk in the column's own type. So the constant of
a condition is first converted to that type, exactly: for whole numbers `x < 60.5` is `x <= 60`, for
doubles `x > 2**53 + 1` begins at the next double. The result is always a closed interval, and four
comparisons of machine numbers compare it with a zone.

Texts are compared by keys (zones.py), which keep the order of texts but tell long ones apart only
by their beginnings. So a condition on texts has two intervals: keys of texts that may satisfy it,
and keys of texts that certainly do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from overlay.filter.families import FAMILIES, Family
from overlay.filter.like import LikePattern, Shape
from overlay.filter.nodes import Compare

from .zones import KEY_TEXT, text_key

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

Bound = int | float | None


@dataclass(frozen=True, slots=True)
class Interval:
    """The values with low <= value <= high; None is no bound. Bounds have the column's type; for
    texts they are keys.
    """

    low: Bound
    high: Bound

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high

    @property
    def is_full(self) -> bool:
        return self.low is None and self.high is None


FULL = Interval(None, None)
EMPTY = Interval(1, 0)


class Meant(NamedTuple):
    """The values of a column that satisfy a condition, as two intervals: no value outside
    `possible` does, and every value within `sure` does.
    """

    possible: Interval
    sure: Interval


def compare_with(operator: Compare, constant: int | float | bytes, type: str) -> Meant:
    """Return which values of a column satisfy `value operator constant`. `type`: of the column, a
    number or text; the constant has the same family. The operator must not be `<>`, which is not
    one interval: ask for `=` and negate it.
    """
    if FAMILIES[type] is Family.TEXT:
        assert isinstance(constant, bytes)
        return _compare_text(operator, constant)
    assert not isinstance(constant, bytes)
    exact = _compare_double(operator, constant) if type == "double" else _compare_long(operator, constant)
    return Meant(exact, exact)


def _compare_long(operator: Compare, constant: int | float) -> Interval:
    below, above = math.floor(constant), math.ceil(constant)
    low, high = INT64_MIN, INT64_MAX
    match operator:
        case Compare.EQ:
            low, high = above, below
        case Compare.LT:
            high = above - 1
        case Compare.LE:
            high = below
        case Compare.GT:
            low = below + 1
        case _:
            low = above
    if low > high or low > INT64_MAX or high < INT64_MIN:
        return EMPTY
    return Interval(low if low > INT64_MIN else None, high if high < INT64_MAX else None)


def _compare_double(operator: Compare, constant: int | float) -> Interval:
    # `below` is the greatest double <= constant, `above` the least >= constant.
    below, above = _round_down(constant), _round_up(constant)
    low, high = -math.inf, math.inf
    match operator:
        case Compare.EQ:
            low, high = above, below
        case Compare.LT:
            high = below if below != constant else math.nextafter(below, -math.inf)
        case Compare.LE:
            high = below
        case Compare.GT:
            low = above if above != constant else math.nextafter(above, math.inf)
        case _:
            low = above
    if low > high or low == math.inf or high == -math.inf:
        return EMPTY
    return Interval(low if low > -math.inf else None, high if high < math.inf else None)


def _round_down(constant: int | float) -> float:
    nearest = _round(constant)
    return nearest if nearest <= constant else math.nextafter(nearest, -math.inf)


def _round_up(constant: int | float) -> float:
    nearest = _round(constant)
    return nearest if nearest >= constant else math.nextafter(nearest, math.inf)


def _round(constant: int | float) -> float:
    try:
        return float(constant)
    except OverflowError:
        return math.inf if constant > 0 else -math.inf


def _compare_text(operator: Compare, constant: bytes) -> Meant:
    key = text_key(constant)
    # A short constant is the only text with its key; a long one shares it with all texts that begin
    # alike.
    is_alone = len(constant) <= KEY_TEXT
    match operator:
        case Compare.EQ:
            return Meant(Interval(key, key), Interval(key, key) if is_alone else EMPTY)
        case Compare.LT if not constant:
            return Meant(EMPTY, EMPTY)
        case Compare.LT:
            return Meant(Interval(None, key - is_alone), Interval(None, key - 1))
        case Compare.LE:
            return Meant(Interval(None, key), Interval(None, key if is_alone else key - 1))
        case Compare.GT:
            return Meant(Interval(key + is_alone, None), Interval(key + 1, None))
        case _:
            return Meant(Interval(key, None), Interval(key if is_alone else key + 1, None))


def begin_with(head: bytes) -> Meant:
    """Return which texts begin with `head`, as intervals of text keys."""
    if not head:
        return Meant(FULL, FULL)
    if len(head) > KEY_TEXT:
        only = text_key(head)
        return Meant(Interval(only, only), EMPTY)
    rest = 8 * (KEY_TEXT + 1 - len(head))
    both = Interval(text_key(head), (int.from_bytes(head, "big") << rest) | ((1 << rest) - 1))
    return Meant(both, both)


def is_like(pattern: LikePattern) -> Meant:
    """Return which texts a LIKE pattern matches, as intervals of text keys. Only the beginning of
    the pattern, up to its first wildcard, counts. The result is exact for patterns such as `abc`
    and `abc%` with at most KEY_TEXT bytes beside the `%`; for others `sure` is empty.
    """
    if pattern.shape is Shape.EXACT:
        return _compare_text(Compare.EQ, pattern.head)
    if pattern.shape is Shape.PREFIX:
        return begin_with(pattern.head)
    first = pattern.runs[0]
    head = "".join(char or "" for char in (first[: first.index(None)] if None in first else first))
    return Meant(begin_with(head.encode()).possible, EMPTY)


def show_key(key: int) -> str:
    """Return the text that a key begins with, at most KEY_TEXT bytes, to be shown to people."""
    return key.to_bytes(KEY_TEXT + 1, "big")[:KEY_TEXT].rstrip(b"\0\xff").decode(errors="backslashreplace")
