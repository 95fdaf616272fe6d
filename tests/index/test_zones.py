"""Bounds of properties and the keys of texts, against Python's order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.zones import KEY_TEXT, Bounds, find_bounds, text_key, unite

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
