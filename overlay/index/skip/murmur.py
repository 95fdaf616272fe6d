"""MurmurHash3 x64_128 as a kernel: the same hash as the package mmh3, for very many short texts at
once.

A call of mmh3 takes some 200 ns. That is nothing for a filter's few terms, and too much for a
column of distinct values. Both are used, so both must agree; a test compares them. Source: Austin
Appleby's MurmurHash3.cpp (public domain).
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bytes, Int
from overlay.kernels import kernel

_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_FIVE = np.uint64(5)


@kernel(inline="always")
def _rotate(x: np.uint64, by: Int) -> np.uint64:
    return (x << np.uint64(by)) | (x >> np.uint64(64 - by))


@kernel(inline="always")
def _finish(x: np.uint64) -> np.uint64:
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


@kernel(inline="always")
def _word(buf: Bytes, pos: Int, size: Int) -> np.uint64:
    """Return `size` bytes from `pos`, at most 8, as a little-endian number."""
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(buf[np.uintp(pos + i)]) << np.uint64(8 * i)
    return word


@kernel(inline="always")
def _end(
    h1: np.uint64, h2: np.uint64, first: np.uint64, second: np.uint64, left: Int, size: Int
) -> tuple[np.uint64, np.uint64]:
    """Finish a hash and return its two words. `h1`, `h2`: its state after the whole blocks of 16
    bytes. `first`, `second`: the `left` bytes after them (at most 15), padded with zeros. `size`:
    all bytes.
    """
    if left > 8:
        h2 ^= _rotate(second * _C2, 33) * _C1
    if left > 0:
        h1 ^= _rotate(first * _C1, 31) * _C2
    h1 ^= np.uint64(size)
    h2 ^= np.uint64(size)
    h1 += h2
    h2 += h1
    h1, h2 = _finish(h1), _finish(h2)
    h1 += h2
    return h1, h2 + h1


@kernel
def hash128(buf: Bytes, pos: Int, size: Int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the two words of the MurmurHash3 x64_128 of the `size` bytes buf[pos : pos + size].
    `seed`: below 2**32.
    """
    h1, h2 = seed, seed
    left = size
    while left >= 16:
        h1 ^= _rotate(_word(buf, pos, 8) * _C1, 31) * _C2
        h1 = (_rotate(h1, 27) + h2) * _FIVE + np.uint64(0x52DCE729)
        h2 ^= _rotate(_word(buf, pos + 8, 8) * _C2, 33) * _C1
        h2 = (_rotate(h2, 31) + h1) * _FIVE + np.uint64(0x38495AB5)
        pos += 16
        left -= 16
    first, second = _word(buf, pos, min(left, 8)), _word(buf, pos + 8, left - 8)
    return _end(h1, h2, first, second, left, size)


@kernel
def hash_short(first: np.uint64, second: np.uint64, size: Int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return what hash128 returns for `size` bytes, at most 15, which are passed as two
    little-endian words padded with zeros.
    """
    return _end(seed, seed, first, second, size, size)
