"""Points in time as users write them: a time with its zone, a date, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from overlay.units import complete_date, parse_duration, parse_time

Moment = str | datetime | timedelta
"""`2026-01-31T12:00:00Z`; `2026-01-31`, its midnight in UTC; `10m`, `2h30m` or `3d`, with or without ` ago`; a datetime with a
zone; a span before now.
"""

_LOOKS_LIKE_A_TIME = re.compile(r"\d{4}-")
_DAYS = re.compile(r"(\d+)d", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = 1_000_000


def parse_moment(moment: Moment, now: int) -> int:
    """Return a moment in ms since 1970, rounded up. `now`: ms since 1970, from which ages count back.
    Raises ValueError for a datetime without a zone, or a text that is neither a time nor an age.

    It is rounded up so that `timestamp >= moment` and `timestamp < moment` keep their meaning for
    timestamps of whole milliseconds.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone. Give it one: moment.replace(tzinfo=UTC)")
        return -((_EPOCH - moment) // timedelta(milliseconds=1))
    if isinstance(moment, timedelta):
        return now + (-moment) // timedelta(milliseconds=1) + bool((-moment) % timedelta(milliseconds=1))
    if _LOOKS_LIKE_A_TIME.match(moment):
        return -(-parse_time(complete_date(moment)) // _MS)
    return -(-(now * _MS - _parse_age(moment)) // _MS)


def _parse_age(text: str) -> int:
    """Return the ns of `3d`, `1d12h` or `10m ago`: a Go duration that may have days.

    Raises ValueError for any other text, also for a negative duration.
    """
    age = text.strip().removesuffix("ago").strip()
    try:
        span = parse_duration(_DAYS.sub(lambda days: f"{int(days[1]) * 24}h", age))
    except ValueError:
        span = -1
    if span < 0:
        raise ValueError(
            f"{text!r} is no point in time. Write RFC 3339 with its zone (2026-01-31T12:00:00Z), or how long ago"
            " (30s, 10m, 2h, 3d)"
        )
    return span
