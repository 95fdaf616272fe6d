"""Values as JSON text: kernels that write numbers, booleans and strings for the readers of JSON.

A double is written with as few digits as give the same double when they are read (numbers.py). Most
doubles in data are decimals of a few digits: a power of ten makes a whole number of them, and one
division shows that it is the right one. For the rest 17 digits are computed in 128-bit arithmetic.
They and shorter ones are read back by rounding.py, so that only digits which were seen to be right
are written. What cannot be decided so, such as subnormal doubles, is left to Python.

Each kernel writes at `at` and returns the position after the text. The caller has made sure of room:
MOST bytes for a number, twice the bytes and two for a string.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan.words import find_quote

from .rounding import FIVES, LEAST, multiply, round_decimal
from .rounding import MOST as MOST_POWER

MOST: Final = 28
"""Most bytes of a number's text, for decimals with a scale of up to four digits."""
UNDECIDED: Final = -1
"""Returned in place of a position: Python has to spell the double."""
LEFT: Final = -8
"""In place of a text's size or the position after it: a double that Python has to spell. Its eight
bytes are where the text begins, and MOST bytes are kept for that.
"""

_TENS = np.array([10**i for i in range(20)], np.uint64)
_TENS.setflags(write=False)
_POWERS = np.array([float(10**i) for i in range(23)])
_POWERS.setflags(write=False)
_WORDS = np.frombuffer(b"falsetrue", np.uint8)
_SHORT = 9
"""Most digits after the point of what counts as a decimal of a few digits."""
_EXACT = 9007199254740992.0  # 2^53
_INFINITE = np.uint64(0x7FF)
_MANTISSA = np.uint64((1 << 52) - 1)
_IMPLIED = np.uint64(1 << 52)
_LEAST_PLAIN, _MOST_PLAIN = -5, 18
"""Exponents of a first digit between which no exponent is written."""


@kernel
def write_long(value: Int, buf: Bytes, at: Int) -> Int:
    """Write a long as decimal digits to `buf` from `at` on, and return the position after them."""
    minus = value < 0
    # in two steps, since the least long has no negation
    digits = np.uint64(-(value + 1)) + np.uint64(1) if minus else np.uint64(value)
    return write_decimal(minus, digits, 0, buf, at)


