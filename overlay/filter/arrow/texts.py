"""LIKE, and the prefix and suffix tests of property filters, on vectors.

A pattern without `_` is mostly a plain search for bytes. Other patterns use RE2. Its time is linear
in the value but not in the pattern: a search for a run with many `_` follows as many states as the
run has characters. So such patterns are matched by like.py's own engine, one value at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from overlay.filter.like import LikePattern, Shape

from .comparing import hold
from .vectors import Kind, Value, Vector, make_unknown

_WIDE = 8
"""With more `_` than this in a run, RE2 was measured to be slower than the engine in Python."""


def matches(pattern: LikePattern, value: Value) -> Value:
    """Return for each row whether its string matches the pattern; unknown for values that are no
    string or not UTF-8.
    """
    if isinstance(value, bytes):
        return pattern.matches(value)
    if not isinstance(value, Vector) or value.kind is not Kind.TEXT:
        return make_unknown(value)
    strings = value.array if value.is_utf8 else _keep_utf8(value.array)
    return Vector(Kind.BOOLEAN, _match(pattern, strings), value.doubt)


def has_affix(text: bytes, is_suffix: bool, value: Value) -> Value:
    """Return whether each string begins with `text` (ends with it if `is_suffix`). False for values
    that are no string, unknown for NULL; None if the value is not a vector, so that the field is
    missing.
    """
    if not isinstance(value, Vector):
        return None
    if value.kind is not Kind.TEXT:
        return hold(False, value)
    return Vector(Kind.BOOLEAN, (pc.ends_with if is_suffix else pc.starts_with)(value.array, text), value.doubt)


def is_present(array: pa.Array | None) -> Value:
    """Return whether each row has the field. `array`: its column, or None if the batch has none;
    then the answer is False for all rows.

    Arrow has the same null for a missing field and for one that is NULL, so both count as missing.
    """
    if array is None:
        return False
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()  # the dictionary may hold null as well
    return Vector(Kind.BOOLEAN, array.is_valid())


def _match(pattern: LikePattern, array: pa.Array) -> pa.BooleanArray:
    """Return which values match. `array`: bytes that are UTF-8."""
    match pattern.shape:
        case Shape.EXACT:
            return pc.equal(array, pa.scalar(pattern.head, pa.binary()))
        case Shape.PREFIX:
            return pc.starts_with(array, pattern.head)
        case Shape.SUFFIX:
            return pc.ends_with(array, pattern.tail)
        case Shape.CONTAINS:
            return pc.match_substring(array, pattern.inner)
        case Shape.PREFIX_SUFFIX:
            ends = pc.and_(pc.starts_with(array, pattern.head), pc.ends_with(array, pattern.tail))
            room = len(pattern.head) + len(pattern.tail)
            return pc.and_(ends, pc.greater_equal(pc.binary_length(array), room))
        case Shape.GENERAL:
            return _match_generally(pattern, array)


def _match_generally(pattern: LikePattern, array: pa.Array) -> pa.BooleanArray:
    if all(run.count(None) <= _WIDE for run in pattern.runs[1:]):
        type = pa.large_string() if pa.types.is_large_binary(array.type) else pa.string()
        try:
            return pc.match_substring_regex(array.view(type), pattern.regex)
        except pa.ArrowInvalid:
            pass  # the compiled pattern exceeds RE2's memory limit
    return pa.array([None if value is None else pattern.matches(value) for value in array.to_pylist()], pa.bool_())


def _keep_utf8(array: pa.Array) -> pa.Array:
    """Return the strings with null in place of those that are not UTF-8."""
    is_large = pa.types.is_large_binary(array.type)
    try:
        array.cast(pa.large_string() if is_large else pa.string())
    except pa.ArrowInvalid:
        return _drop_others(array, np.dtype(np.int64 if is_large else np.int32))
    return array


def _drop_others(array: pa.Array, offset: np.dtype[np.signedinteger]) -> pa.Array:
    # imports numba, which most filters over strings do not need
    from overlay.scan.columns import gather
    from overlay.scan.states import MISSING

    _, bounds, data = array.buffers()
    bounds = np.frombuffer(bounds, offset)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    size = np.where(array.is_valid().to_numpy(zero_copy_only=False), np.diff(bounds), MISSING)
    return gather(np.frombuffer(data, np.uint8), bounds[:-1], size, "string").array.view(pa.binary())
