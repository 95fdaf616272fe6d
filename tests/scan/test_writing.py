"""Numbers that kernels write as text, against Python's own."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.scan.scalars import writing
from overlay.scan.scalars.writing import MOST, UNDECIDED, write_decimal, write_double, write_long

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def write(function: Callable[..., Any], *arguments: object) -> str | None:
    """Return the text, None if it is undecided. Nothing is written beyond it."""
    buf = np.full(MOST + 16, 7, np.uint8)
    end = int(function(*arguments, buf, 8))
    if end == UNDECIDED:
        return None
    assert end - 8 <= MOST
    assert buf[:8].tolist() == [7] * 8 and set(buf[end:].tolist()) == {7}
    return buf[8:end].tobytes().decode()


def write_as_text(value: float) -> str | None:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return write(write_double, np.uint64(bits))


def list_digits(text: str) -> str:
    return text.lstrip("-").partition("e")[0].replace(".", "").strip("0")


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e6, 1e6))
@example(0.1)
@example(0.1 + 0.2)
@example(6.5095150591089715e130)
@example(1.7976931348623157e308)
@example(2.2250738585072014e-308)
@example(9007199254740993.0)
def test_a_double_has_as_few_digits_as_python_gives_it(value: float) -> None:
    text = write_as_text(value)
    if text is None:
        # subnormal, or so small that the power is not in the table
        assert abs(value) < 1e-290
        return
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)
    assert len(list_digits(text)) == len(list_digits(repr(value)))


def test_most_doubles_are_decided() -> None:
    """Those of one seed, over all exponents that have their power in the table."""
    words = np.random.default_rng(20).integers(0, 1 << 64, 3_000, np.uint64)
    values = [value for value in words.view(np.float64).tolist() if 1e-290 < abs(value) < float("inf")]
    assert len(values) > 2_000
    assert sum(write_as_text(value) is None for value in values) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (12.0, "12"),
        (-2.5, "-2.5"),
        (1e18, "1000000000000000000"),
        (1.5e300, "1.5e300"),
        (0.00001234, "0.00001234"),
        (1e-7, "1e-7"),
        (float("nan"), "NaN"),
        (float("-inf"), "NaN"),
        (5e-324, None),
    ],
)
def test_the_form_of_doubles(value: float, text: str | None) -> None:
    assert write_as_text(value) == text


@given(LONGS)
@example(-(1 << 63))
def test_longs(value: int) -> None:
    assert write(write_long, value) == str(value)


@given(st.booleans(), st.integers(0, (1 << 64) - 1), st.integers(-9_999, 0))
@example(True, 0, -3)
@example(False, (1 << 64) - 1, -19)
def test_decimals(minus: bool, digits: int, power: int) -> None:
    text = write(write_decimal, minus, np.uint64(digits), power)
    assert text is not None
    json.loads(text)
    assert Decimal(text) == Decimal(-digits if minus else digits).scaleb(power)


def test_doubles_left_to_python_are_spelled_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer may fill a slice with them."""
    spelled: list[float] = []

    def note(double: float) -> str:
        spelled.append(double)
        return repr(double)

    monkeypatch.setattr(writing, "repr", note, raising=False)
    doubles = [5e-324, -2.2250738585072011e-308, 5e-324, 1.5, 3e-320] * 200
    buf = np.zeros(MOST * len(doubles), np.uint8)
    buf.reshape(-1, MOST)[:, :8] = np.array(doubles).view(np.uint8).reshape(-1, 8)
    at = np.arange(len(doubles))[None, :] * MOST
    size = np.full((1, len(doubles)), writing.LEFT)
    size[0, 3::5] = 8  # of another kind: left as it is
    size[0, -5:] = writing.LEFT
    writing.spell_left(buf, at, size, np.zeros(1, np.int64), 0, len(doubles) - 5)
    found = [buf[place : place + length].tobytes() for place, length in zip(at[0], size[0].clip(0), strict=True)]
    wanted = [b"5e-324", b"-2.225073858507201e-308", b"5e-324", np.float64(1.5).tobytes(), b"3e-320"]
    assert found == wanted * 199 + [b""] * 5
    assert len(spelled) == 3
