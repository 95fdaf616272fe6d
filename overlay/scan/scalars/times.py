"""Timestamps in text: milliseconds since 1970 as a number, or a date and time of RFC 3339.

A number follows the rule of a long (numbers.py). A date and time must have its offset from UTC, `Z`
or like `+01:00`: without one it is a different instant for each reader. Fractions of a second may
have any number of digits; anything finer than a millisecond is cut off towards the past. Years are
0000 to 9999 of the Gregorian calendar, `T` may be a blank, as the RFC allows, letters may be small.
A leap second (`:60`) is no timestamp here, as milliseconds since 1970 have no number for it.

In JSON a number is a JSON number and a date and time a JSON string without escapes.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int
from overlay.kernels import kernel
from overlay.scan.states import BAD, GOOD

from .numbers import read_long

_SHORTEST = 20  # 2013-01-01T05:00:00Z
_DAY = 86_400_000
_TO_1970 = 719_468  # days from 0000-03-01 to 1970-01-01


@kernel
def read_timestamp(buf: Bytes, pos: Int, end: Int, is_json: Bool) -> tuple[Int, Int]:
    """Read the timestamp that pos:end spells: a date and time of RFC 3339, or a whole number of ms.
    Return (ms since 1970, GOOD), or (0, BAD) if it spells none. `is_json`: a date and time has to be
    in double quotes, and a number must not.
    """
    if is_json:
        if end - pos < 2 or buf[np.uintp(pos)] != 0x22 or buf[np.uintp(end - 1)] != 0x22:
            return read_long(buf, pos, end, True)
        return _read_time(buf, pos + 1, end - 1)
    if end - pos >= _SHORTEST and buf[np.uintp(pos + 4)] == 0x2D:
        return _read_time(buf, pos, end)
    return read_long(buf, pos, end, False)


@kernel
def _read_time(buf: Bytes, pos: Int, end: Int) -> tuple[Int, Int]:
    if end - pos < _SHORTEST or not _has_separators(buf, pos):
        return np.int64(0), BAD
    year = _pair(buf, pos) * 100 + _pair(buf, pos + 2)
    month, day = _pair(buf, pos + 5), _pair(buf, pos + 8)
    hour, minute, second = _pair(buf, pos + 11), _pair(buf, pos + 14), _pair(buf, pos + 17)
    milliseconds, pos = _read_fraction(buf, pos + 19, end)
    offset = _read_offset(buf, pos, end)
    if min(year, month, day, hour, minute, second, milliseconds) < 0 or offset == BAD_OFFSET:
        return np.int64(0), BAD
    if not (1 <= month <= 12 and 1 <= day <= _month_days(year, month) and hour < 24 and minute < 60 and second < 60):
        return np.int64(0), BAD
    minutes = hour * 60 + minute - offset
    return _count_days(year, month, day) * _DAY + (minutes * 60 + second) * 1000 + milliseconds, GOOD


@kernel
def _has_separators(buf: Bytes, pos: Int) -> Bool:
    between = buf[np.uintp(pos + 10)]
    return bool(
        buf[np.uintp(pos + 4)] == 0x2D
        and buf[np.uintp(pos + 7)] == 0x2D
        and ((between | 0x20) == 0x74 or between == 0x20)  # T t blank
        and buf[np.uintp(pos + 13)] == 0x3A
        and buf[np.uintp(pos + 16)] == 0x3A
    )


@kernel
def _pair(buf: Bytes, pos: Int) -> Int:
    """Return the number of two digits, or a number below -9,999 for anything else."""
    tens, ones = np.int64(buf[np.uintp(pos)]) - 0x30, np.int64(buf[np.uintp(pos + 1)]) - 0x30
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return np.int64(-100_000)
    return tens * 10 + ones


@kernel
def _read_fraction(buf: Bytes, pos: Int, end: Int) -> tuple[Int, Int]:
    """Read the fraction of a second at `pos`. Return (milliseconds, position after it): (0, pos) if
    there is no point, -1 milliseconds for a point without digits.
    """
    if pos >= end or buf[np.uintp(pos)] != 0x2E:
        return np.int64(0), pos
    first = pos + 1
    pos = first
    weight, milliseconds = np.int64(100), np.int64(0)
    while pos < end and 0x30 <= buf[np.uintp(pos)] <= 0x39:
        milliseconds += weight * (np.int64(buf[np.uintp(pos)]) - 0x30)
        weight //= 10
        pos += 1
    return milliseconds if pos > first else np.int64(-1), pos


BAD_OFFSET = 1 << 30


@kernel
def _read_offset(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the offset from UTC that pos:end spells (`Z` or like `+01:00`) in minutes, positive
    ahead of UTC; BAD_OFFSET if it spells none.
    """
    if end - pos == 1 and (buf[np.uintp(pos)] | 0x20) == 0x7A:  # z
        return np.int64(0)
    if end - pos != 6 or buf[np.uintp(pos + 3)] != 0x3A:
        return np.int64(BAD_OFFSET)
    hours, minutes = _pair(buf, pos + 1), _pair(buf, pos + 4)
    sign = buf[np.uintp(pos)]
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59 or (sign != 0x2B and sign != 0x2D):
        return np.int64(BAD_OFFSET)
    return -(hours * 60 + minutes) if sign == 0x2D else hours * 60 + minutes


@kernel
def _month_days(year: Int, month: Int) -> Int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@kernel
def _count_days(year: Int, month: Int, day: Int) -> Int:
    """Return the days since 1970-01-01. Inside, years are counted from March, so that a leap day
    is the last of its year.
    """
    late = month <= 2
    year -= late
    month_day = (153 * (month + (9 if late else -3)) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + month_day - _TO_1970
