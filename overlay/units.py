"""Durations, sizes and times as files write them, and the integers that the code uses.

A duration is a Go duration (`1m30s`, `100ms`, `1.5h`) or an integer of nanoseconds, as in
JetStream's JSON; it is kept as nanoseconds. A size is a number of bytes or a text with a binary
unit (`64KiB`). A time is RFC 3339 with a zone and up to nine decimals, kept as nanoseconds since
1970 UTC: datetime cannot hold nanoseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

NANOSECONDS = {"h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
INT64_MAX = (1 << 63) - 1
MAX_TEXT = 256
"""Most characters of a duration, size or time. These texts may come from clients, and a number of a
million digits takes seconds.
"""

_STEP = r"(?:\d+(?:\.\d+)?(?:h|ms|m|s|us|µs|ns))"
_DURATION = re.compile(rf"-?{_STEP}+", re.ASCII)
_STEPS = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>h|ms|m|s|us|µs|ns)", re.ASCII)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>GiB|MiB|KiB|B)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(?P<seconds>\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(value: object) -> int:
    """Return a duration in nanoseconds, which may be negative: of a text like `1m30s` or `100ms`,
    or of an integer, which is in nanoseconds already. A fraction of one is dropped. Raises
    ValueError, also if it does not fit 64 bits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _within_int64(value, "a duration")
    if not isinstance(value, str):
        raise ValueError("a duration is a text like 30s, 1m30s or 100ms, or an integer of nanoseconds")
    _refuse_long(value, "a duration")
    if value == "0":
        return 0
    if not _DURATION.fullmatch(value):
        bare = re.fullmatch(r"-?\d+(\.\d+)?", value, re.ASCII)
        why = f"the unit is missing (write {value}s for seconds)" if bare else "units are h, m, s, ms, us and ns"
        raise ValueError(f"{why}; durations look like 30s, 1m30s or 100ms, or are an integer of nanoseconds")
    total = Decimal(0)
    for step in _STEPS.finditer(value):
        total += Decimal(step["number"]) * NANOSECONDS[step["unit"].replace("µ", "u")]
    return _within_int64(int(-total if value.startswith("-") else total), "a duration")


def format_duration(nanoseconds: int) -> str:
    """Return a text that `parse_duration` reads as exactly this: whole numbers of units, the largest
    unit first, hours being the largest. 90_000_000_000 is `1m30s`, 0 is `0s`, and a negative one
    begins with a minus.
    """
    if nanoseconds == 0:
        return "0s"
    rest, parts = abs(nanoseconds), []
    for unit, length in NANOSECONDS.items():
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if nanoseconds < 0 else "") + "".join(parts)


def parse_size(value: object) -> int:
    """Return a size in bytes: of a text like `1MiB`, `64KiB` or `512`, or of an integer, which is
    in bytes already and may be negative. Raises ValueError, also if it is not a whole number of
    bytes, or does not fit 64 bits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _within_int64(value, "a size")
    if not isinstance(value, str):
        raise ValueError("a size is a text like 1MiB or 64KiB, or an integer of bytes")
    _refuse_long(value, "a size")
    found = _SIZE.fullmatch(value)
    if found is None:
        decimal = re.search(r"[kKmMgG]B?$", value)
        why = "units are B, KiB, MiB and GiB" + (" (1KiB is 1024 bytes)" if decimal else "")
        raise ValueError(f"{why}; sizes look like 1MiB or 64KiB, or are an integer of bytes")
    size = Decimal(found["number"]) * BYTES[found["unit"] or "B"]
    if size != int(size):
        raise ValueError("this is not a whole number of bytes")
    return _within_int64(int(size), "a size")


def parse_time(text: str) -> int:
    """Return the nanoseconds since 1970 UTC of an RFC 3339 text with a zone. They are negative
    before 1970. Raises ValueError.
    """
    _refuse_long(text, "a time")
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("a time is RFC 3339 with its zone, like 2026-01-31T12:00:00Z or 2026-01-31T13:00:00.5+01:00")
    try:
        # In UTC: with its zone, a time near year 1 or 9999 may have no datetime.
        moment = datetime.fromisoformat(found["seconds"].upper() + found["zone"].upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"there is no such time: {error}") from None
    fraction = (found["fraction"] or "").ljust(9, "0")
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000 + int(fraction)


def complete_date(text: str) -> str:
    """Return a date, such as 2026-01-31, as the time of its midnight in UTC; any other text as it is."""
    return f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text


def format_time(nanoseconds: int) -> str:
    """Return an RFC 3339 text in UTC, with as many decimals as needed and none for whole seconds,
    like Go. `nanoseconds`: since 1970 UTC.
    """
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return text + (f".{fraction:09d}".rstrip("0") if fraction else "") + "Z"


def read_int64(digits: str) -> int:
    """Return an integer as JSON spells it: the `parse_int` of json.loads for numbers that come to stand in arrays of
    int64, or in Kafka's requests. JetStream's sequences have 64 bits without a sign: one beyond INT64_MAX counts as
    INT64_MAX, to which no stream comes either. Raises ValueError for other numbers beyond int64.
    """
    _refuse_long(digits, "a number")
    number = int(digits)
    return INT64_MAX if INT64_MAX < number < 1 << 64 else _within_int64(number, "a number")


def _refuse_long(text: str, what: str) -> None:
    if len(text) > MAX_TEXT:
        raise ValueError(f"{what} has at most {MAX_TEXT} characters; this one has {len(text)}")


def _within_int64(value: int, what: str) -> int:
    if abs(value) > INT64_MAX:
        raise ValueError(f"{what} must fit 64 bits: at most {INT64_MAX}")
    return value


def _read_time(value: object) -> int:
    # A parsed config has integers; in a file or in JSON an integer would not say its unit.
    if not isinstance(value, str):
        raise ValueError("a time is RFC 3339 with its zone, like 2026-01-31T12:00:00Z")
    return parse_time(value)


def _texts_or_integer(pattern: str, examples: list[str], unit: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": pattern, "examples": examples}
    return WithJsonSchema({"anyOf": [text, {"type": "integer", "description": unit}]})


Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]
Duration = Annotated[
    int,
    BeforeValidator(parse_duration),
    _texts_or_integer(rf"^(-?{_STEP}+|0)$", ["30s", "1m30s", "100ms"], "nanoseconds"),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    _texts_or_integer(r"^\d+(\.\d+)? ?(GiB|MiB|KiB|B)?$", ["1MiB", "64KiB"], "bytes"),
]
Time = Annotated[int, BeforeValidator(_read_time), WithJsonSchema({"type": "string", "format": "date-time"})]
