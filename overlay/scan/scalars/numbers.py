"""Numbers in text: kernels that read long, double and boolean without an object per record.

The grammar is JSON's (RFC 8259, section 6): an optional minus, digits without leading zeros,
optional fraction and exponent. Text that is not JSON (a header, a key) may also begin with a plus
or with zeros. White space, NaN and infinity are not allowed: they have no place in SQL's
comparisons.

A long is a number whose value is an integer from -2^63 to 2^63 - 1, however it is spelled: 12, 12.0
and 1.2e1 are the same, because JSON has one kind of number and many producers write every number
with a point.

A double is the nearest one to the value (ties to even). Up to 2^53 times or divided by a power of
ten up to 10^22 both operands are exact, so one rounding gives the right answer (W. Clinger, "How to
read floating point numbers accurately", 1990). Up to 19 digits rounding.py does it. For the rest,
which is rare, the kernel returns HARD and the caller asks Python's float. A value beyond the
largest double is no double; one that rounds to zero is zero.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int
from overlay.kernels import kernel
from overlay.scan.states import BAD, GOOD, HARD

from .rounding import round_decimal

_POWERS = np.array([float(10**i) for i in range(23)])
_POWERS.setflags(write=False)
_EXACT = 1 << 53
_DIGITS = 19  # as many as always fit a uint64
_FAR = 1 << 40  # an exponent beyond which digits no longer matter


@kernel
def measure(buf: Bytes, pos: Int, end: Int, is_json: Bool) -> tuple[Int, Int, Int, Int]:
    """Check that pos:end is a number. Return (where its digits begin, where the fraction's digits
    begin, where the digits end, the exponent).

    The first is behind the sign; it is -1 if the text is no number. Without a fraction the second
    is the third plus 1, as if a point were there. Without an exponent the last is 0; its absolute
    value is at most _FAR. `is_json`: refuse a plus in front and leading zeros.
    """
    if pos < end and (buf[np.uintp(pos)] == 0x2D or (buf[np.uintp(pos)] == 0x2B and not is_json)):
        pos += 1
    # whole digits, without leading zeros in JSON
    first = pos
    pos = _pass_digits(buf, pos, end)
    whole = pos
    if whole == first or (is_json and buf[np.uintp(first)] == 0x30 and whole > first + 1):
        return np.int64(-1), pos, pos, np.int64(0)
    # fraction: at least one digit after the point
    if pos < end and buf[np.uintp(pos)] == 0x2E:
        pos = _pass_digits(buf, pos + 1, end)
        if pos == whole + 1:
            return np.int64(-1), pos, pos, np.int64(0)
    # exponent: limited to _FAR, so that it cannot overflow
    last = pos
    exponent = np.int64(0)
    if pos < end and (buf[np.uintp(pos)] | 0x20) == 0x65:  # e E
        pos += 1
        minus = pos < end and buf[np.uintp(pos)] == 0x2D
        if minus or (pos < end and buf[np.uintp(pos)] == 0x2B):
            pos += 1
        digits = pos
        while pos < end and 0x30 <= buf[np.uintp(pos)] <= 0x39:
            exponent = min(exponent * 10 + np.int64(buf[np.uintp(pos)]) - 0x30, np.int64(_FAR))
            pos += 1
        if pos == digits:
            return np.int64(-1), pos, pos, np.int64(0)
        exponent = -exponent if minus else exponent
    if pos != end:
        return np.int64(-1), pos, pos, np.int64(0)
    return first, whole + 1, last, exponent


@kernel
def _pass_digits(buf: Bytes, pos: Int, end: Int) -> Int:
    while pos < end and 0x30 <= buf[np.uintp(pos)] <= 0x39:
        pos += 1
    return pos


@kernel
def gather_digits(buf: Bytes, first: Int, fraction: Int, last: Int) -> tuple[np.uint64, Int, Int]:
    """Return the significant digits, without zeros on either side: (their number as uint64, how
    many, power of ten to multiply by).

    The number is right only if there are at most 19 of them. `first`, `fraction`, `last`: as
    `measure` returned them. The exponent that it returned still has to be added to the power.
    """
    value, kept, count, zeros = np.uint64(0), np.uint64(0), 0, 0
    for pos in range(first, last):
        if pos == fraction - 1:
            continue
        digit = np.uint64(buf[np.uintp(pos)]) - np.uint64(0x30)
        if digit == np.uint64(0):
            zeros += 1 if count else 0
            value *= np.uint64(10)
            continue
        count += zeros + 1
        zeros = 0
        value = value * np.uint64(10) + digit
        kept = value
    return kept, count, zeros - max(last - fraction, 0)


@kernel
def read_long(buf: Bytes, pos: Int, end: Int, is_json: Bool) -> tuple[Int, Int]:
    """Read the long that pos:end spells. Return (value, GOOD), or (0, BAD) if it spells none. A
    fraction or exponent is allowed if the value is whole, such as 1.2e1. `is_json`: refuse a plus in
    front and leading zeros.
    """
    first, fraction, last, exponent = measure(buf, pos, end, is_json)
    if first < 0:
        return np.int64(0), BAD
    digits, count, power = gather_digits(buf, first, fraction, last)
    if count == 0:
        return np.int64(0), GOOD
    power += exponent
    if power < 0 or power + count > _DIGITS:
        return np.int64(0), BAD
    for _ in range(power):
        digits *= np.uint64(10)
    minus = buf[np.uintp(pos)] == 0x2D
    if digits > np.uint64((1 << 63) - 1) + np.uint64(minus):
        return np.int64(0), BAD
    return np.int64(-digits if minus else digits), GOOD


@kernel
def read_double(buf: Bytes, pos: Int, end: Int, is_json: Bool) -> tuple[float, Int]:
    """Read the double that pos:end spells. Return (value, GOOD), (0, BAD) if it spells none, or (0,
    HARD) for a legal one that Python has to read. `is_json`: refuse a plus in front and leading
    zeros.
    """
    first, fraction, last, exponent = measure(buf, pos, end, is_json)
    if first < 0:
        return 0.0, BAD
    digits, count, power = gather_digits(buf, first, fraction, last)
    power += exponent
    value = np.float64(digits)
    if count == 0:
        value = np.float64(0)
    elif count > _DIGITS:
        return 0.0, HARD
    elif digits > np.uint64(_EXACT) or power < -22 or power > 22:
        bits = round_decimal(digits, power)
        if bits == np.uint64(0):
            return 0.0, HARD
        value = np.uint64(bits).view(np.float64)
    elif power < 0:
        value /= _POWERS[-power]
    else:
        value *= _POWERS[power]
    return -value if buf[np.uintp(pos)] == 0x2D else value, GOOD


@kernel
def read_boolean(buf: Bytes, pos: Int, end: Int, is_json: Bool) -> tuple[Bool, Int]:
    """Read the boolean that pos:end spells: (value, GOOD), or (False, BAD). 1 and 0 are numbers,
    not booleans.

    Text that is not JSON may be in any case, as Python writes True.
    """
    for word, value in ((b"true", True), (b"false", False)):
        same = end - pos == len(word)
        for i in range(len(word)):
            if same:
                byte = np.int64(buf[np.uintp(pos + i)])
                same = (byte if is_json else byte | 0x20) == np.int64(word[i])
        if same:
            return value, GOOD
    return False, BAD
