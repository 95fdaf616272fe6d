from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.units import INT64_MAX, format_duration, format_time, parse_duration, parse_size, parse_time


@given(st.integers(-INT64_MAX, INT64_MAX))
def test_durations_round_trip(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds
    assert parse_duration(nanoseconds) == nanoseconds


@given(
    st.integers(0, INT64_MAX >> 30), st.sampled_from([("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)])
)
def test_sizes_are_counted_in_bytes(number: int, unit: tuple[str, int]) -> None:
    name, size = unit
    assert parse_size(f"{number}{name}") == number * size


@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 999))
def test_times_round_trip(moment: datetime, nanoseconds: int) -> None:
    text = moment.replace(microsecond=0).strftime("%m-%dT%H:%M:%S")
    written = f"{moment.year:04d}-{text}.{moment.microsecond:06d}{nanoseconds:03d}Z"
    assert parse_time(format_time(parse_time(written))) == parse_time(written)
    assert parse_time(written) % 1000 == nanoseconds


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("30s", 30_000_000_000),
        ("1m30s", 90_000_000_000),
        ("100ms", 100_000_000),
        ("1.5h", 5_400_000_000_000),
        ("5us", 5_000),
        ("5µs", 5_000),
        ("7ns", 7),
        ("-2s", -2_000_000_000),
        ("0", 0),
    ],
)
def test_durations_are_gos(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("30", "the unit is missing (write 30s for seconds)"),
        ("30 s", "units are h, m, s"),
        ("1d", "units are h, m, s"),
        ("", "units are h, m, s"),
        ("s", "units are h, m, s"),
        (1.5, "30s, 1m30s or 100ms"),
        (True, "30s, 1m30s or 100ms"),
        (None, "30s, 1m30s or 100ms"),
        (INT64_MAX + 1, "64 bits"),
        ("99999999h", "64 bits"),
    ],
)
def test_bad_durations_say_why(value: object, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_duration(value)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1MiB", 1 << 20), ("64KiB", 65536), ("16", 16), ("16B", 16), ("1.5KiB", 1536), ("2 GiB", 2 << 30)],
)
def test_sizes_have_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "why"),
    [("1MB", "1KiB is 1024"), ("1.3B", "whole number"), ("-1KiB", "units are B"), (2.0, "an integer of bytes")],
)
def test_bad_sizes_say_why(value: object, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(value)
    assert why in str(caught.value)


def test_times_keep_nanoseconds_and_turn_to_utc() -> None:
    assert parse_time("1970-01-01T00:00:01.000000002Z") == 1_000_000_002
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
    assert format_time(parse_time("0001-01-01T00:00:00Z")) == "0001-01-01T00:00:00Z"


BEYOND = ["9999-12-31T23:59:59-01:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+01:00"]
"""Times whose year in UTC has more than four digits, or is none."""


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z", "soon", "", *BEYOND])
def test_bad_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)
