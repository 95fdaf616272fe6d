"""Slices of text as typed Arrow columns, against plain Python (tests/oracle/values.py)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from overlay.arrays import AnyArray
from overlay.scan import MALFORMED, MISSING, UNDECODED
from overlay.scan.columns import NO_TIMESTAMP, TYPES, Column, Origin, coalesce, gather, read_times, wrap
from tests.oracle.values import BAD, NOT_UTF8, read

SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

digits = st.text("0123456789", min_size=1, max_size=24) | st.sampled_from(["0", "00", "1" + "0" * 400, "0" * 400 + "7"])
edges = st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 53, 10**19, 1 << 64, 0]).flatmap(
    lambda edge: st.integers(edge - 3, edge + 3).map(str)
)
spelled = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "", "-", "+", "--"]),
    digits,
    st.just("") | digits.map(".{}".format) | st.just("."),
    st.just("")
    | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "-", "+"]), st.integers(0, 340)),
)
odd = st.sampled_from(
    ["", " ", "-", "+", ".", ".5", "5.", "1e", "1e+", "e5", " 1", "1 ", "1_0", "0x10", "NaN", "inf", "-Infinity", "1,5"]
) | st.sampled_from(
    ["1e99999999999999999999", "0e99999999999999999999", "1e-99999999999999999999", "٣", "1\x00", "null", "nul", "[1]"]
)
floats = st.floats().map(repr) | st.floats().map(float.hex) | st.floats(0, 1e-300).map(repr)
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str)
numbers = spelled | edges | odd | floats | decimals
words = st.sampled_from(["true", "false", "True", "FALSE", "tru", "truee", "1", "0", "null", "", '"true"', "t\x52ue"])
two = st.integers(0, 70).map("{:02}".format)
times = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    st.sampled_from(["0000", "1969", "1970", "2000", "1900", "2024", "9999", "123", "-123"]),
    two, two, st.sampled_from("Tt _"), two, two, two,
    st.sampled_from(["", ".", ".1", ".12", ".123", ".999999999999999999999"]),
    st.sampled_from(["Z", "z", "", "+00:00", "-23:59", "+24:00", "+01:60", "+0100", "-00:30Z"]),
)  # fmt: skip
moments = st.builds(
    "{}{}".format,
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.sampled_from(["Z", "+05:30", "-11:00"]),
)
texts = st.text(max_size=12) | st.text(max_size=12).map(json.dumps)
pieces = st.sampled_from(
    [b"\\n", b"\\u00e9", b"\\ud83d", b"\\ude00", b"\\u12", b"\\x", b"\\", b'"', b"\xc3\xa9", b"\xed\xa0\x80"]
)
raw = st.binary(max_size=8) | st.sampled_from([b"\xc0\x80", b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf"])
quoted = st.lists(pieces | raw, max_size=4).map(lambda parts: b'"' + b"".join(parts) + b'"')
anything = st.one_of(
    (numbers | words | times | moments | texts).map(lambda text: text.encode("utf-8", "surrogatepass")),
    raw,
    quoted,
    (times | moments).map(lambda text: b'"' + text.encode() + b'"'),
)


def column(values: Sequence[bytes | None], type: str, origin: Origin, poison: bytes = b"7") -> Column:
    """The values side by side with poison between them, which a kernel that reads too far would take for digits."""
    at, size, buf = [], [], poison
    for value in values:
        at.append(len(buf))
        size.append(MISSING if value is None else len(value))
        buf += (value or b"") + poison
    made = gather(np.frombuffer(buf, np.uint8), np.array(at, np.int64), np.array(size, np.int64), type, origin)
    made.array.validate(full=True)
    assert made.array.type == TYPES[type]
    return made


def plain(array: pa.Array) -> list[Any]:
    values: list[Any] = (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()
    return values


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and one == other


def check(values: Sequence[bytes | None], type: str, origin: Origin) -> None:
    expected = [None if value is None else read(value, type, origin is Origin.JSON) for value in values]
    for poison in (b"7", b"\xff", b'"', b"Z"):
        made = column(values, type, origin, poison)
        for value, one, other in zip(values, plain(made.array), expected, strict=True):
            assert is_same(one, None if other in (BAD, NOT_UTF8) else other), (value, type, origin, one, other)
        reasons = Counter({BAD: "unparsable", NOT_UTF8: "not_utf8"}.get(other, "") for other in expected)
        del reasons[""]
        assert made.count_nulls() == reasons


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("type", TYPES)
@SETTINGS
@given(values=st.lists(st.none() | anything, max_size=12))
def test_any_text(type: str, origin: Origin, values: list[bytes | None]) -> None:
    check(values, type, origin)


@pytest.mark.parametrize("origin", Origin)
@SETTINGS
@given(values=st.lists(numbers.map(str.encode), max_size=20))
@example([b"9007199254740993", b"9007199254740992", b"-0.0", b"-0", b"5e-324", b"2e-324", b"1.7976931348623159e308"])
@example([b"1e22", b"1e23", b"1e-22", b"9007199254740992e22", b"0.1", b"0.30000000000000004", b"123456789012345678901"])
def test_numbers(origin: Origin, values: list[bytes]) -> None:
    check(values, "double", origin)
    check(values, "long", origin)


@SETTINGS
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_doubles_survive_their_own_spelling(values: list[float]) -> None:
    read_back = column([repr(value).encode() for value in values], "double", Origin.JSON).array.to_pylist()
    assert all(map(is_same, read_back, values))


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(-350, 320)), max_size=50))
def test_every_power_of_ten(pairs: list[tuple[int, int]]) -> None:
    check([f"{digits}e{power}".encode() for digits, power in pairs], "double", Origin.TEXT)


def test_halfway_between_doubles() -> None:
    """Values at, just below and just above the middle between two neighbours, where rounding is decided."""
    values = []
    for power in range(-60, 80):
        for mantissa in ((1 << 53) + 1, (1 << 54) - 1, 3 * (1 << 52) + 1, (1 << 53) + 3):
            with localcontext(prec=200):
                middle = Decimal(mantissa) * Decimal(2) ** power
            values += [
                f"{middle:f}".encode(),
                f"{middle:.18e}".encode(),
                f"{middle:.17e}".encode(),
                f"{middle:.16e}".encode(),
            ]
    check(values, "double", Origin.TEXT)


@SETTINGS
@given(values=st.lists((times | moments).map(str.encode), max_size=20))
@example(
    [b"2000-02-29T00:00:00Z", b"1900-02-29T00:00:00Z", b"0000-01-01T00:00:00+23:59", b"9999-12-31T23:59:59.999-23:59"]
)
@example(
    [
        b"2016-12-31T23:59:60Z",
        b"1969-12-31T23:59:59.9999Z",
        b"2013-01-01T05:00:00",
        b"2013-01-01",
        b"-9223372036854775808",
    ]
)
def test_timestamps(values: list[bytes]) -> None:
    check(values, "timestamp", Origin.TEXT)
    check([b'"' + value + b'"' for value in values], "timestamp", Origin.JSON)


@pytest.mark.parametrize(
    ("type", "text", "in_text", "in_json"),
    [
        ("long", b"12", 12, 12),
        ("long", b"12.0", 12, 12),
        ("long", b"1.2e1", 12, 12),
        ("long", b"0012", 12, None),
        ("long", b"+12", 12, None),
        ("long", b'"12"', None, None),
        ("long", b"12.5", None, None),
        ("long", b"9223372036854775808", None, None),
        ("double", b"1e400", None, None),
        ("double", b"1e-400", 0.0, 0.0),
        ("double", b"NaN", None, None),
        ("boolean", b"True", True, None),
        ("boolean", b"1", None, None),
        ("boolean", b"false", False, False),
        ("timestamp", b"1356998400000", 1356998400000, 1356998400000),
        ("timestamp", b"2013-01-01T00:00:00Z", 1356998400000, None),
        ("timestamp", b'"2013-01-01T00:00:00Z"', None, 1356998400000),
        ("timestamp", b'"1356998400000"', None, None),
        ("string", b"JFK", "JFK", None),
        ("string", b'"JFK"', '"JFK"', "JFK"),
        ("string", b"12", "12", None),
        ("binary", b"\xff", b"\xff", None),
        ("binary", b'"\xff"', b'"\xff"', b"\xff"),
    ],
)
def test_rules(type: str, text: bytes, in_text: Any, in_json: Any) -> None:
    assert plain(column([text], type, Origin.TEXT).array) == [in_text]
    assert plain(column([text], type, Origin.JSON).array) == [in_json]


def test_huge_texts() -> None:
    values: list[bytes | None] = [
        b"1" * 100_000,
        b"0" * 100_000 + b"1",
        b"." * 9,
        b"\xc3\xa9" * 50_000,
        b'"' + b"\\n" * 50_000 + b'"',
    ]
    for type in TYPES:
        for origin in Origin:
            made = column(values, type, origin)
            assert made.count_nulls().get("unparsable", 0) == made.array.null_count


def test_nothing() -> None:
    for type in TYPES:
        assert len(column([], type, Origin.TEXT).array) == 0
        assert column([None, None], type, Origin.JSON).array.null_count == 2


def test_too_much_text_is_refused() -> None:
    buf, size = np.zeros(4, np.uint8), np.full(3, 1 << 30, np.int64)
    with pytest.raises(ValueError, match="ask for fewer rows"):
        gather(buf, np.zeros(3, np.int64), size, "binary")


def test_nulls_are_counted_by_their_reason() -> None:
    buf = np.frombuffer(b"7x\xff", np.uint8)
    size = np.array([1, MISSING, MALFORMED, UNDECODED, 1, 1], np.int64)
    at = np.array([0, 0, 0, 0, 1, 2], np.int64)
    numbers, texts = gather(buf, at, size, "long"), gather(buf, at, size, "string")
    assert numbers.count_nulls() == {"unparsable": 2, "malformed": 1, "undecoded": 1}
    assert texts.count_nulls() == {"not_utf8": 1, "malformed": 1, "undecoded": 1}
    assert texts.count_nulls(np.array([0, 1, 4])) == {}
    assert texts.count_nulls(np.array([5, 2])) == {"not_utf8": 1, "malformed": 1}
    assert plain(texts.array) == ["7", None, None, None, "x", None]


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("timestamp", [1000, None, 5]),
        ("long", [1000, None, 5]),
        ("double", [1000.0, None, 5.0]),
        ("string", ["1000", None, "5"]),
        ("boolean", [None, None, None]),
    ],
)
def test_timestamps_of_records(type: str, expected: list[Any]) -> None:
    times = np.array([1000, NO_TIMESTAMP, 5], np.int64)
    made = read_times(times, type)
    made.array.validate(full=True)
    times[:] = 0  # the slice's memory is used again
    assert plain(made.array) == expected
    assert made.count_nulls() == ({"unparsable": 2} if type == "boolean" else {})


def test_what_cannot_be_read_is_not_filled_from_elsewhere() -> None:
    first = column([b"1", None, b"x"], "long", Origin.TEXT)
    second = column([b"4", b"5", b"6"], "long", Origin.TEXT)
    both = coalesce(first, second)
    assert plain(both.array) == [1, 5, None]
    assert both.count_nulls() == {"unparsable": 1}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_numbers_are_wrapped_as_arrow_would(dtype: type) -> None:
    numbers: AnyArray = np.arange(20, dtype=dtype)[3:]
    assert wrap(numbers).equals(pa.array(numbers))
    for absent in (numbers < 0, numbers % 3 == 0, numbers >= 0):
        assert wrap(numbers, absent).equals(pa.array(numbers, mask=absent))
    assert wrap(numbers[::2]).equals(pa.array(numbers[::2]))
    assert wrap(numbers[:0], numbers[:0] < 0).equals(pa.array(numbers[:0]))
