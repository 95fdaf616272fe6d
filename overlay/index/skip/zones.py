"""Zone maps: the smallest and largest value of a property in a chunk, and whether it is NULL in
some record.

Numbers are kept as they are: a long or timestamp (ms since 1970) as int64, a double as float64.
Neither NaN nor infinity occurs, since columns hold finite numbers only (scan/columns.py).

A text of any length is kept as a key of 16 bytes that has the order of the texts: its first 15
bytes, padded with zeros, then its length, or 16 if it is longer. Texts up to 15 bytes have a key of
their own, so their bounds are exact. Longer ones that begin alike share a key, and equal keys
decide nothing about them. A key is a number of 128 bits, in arrays two uint64, the high one first.

NULL is everything that SQL treats as unknown: a missing field, or one that cannot be read as its
type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from overlay.arrays import AnyArray, Bool, Flags, Int, Words
from overlay.kernels import kernel

KEY_TEXT = 15
"""Bytes of a text that are in its key."""

TYPES = ("long", "double", "timestamp", "string")
"""The types that have zones. Headers store a type as its index here."""

INTEGERS, DOUBLES, KEYS = range(3)
"""What the words of bounds are, which decides how they compare."""
_MIN, _MAX, _HAS_VALUE = 0, 2, 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """A property's zone in one chunk. `min` and `max` are None if no record has a value; for texts
    they are keys.
    """

    type: str
    min: int | float | None
    max: int | float | None
    has_null: bool


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """A property's zones in n chunks: min and max are [n] int64 or float64, for texts [n, 2]
    uint64.

    Items are meaningful only where `known`; min and max only where `has_value`.
    """

    type: str
    min: AnyArray
    max: AnyArray
    has_null: Flags
    has_value: Flags
    known: Flags


def text_key(text: bytes) -> int:
    """Return the key of a text, a whole number below 2**128. If one text is below another, its key
    is not above the other's. Texts up to KEY_TEXT bytes have a key that no other text has.
    """
    return int.from_bytes(text[:KEY_TEXT].ljust(KEY_TEXT, b"\0") + bytes([min(len(text), KEY_TEXT + 1)]), "big")


def find_bounds(column: pa.Array, type: str) -> Bounds:
    """Return the zone of some values of a property, one of TYPES as `type`. `column`: as
    match/reading.py reads it, not a dictionary.
    """
    # it takes long to import, and most readers call none of its functions
    import pyarrow.compute as pc

    found = pc.min_max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if type == "string" and low is not None:
        low, high = text_key(low.encode()), text_key(high.encode())
    return Bounds(type, low, high, column.null_count > 0)


def unite(a: Bounds, b: Bounds) -> Bounds:
    """Return the zone of a property over the records of both `a` and `b`."""
    if a.min is None or a.max is None:
        return Bounds(b.type, b.min, b.max, a.has_null or b.has_null)
    if b.min is None or b.max is None:
        return unite(b, a)
    return Bounds(a.type, min(a.min, b.min), max(a.max, b.max), a.has_null or b.has_null)


def read_bounds(words: Words, type: str, has_null: bool) -> Bounds:
    """Return as a zone the bounds that `widen` has written to the first five of `words`: smallest
    and largest value, two words each, and whether there is one.
    """
    if not words[_HAS_VALUE]:
        return Bounds(type, None, None, has_null)
    if type == "string":
        low, low_rest, high, high_rest = words[:_HAS_VALUE].tolist()
        return Bounds(type, low << 64 | low_rest, high << 64 | high_rest, has_null)
    numbers = words[:_HAS_VALUE].view(np.float64 if type == "double" else np.int64).tolist()
    return Bounds(type, numbers[_MIN], numbers[_MAX], has_null)


@kernel
def widen(words: Words, high: np.uint64, low: np.uint64, order: Int) -> None:
    """Widen the bounds in `words` (as `read_bounds` takes them) so that they include a value.

    `order`: INTEGERS, DOUBLES or KEYS. A number is in `high`, and `low` is not used; a key is in
    both. Of equal doubles (0 and -0) the first one stays.
    """
    if not words[_HAS_VALUE]:
        words[_HAS_VALUE] = 1
        words[_MIN], words[_MIN + 1], words[_MAX], words[_MAX + 1] = high, low, high, low
    elif _is_less(high, low, words[_MIN], words[_MIN + 1], order):
        words[_MIN], words[_MIN + 1] = high, low
    elif _is_less(words[_MAX], words[_MAX + 1], high, low, order):
        words[_MAX], words[_MAX + 1] = high, low


@kernel
def _is_less(a: np.uint64, a_low: np.uint64, b: np.uint64, b_low: np.uint64, order: Int) -> Bool:
    if order == KEYS:
        return a < b or (a == b and a_low < b_low)
    if order == DOUBLES:
        return np.uint64(a).view(np.float64) < np.uint64(b).view(np.float64)
    return np.int64(a) < np.int64(b)


@kernel
def make_key(first: np.uint64, second: np.uint64, size: Int) -> tuple[np.uint64, np.uint64]:
    """Return the key of a text of `size` bytes as two words (high, low). `first`, `second`: its
    first KEY_TEXT bytes as little-endian words, padded with zeros.
    """
    return _turn(first), _turn(second) | np.uint64(min(size, KEY_TEXT + 1))


@kernel
def _turn(word: np.uint64) -> np.uint64:
    """Return the bytes of a word in reverse order."""
    turned = np.uint64(0)
    for i in range(8):
        turned |= ((word >> np.uint64(8 * i)) & np.uint64(0xFF)) << np.uint64(56 - 8 * i)
    return turned