@kernel
def write_decimal(minus: Bool, digits: np.uint64, power: Int, buf: Bytes, at: Int) -> Int:
    """Write digits * 10^power, or its negation if `minus`, to `buf` from `at` on, and return the
    position after it. Zeros at the end of the digits are written as well. A very small or very
    large number gets an exponent.
    """
    if minus:
        buf[np.uintp(at)] = 0x2D
        at += 1
    count = _count_digits(digits)
    lead = power + count - 1
    if power == 0 or digits == np.uint64(0):
        return _put(digits, count, buf, at)
    if not _LEAST_PLAIN <= lead <= _MOST_PLAIN:
        return _write_exponent(digits, count, lead, buf, at)
    if power > 0:
        return _put_zeros(power, buf, _put(digits, count, buf, at))
    if lead < 0:
        buf[np.uintp(at)] = 0x30
        buf[np.uintp(at + 1)] = 0x2E
        return _put(digits, count, buf, _put_zeros(-lead - 1, buf, at + 2))
    unit = _TENS[-power]
    at = _put(digits // unit, lead + 1, buf, at)
    buf[np.uintp(at)] = 0x2E
    return _put(digits % unit, -power, buf, at + 1)


@kernel
def _write_exponent(digits: np.uint64, count: Int, lead: Int, buf: Bytes, at: Int) -> Int:
    unit = _TENS[count - 1]
    at = _put(digits // unit, np.int64(1), buf, at)
    if count > 1:
        buf[np.uintp(at)] = 0x2E
        at = _put(digits % unit, count - 1, buf, at + 1)
    buf[np.uintp(at)] = 0x65  # e
    at += 1
    if lead < 0:
        buf[np.uintp(at)] = 0x2D
        at += 1
    exponent = np.uint64(-lead if lead < 0 else lead)
    return _put(exponent, _count_digits(exponent), buf, at)


@kernel
def _count_digits(number: np.uint64) -> Int:
    """Return how many digits a number has; 1 for zero."""
    count = np.int64(1)
    while count < 20 and number >= _TENS[count]:
        count += 1
    return count


@kernel
def _put(number: np.uint64, count: Int, buf: Bytes, at: Int) -> Int:
    """Write the last `count` digits of a number to `buf` from `at` on, with zeros in front if it
    has fewer. Return the position after them.
    """
    for i in range(count - 1, -1, -1):
        rest = number // np.uint64(10)
        buf[np.uintp(at + i)] = np.uint8(number - rest * np.uint64(10)) + np.uint8(0x30)
        number = rest
    return at + count


@kernel
def _put_zeros(count: Int, buf: Bytes, at: Int) -> Int:
    for i in range(count):
        buf[np.uintp(at + i)] = 0x30
    return at + count


@kernel
def write_nan(buf: Bytes, at: Int) -> Int:
    """Write `NaN`, from which no property type can be read, to `buf` from `at` on, and return the
    position after it.
    """
    buf[np.uintp(at)] = 0x4E
    buf[np.uintp(at + 1)] = 0x61
    buf[np.uintp(at + 2)] = 0x4E
    return at + 3


@kernel
def write_double(bits: np.uint64, buf: Bytes, at: Int) -> Int:
    """Write the double that these bits are, or `NaN` for one that is not finite, to `buf` from `at`
    on, and return the position after it. UNDECIDED if Python has to write the double.
    """
    exponent = np.int64((bits >> np.uint64(52)) & _INFINITE)
    minus = bits >> np.uint64(63) != np.uint64(0)
    if exponent == 0x7FF:
        return write_nan(buf, at)
    bits &= np.uint64((1 << 63) - 1)
    value = np.uint64(bits).view(np.float64)
    # a decimal of a few digits: most doubles of most data
    for places in range(_SHORT + 1):
        scaled = value * _POWERS[places]
        if scaled >= _EXACT:
            break
        whole = np.floor(scaled + 0.5)
        if whole / _POWERS[places] == value:
            return write_decimal(minus, np.uint64(whole), -places, buf, at)
    if exponent == 0:
        return np.int64(UNDECIDED)
    digits, power = _find_digits((bits & _MANTISSA) | _IMPLIED, exponent - 1075, bits)
    if digits == np.uint64(0):
        return np.int64(UNDECIDED)
    return write_decimal(minus, digits, power, buf, at)


@kernel
def _find_digits(mantissa: np.uint64, exponent: Int, bits: np.uint64) -> tuple[np.uint64, Int]:
    """Return the shortest digits and the power of ten that stand for mantissa * 2^exponent, the
    double of these bits. (0, 0) if that cannot be decided.
    """
    # 78913 / 2^18 is a little less than the logarithm of 2; the first digit is here or one further
    power = ((exponent + 52) * 78913 >> 18) - 16
    digits = _scale(mantissa, exponent, -power)
    if digits >= _TENS[17]:
        power += 1
        digits = _scale(mantissa, exponent, -power)
    if digits == np.uint64(0) or round_decimal(digits, power) != bits:
        return np.uint64(0), np.int64(0)
    # 16 and 15 digits, if they are enough; what needs fewer ends in zeros then. The 17 digits are
    # rounded already, so a 5 at their end may have to be rounded down
    shorter = (digits + np.uint64(5)) // np.uint64(10)
    if round_decimal(shorter, power + 1) != bits:
        shorter = digits // np.uint64(10)
        if round_decimal(shorter, power + 1) != bits:
            return digits, np.int64(power)
    shortest = (digits + np.uint64(50)) // np.uint64(100)
    if round_decimal(shortest, power + 2) != bits:
        return shorter, np.int64(power + 1)
    power += 2
    while shortest % np.uint64(10) == np.uint64(0):
        shortest //= np.uint64(10)
        power += 1
    return shortest, np.int64(power)


@kernel
def _scale(mantissa: np.uint64, exponent: Int, power: Int) -> np.uint64:
    """Return mantissa * 2^exponent * 10^power, rounded to a whole number of 17 digits or so; 0 if
    the power is not in the table. The mantissa has 53 bits.
    """
    if power < LEAST or power > MOST_POWER:
        return np.uint64(0)
    high, _ = multiply(mantissa << np.uint64(11), FIVES[power - LEAST, 0])
    # the leading bit of 5^power has the weight 2^(log2(10^power) - power)
    weight = ((217706 * power) >> 16) - power
    shift = np.uint64(-(exponent + weight + power - 10))
    return (high + (np.uint64(1) << (shift - np.uint64(1)))) >> shift


@kernel
def write_real(buf: Bytes, pos: Int, width: Int, at: Int) -> Int:
    """Write the float or double whose `width` bytes (4 or 8) begin at `pos`, least significant
    first, to `buf` from `at` on. Return the position after the text; or LEFT if Python has to write
    it, with the eight bytes of the double at `at`.
    """
    bits = np.uint64(0)
    for i in range(width):
        bits |= np.uint64(buf[np.uintp(pos + i)]) << np.uint64(8 * i)
    if width == 4:
        bits = np.float64(np.uint32(bits).view(np.float32)).view(np.uint64)
    after = write_double(bits, buf, at)
    if after != UNDECIDED:
        return after
    for i in range(8):
        buf[np.uintp(at + i)] = np.uint8((bits >> np.uint64(8 * i)) & np.uint64(0xFF))
    return np.int64(LEFT)


def spell_left(buf: Bytes, at: Ints, size: Ints, slots: Ints, low: int, high: int) -> None:
    """Write the doubles that kernels have left to Python: those with the size LEFT in the rows
    `slots` of the records low:high. Each text replaces the double's eight bytes at its place `at`
    in `buf`, and its bytes are written to `size`.
    """
    for slot in slots.tolist():
        rows = low + np.flatnonzero(size[slot, low:high] == LEFT)
        if not rows.size:
            continue
        # at once and each double once: a producer decides how many there are
        places = at[slot, rows][:, None]
        bits, which = np.unique(buf[places + np.arange(8)].view(np.uint64), return_inverse=True)
        texts = [repr(double).encode() for double in bits.view(np.float64).tolist()]
        # S pads with zeros, for which MOST bytes are kept as well
        table = np.array(texts, f"S{MOST}").view(np.uint8).reshape(-1, MOST)
        which = which.ravel()
        buf[places + np.arange(MOST)] = table[which]
        size[slot, rows] = np.array([len(text) for text in texts])[which]


@kernel
def write_boolean(truth: Int, buf: Bytes, at: Int) -> Int:
    """Write `true` or `false` to `buf` from `at` on, and return the position after it. `truth`: 1
    or 0.
    """
    first = 5 * truth
    for i in range(5 - truth):
        buf[np.uintp(at + i)] = _WORDS[first + i]
    return at + 5 - truth


@kernel
def write_text(buf: Bytes, pos: Int, stop: Int, at: Int) -> Int:
    """Write the bytes pos:stop of `buf` as a string in quotes to `buf` from `at` on, and return the
    position after it. Quotes and backslashes are escaped, all other bytes stay as they are.
    """
    buf[np.uintp(at)] = 0x22
    at += 1
    while True:
        quote = find_quote(buf, pos, stop)
        for i in range(quote - pos):
            buf[np.uintp(at + i)] = buf[np.uintp(pos + i)]
        at += quote - pos
        if quote >= stop:
            break
        buf[np.uintp(at)] = 0x5C
        buf[np.uintp(at + 1)] = buf[np.uintp(quote)]
        at += 2
        pos = quote + 1
    buf[np.uintp(at)] = 0x22
    return at + 1
