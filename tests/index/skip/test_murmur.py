"""The kernel against the package mmh3."""

from __future__ import annotations

import mmh3
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip.murmur import hash128, hash_short


@settings(deadline=None)
@given(st.binary(max_size=70), st.integers(0, (1 << 32) - 1), st.integers(0, 5))
def test_it_is_what_mmh3_computes(data: bytes, seed: int, before: int) -> None:
    buf = np.frombuffer(b"x" * before + data + b"yy", np.uint8)
    h1, h2 = hash128(buf, before, len(data), np.uint64(seed))
    assert (int(h1), int(h2)) == mmh3.hash64(data, seed, signed=False)


@settings(deadline=None)
@given(st.binary(max_size=15), st.integers(0, (1 << 32) - 1))
def test_short_texts_are_hashed_from_words(data: bytes, seed: int) -> None:
    first, second = np.frombuffer(data.ljust(16, b"\0"), np.uint64)
    h1, h2 = hash_short(first, second, len(data), np.uint64(seed))
    assert (int(h1), int(h2)) == mmh3.hash64(data, seed, signed=False)
