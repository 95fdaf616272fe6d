"""Bounds of properties and the keys of texts, against Python's order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip.zones import (
    DOUBLES,
    INTEGERS,
    KEY_TEXT,
    KEYS,
    Bounds,
    find_bounds,
    make_key,
    read_bounds,
    text_key,
    unite,
    widen,
)

texts = st.binary(max_size=20) | st.sampled_from([b"", b"\0", b"a" * 15, b"a" * 15 + b"\0", b"a" * 16, b"\xff" * 16])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "timestamp": st.integers(0, 1 << 45),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}
ARROW = {"long": pa.int64(), "double": pa.float64(), "timestamp": pa.timestamp("ms"), "string": pa.string()}


@settings(deadline=None)
@given(texts, texts)
def test_keys_have_the_order_of_texts(a: bytes, b: bytes) -> None:
    assert not a < b or text_key(a) <= text_key(b)
    assert 0 <= text_key(a) < 1 << 128
    if max(len(a), len(b)) <= KEY_TEXT:
        assert (a < b) == (text_key(a) < text_key(b))
        assert (a == b) == (text_key(a) == text_key(b))


@pytest.mark.parametrize("type", VALUES)
@settings(deadline=None)
@given(st.data())
def test_bounds_are_the_least_and_the_greatest(type: str, data: st.DataObject) -> None:
    first, second = (data.draw(st.lists(st.none() | VALUES[type], max_size=5)) for _ in range(2))
    column = pa.array([*first, *second]).cast(ARROW[type]) if first + second else pa.array([], ARROW[type])
    present = [value for value in first + second if value is not None]
    if type == "string":
        present = [text_key(value.encode()) for value in present]
    expected = Bounds(type, min(present, default=None), max(present, default=None), None in first + second)
    assert find_bounds(column, type) == expected
    parts = [find_bounds(column.slice(at, count), type) for at, count in ((0, len(first)), (len(first), len(second)))]
    assert unite(*parts) == expected


@pytest.mark.parametrize("type", VALUES)
@settings(deadline=None)
@given(st.data())
def test_kernels_widen_bounds_as_columns_have_them(type: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[type], max_size=6))
    words = np.zeros(5, np.uint64)
    for value in values:
        if type == "string":
            first, second = np.frombuffer(value.encode()[:KEY_TEXT].ljust(16, b"\0"), np.uint64)
            high, low = make_key(first, second, len(value.encode()))
            widen(words, np.uint64(high), np.uint64(low), KEYS)
        else:
            word = np.array([value], np.float64 if type == "double" else np.int64).view(np.uint64)[0]
            widen(words, word, np.uint64(0), DOUBLES if type == "double" else INTEGERS)
    assert read_bounds(words, type, True) == unite(
        find_bounds(pa.array(values, pa.string() if type == "string" else ARROW[type]), type),
        Bounds(type, None, None, True),
    )


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_of_equal_doubles_the_first_is_the_bound(zeros: tuple[float, float]) -> None:
    words = np.zeros(5, np.uint64)
    for zero in zeros:
        widen(words, np.array([zero]).view(np.uint64)[0], np.uint64(0), DOUBLES)
    bounds = read_bounds(words, "double", False)
    assert bounds.min is not None and bounds.max is not None
    assert [math.copysign(1, bound) for bound in (bounds.min, bounds.max)] == [math.copysign(1, zeros[0])] * 2
