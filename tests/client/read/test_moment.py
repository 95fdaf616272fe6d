"""Points in time against datetime's own arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.moment import parse_moment

NOW = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def to_ms(span: timedelta) -> Fraction:
    return Fraction(span // timedelta(microseconds=1), 1000)


@given(st.datetimes(timezones=ZONES).filter(lambda time: 1900 < time.year < 2200))
def test_times_are_rounded_up(time: datetime) -> None:
    expected = ceil(to_ms(time - EPOCH))
    assert parse_moment(time, NOW) == expected
    assert parse_moment(time.isoformat(), NOW) == expected


@given(st.timedeltas(timedelta(0), timedelta(days=3000)))
def test_ages(age: timedelta) -> None:
    assert parse_moment(age, NOW) == ceil(NOW - to_ms(age))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("2h ago", 7200),
        ("3d", 259_200),
        ("1d12h", 129_600),
        (" 1h30m ", 5400),
        ("0s", 0),
        ("250ms", 0.25),
    ],
)
def test_spans_before_now(text: str, seconds: float) -> None:
    assert parse_moment(text, NOW) == NOW - int(seconds * 1000)


@pytest.mark.parametrize("text", ["", "yesterday", "10", "-5m", "2013-01", "2013-01-01T00:00:00"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_moment(text, NOW)


def test_a_datetime_without_a_zone() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        parse_moment(datetime(2013, 1, 1), NOW)  # noqa: DTZ001


def test_a_date_is_its_midnight_in_utc() -> None:
    assert parse_moment("2026-11-25", NOW) == parse_moment("2026-11-25T00:00:00Z", NOW)
    with pytest.raises(ValueError, match="there is no such time"):
        parse_moment("2026-02-30", NOW)
