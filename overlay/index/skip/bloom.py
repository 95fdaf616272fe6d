"""Bloom filters of terms (terms.py), one per chunk.

What. A filter has m bits, of which each term sets k. A term that was put in is always found.
Another one is found by chance: if a share f of the bits is set, with probability f**k. For n terms
f is 1 - exp(-k n / m). The best k is ln 2 * m / n. Sources: B. H. Bloom, Space/Time Trade-offs in
Hash Coding with Allowable Errors (1970), for the filter; A. Kirsch and M. Mitzenmacher, Less
Hashing, Same Performance (2006), for taking all k positions from two hashes, h1 + i * h2.

Positions. The plain scheme has only m * m / 2 different sets of positions, since everything is
taken modulo m. For RabbitMQ's 16 bytes that would let through a hundred times more than theory
says. So the sum is computed in 64 bits, and position i reads another window of it: rotated by 9 * i
bits, then modulo m.

Sizes are powers of two, 16 bytes to 64 KiB, so that filters can be resized after their terms are
forgotten. The two halves OR-ed are the filter of half the size (fold), since x mod m/2 = (x mod m)
mod m/2. A filter written twice in a row is an equivalent filter of twice the size (tile). So any
two filters can be joined. The price of these sizes is up to twice the smallest size; the extra bits
lower false positives far below the target of 1 %.

`auto` takes the smallest size for 1 %, at most 8 KiB. A filter with more than 50 % false positives
is left out (NONE): it costs room and rules out little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from overlay.arrays import Bytes, Doubles, Flags, Int, Ints
from overlay.kernels import kernel

from .terms import Hashes

MIN_BYTES, MAX_AUTO_BYTES, MAX_BYTES = 16, 8 << 10, 64 << 10
MAX_HASHES = 7
"""The best k at 1 %. A higher k would lower false positives that are rare already, and slow down
every test.
"""
TARGET = 0.01
USELESS = 0.5

_BITS_PER_TERM = -math.log(TARGET) / math.log(2) ** 2


@dataclass(frozen=True, slots=True)
class Bloom:
    """A Bloom filter; `hashes` is k, the bits that each term sets. Without bits it rules nothing
    out.
    """

    bits: bytes
    hashes: int

    @property
    def false_positives(self) -> float:
        """Return the share of terms not in the filter that it reports as present, 0 to 1, by the
        bits that are set; 1 without bits.
        """
        return _measure_fill(np.frombuffer(self.bits, np.uint8)) ** self.hashes if self.bits else 1.0


NONE = Bloom(b"", 0)


def predict(terms: int, size: int, hashes: int) -> float:
    """Return the expected share of false positives, 0 to 1, for this many terms in `size` bytes."""
    return (1 - math.exp(-hashes * terms / (8 * size))) ** hashes


def choose_size(terms: int, size: int | Literal["auto"] = "auto") -> int:
    """Return the size in bytes of a filter for this many terms: a power of two, for "auto" the
    smallest with about 1 % of false positives, within MIN_BYTES to MAX_AUTO_BYTES. If `size` is a
    number of bytes, the result is `size` rounded down to a power of two, and `terms` does not
    count.
    """
    if size == "auto":
        needed = math.ceil(terms * _BITS_PER_TERM / 8)
        return min(max(_round_up(needed), MIN_BYTES), MAX_AUTO_BYTES)
    return 1 << (size.bit_length() - 1)


def choose_hashes(terms: int, size: int) -> int:
    """Return how many bits each term sets (k, 1 to MAX_HASHES), for this many terms in `size`
    bytes.
    """
    return min(max(round(math.log(2) * 8 * size / max(terms, 1)), 1), MAX_HASHES)


def limit_terms(size: int | Literal["auto"]) -> int:
    """Return a number of terms beyond which any filter is so full that it is left out."""
    return 8 * (MAX_AUTO_BYTES if size == "auto" else choose_size(0, size))


def make(hashes: Hashes, size: int | Literal["auto"] = "auto") -> Bloom:
    """Return a new filter that holds these terms, which must be distinct. `size`: of the filter, in
    bytes. NONE if more than half of all absent terms (USELESS) would pass it.
    """
    room = choose_size(len(hashes), size)
    k = choose_hashes(len(hashes), room)
    if predict(len(hashes), room, k) > USELESS:
        return NONE
    bits = np.zeros(room, np.uint8)
    _set_bits(bits, k, hashes)
    return Bloom(bits.tobytes(), k)


def fold(bits: Bytes) -> Bytes:
    """Return a filter of half the size with the same terms, the two halves OR-ed."""
    half = bits.size // 2
    return bits[:half] | bits[half:]


def join(filters: Sequence[Bloom]) -> Bloom:
    """Return a filter with the terms of all; NONE if one of them is NONE. It has the largest size,
    or less if false positives stay rare enough.

    The smaller ones are tiled. If k differs, the smallest is used, since the first positions of a
    filter do not depend on k. Terms that the filters share set the same bits; so see
    `false_positives` of the result for its quality.
    """
    if not all(one.bits for one in filters):
        return NONE
    size = max(len(one.bits) for one in filters)
    bits = np.zeros(size, np.uint8)
    for one in filters:
        bits |= np.tile(np.frombuffer(one.bits, np.uint8), size // len(one.bits))
    k = min(one.hashes for one in filters)
    while bits.size > MIN_BYTES and _measure_fill(smaller := fold(bits)) ** k <= TARGET:
        bits = smaller
    return Bloom(bits.tobytes(), k)


def _round_up(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def _measure_fill(bits: Bytes) -> float:
    """Return the share of bits that are set, 0 to 1."""
    return int(np.bitwise_count(bits).sum()) / (8 * bits.size)


@kernel(inline="always")
def _position(h1: np.uint64, h2: np.uint64, i: Int, mask: np.uint64) -> np.uint64:
    x = h1 + np.uint64(i) * h2
    by = np.uint64(9 * i)
    return ((x >> by) | (x << ((np.uint64(64) - by) & np.uint64(63)))) & mask


@kernel
def _set_bits(bits: Bytes, k: Int, hashes: Hashes) -> None:
    mask = np.uint64(bits.size * 8 - 1)
    for row in range(hashes.shape[0]):
        for i in range(k):
            bit = _position(hashes[row, 0], hashes[row, 1], i, mask)
            bits[bit >> np.uint64(3)] |= np.uint8(1 << (bit & np.uint64(7)))


@kernel
def test(data: Bytes, starts: Ints, ks: Bytes, hashes: Hashes, answer: Flags) -> None:
    """Set answer[i] to False for each filter i that lacks one of the terms. Filters whose answer is
    False already, or that have no bits, are passed over.

    Filter i is data[starts[i] : starts[i + 1]] and has ks[i] hashes.
    """
    for i in range(answer.size):
        size = starts[i + 1] - starts[i]
        if not answer[i] or size == 0:
            continue
        mask = np.uint64(size * 8 - 1)
        for t in range(hashes.shape[0]):
            for j in range(ks[i]):
                bit = _position(hashes[t, 0], hashes[t, 1], j, mask)
                if not (data[np.uint64(starts[i]) + (bit >> np.uint64(3))] >> np.uint8(bit & np.uint64(7))) & 1:
                    answer[i] = False
                    break
            if not answer[i]:
                break


@kernel
def measure(data: Bytes, starts: Ints, ks: Bytes, rows: Ints, answer: Doubles) -> None:
    """Write the share of false positives of filter number rows[i], by the bits that are set, to
    answer[i]. For a filter without bits answer[i] stays as it is.
    """
    for i in range(rows.size):
        first, last = starts[rows[i]], starts[rows[i] + 1]
        if first == last:
            continue
        count = 0
        for j in range(first, last):
            bits = data[j]
            while bits:
                bits &= bits - np.uint8(1)
                count += 1
        answer[i] = (count / (8 * (last - first))) ** ks[rows[i]]


def fold_all(data: Bytes, starts: Ints, size: int) -> int:
    """Fold the filters that have `size` bytes to half, in place, and move the filters behind them
    up; `starts` is adjusted. Return the bytes in use afterwards.
    """
    return int(_fold_all(data, starts, size))


@kernel
def _fold_all(data: Bytes, starts: Ints, size: int) -> int:
    put: int = starts[0]
    first = starts[0]
    half = size // 2
    for i in range(starts.size - 1):
        last = starts[i + 1]
        if last - first == size:
            for j in range(half):
                data[put + j] = data[first + j] | data[first + half + j]
            put += half
        else:
            for j in range(last - first):
                data[put + j] = data[first + j]
            put += last - first
        starts[i + 1] = put
        first = last
    return put
