"""Eight bytes at a time: helpers of the kernels that search a byte in a text.

A word is built from single reads that numba can check (NUMBA_BOUNDSCHECK), and that the compiler
turns into one load; its lowest byte is the first. The tests on a word look at all its bytes at
once: `x - 0x01..01 & ~x & 0x80..80` has the top bit set in the first byte of x that is zero (bytes
after it may be marked wrongly, so only the first counts).
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int
from overlay.kernels import kernel

WORD = 8
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_ZEROS = np.uint64(0x3030303030303030)
_TO_TOP = np.uint64(0x7676767676767676)
_ORDINALS = np.uint64(0x0001020304050607)  # byte k from the top is k


@kernel(forceinline=True)
def load(buf: Bytes, pos: Int) -> np.uint64:
    """Return the eight bytes at `pos` as a word whose lowest byte is the first; the caller has made
    sure that they exist.
    """
    at = np.uintp(pos)
    return (
        np.uint64(buf[at])
        | np.uint64(buf[at + np.uintp(1)]) << np.uint64(8)
        | np.uint64(buf[at + np.uintp(2)]) << np.uint64(16)
        | np.uint64(buf[at + np.uintp(3)]) << np.uint64(24)
        | np.uint64(buf[at + np.uintp(4)]) << np.uint64(32)
        | np.uint64(buf[at + np.uintp(5)]) << np.uint64(40)
        | np.uint64(buf[at + np.uintp(6)]) << np.uint64(48)
        | np.uint64(buf[at + np.uintp(7)]) << np.uint64(56)
    )


@kernel(forceinline=True)
def _find_first(tops: np.uint64) -> Int:
    """Return the number, from 0 at the lowest, of the first byte of a word whose top bit is set.
    There is such a byte, and no other bits of the word are set.
    """
    first = (tops & (~tops + np.uint64(1))) >> np.uint64(7)
    return np.int64((first * _ORDINALS) >> np.uint64(56))


@kernel(forceinline=True)
def find_quote(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return the position of the first double quote or backslash from `pos` on; `end` if there is
    none before it.
    """
    while pos + WORD <= end:
        word = load(buf, pos)
        quote = word ^ _QUOTES
        backslash = word ^ _BACKSLASHES
        hit = (((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash)) & _TOPS
        if hit:
            return pos + _find_first(hit)
        pos += WORD
    while pos < end and buf[np.uintp(pos)] != 0x22 and buf[np.uintp(pos)] != 0x5C:
        pos += 1
    return pos


@kernel(forceinline=True)
def skip_digits(buf: Bytes, pos: Int, end: Int) -> Int:
    """Return a position from `pos` on such that all bytes before it are digits. It is the end of the
    digits at `pos`, or, if less than eight bytes are left before `end`, perhaps an earlier position.
    """
    while pos + WORD <= end:
        # 0 to 9 for a digit; then 0x76 more is still below 0x80
        digit = load(buf, pos) ^ _ZEROS
        other = ((digit + _TO_TOP) | digit) & _TOPS
        if other:
            return pos + _find_first(other)
        pos += WORD
    return pos


@kernel
def is_ascii(buf: Bytes, pos: Int, end: Int) -> Bool:
    """Return whether all bytes of pos:end are below 0x80."""
    seen = np.uint64(0)
    while pos + WORD <= end:
        seen |= load(buf, pos)
        pos += WORD
    while pos < end:
        seen |= np.uint64(buf[np.uintp(pos)])
        pos += 1
    return not seen & _TOPS
