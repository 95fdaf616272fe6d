"""The double nearest to a decimal number of up to 19 digits, in 128-bit integer arithmetic.

Doubles that a program has computed are spelled with 16 or 17 digits, too many for one exact
multiplication of doubles. Here the digits are multiplied by the 128 leading bits of a power of five
from a table; the powers of two only move the exponent. The product is off by less than one in its
last place. So the nearest double is certain, except in a few cases that can be told by their bits;
those are left to the caller.

Source of the method and of the proof that these bits are enough: D. Lemire, "Number parsing at a
gigabyte per second" (2021), after M. Eisel.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Int, Words
from overlay.kernels import kernel

LEAST, MOST = -342, 308  # beyond these powers of ten, 19 digits make zero or no double at all
# inverse powers of five down to here are rounded up, so that exact products come out exact
_ROUNDED_UP = -27
_LOW = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def _tabulate() -> Words:
    """Return the 128 leading bits of 5^q in two words, the high one first, for q from LEAST to
    MOST: [powers, 2].
    """
    words = []
    for q in range(LEAST, MOST + 1):
        power = 5 ** abs(q)
        size = power.bit_length()
        bits = (1 << (size + 127)) // power + (q >= _ROUNDED_UP) if q < 0 else (power << 128) >> size
        words.append((bits >> 64, bits & ((1 << 64) - 1)))
    return np.array(words, np.uint64)


FIVES = _tabulate()
FIVES.setflags(write=False)


@kernel
def round_decimal(digits: np.uint64, power: Int) -> np.uint64:
    """Return the bits of the double nearest to digits * 10^power, digits a uint64 above 0; 0 if
    this method cannot tell.

    It cannot for subnormal doubles and beyond the largest double.
    """
    if power < LEAST or power > MOST:
        return np.uint64(0)
    # Multiply by the 64 leading bits of the power of five, and by 64 more if these may not be
    # enough.
    shift = _count_leading(digits)
    digits <<= np.uint64(shift)
    high, low = multiply(digits, FIVES[power - LEAST, 0])
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more = multiply(digits, FIVES[power - LEAST, 1])[0]
        low += more
        if low < more:
            high += np.uint64(1)
    # the lower bits of the power could still carry
    if low == _ALL and not -27 <= power <= 55:
        return np.uint64(0)
    top = np.int64(high >> np.uint64(63))
    mantissa = high >> np.uint64(top + 9)
    exponent = ((217706 * power) >> 16) + 63 + top - shift + 1023  # 217706 / 2^16 is log2 of 10
    if exponent <= 0:
        return np.uint64(0)
    halfway = low <= np.uint64(1) and -4 <= power <= 23 and mantissa & np.uint64(3) == np.uint64(1)
    if halfway and mantissa << np.uint64(top + 9) == high:
        mantissa -= np.uint64(1)  # ties go to the even one
    # round to 53 bits
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >> np.uint64(53):
        mantissa >>= np.uint64(1)
        exponent += 1
    if exponent >= 2047:
        return np.uint64(0)
    return (mantissa & np.uint64((1 << 52) - 1)) | np.uint64(exponent) << np.uint64(52)


@kernel
def _count_leading(word: np.uint64) -> Int:
    """Return the number of zero bits above the highest set one."""
    count = 0
    for step in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(64 - step) == np.uint64(0):
            word <<= np.uint64(step)
            count += step
    return count


@kernel
def multiply(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the 128-bit product of two words: (high, low)."""
    half = np.uint64(32)
    a_high, a_low, b_high, b_low = a >> half, a & _LOW, b >> half, b & _LOW
    bottom = a_low * b_low
    one, other = a_high * b_low, a_low * b_high
    middle = (bottom >> half) + (one & _LOW) + (other & _LOW)
    high = a_high * b_high + (one >> half) + (other >> half) + (middle >> half)
    return high, (middle << half) | (bottom & _LOW)
