"""Headers as Hypothesis makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from overlay.index.skip import bloom
from overlay.index.skip.bloom import Bloom
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.terms import Term, as_hashes
from overlay.index.skip.zones import TYPES, Bounds

uint32 = st.integers(0, (1 << 32) - 1)
subjects = st.lists(st.sampled_from(["a", "b", "größe", "x.y"]), min_size=1, max_size=4).map(".".join)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "timestamp": st.integers(0, 1 << 45),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.integers(0, (1 << 128) - 1),
}


def ask_bloom(one: Bloom, term: Term) -> bool:
    """Whether a filter says that the term may have been put in."""
    starts, answer = np.array([0, len(one.bits)], np.int64), np.ones(1, np.bool_)
    bloom.test(np.frombuffer(one.bits, np.uint8), starts, np.array([one.hashes], np.uint8), as_hashes(term), answer)
    return bool(answer[0])


@st.composite
def any_bounds(draw: st.DrawFn, type: str | None = None) -> Bounds:
    chosen = type or draw(st.sampled_from(TYPES))
    values = sorted(draw(st.lists(_VALUES[chosen], max_size=2)))
    return Bounds(chosen, min(values, default=None), max(values, default=None), draw(st.booleans()))


@st.composite
def any_blooms(draw: st.DrawFn, count: int = 40) -> Bloom:
    numbers = draw(st.lists(st.integers(0, 200), max_size=count, unique=True))
    hashes = np.array([(n * 0x9E3779B97F4A7C15 % (1 << 64), n + 1) for n in numbers], np.uint64).reshape(-1, 2)
    return bloom.make(hashes, draw(st.sampled_from(["auto", 16, 64])))


@st.composite
def any_headers(draw: st.DrawFn, first_offset: int | None = None) -> Header:
    first = draw(st.integers(0, 1 << 40)) if first_offset is None else first_offset
    counts = draw(st.dictionaries(subjects, st.integers(1, 70_000), max_size=5))
    addressed = sum(counts.values())
    times = sorted(draw(st.lists(st.integers(0, 1 << 45), min_size=2, max_size=2)))
    return Header(
        draw(st.sampled_from(["t", "flights", "a.b-c_d"])),
        draw(st.integers(0, 9)),
        first,
        first + draw(st.integers(1, 1 << 20)),
        addressed + draw(st.integers(0, 5)),
        addressed,
        draw(st.integers(0, 1 << 31)),
        *draw(st.sampled_from([(-1, -1), (times[0], times[1])])),
        draw(st.integers(-1, 100)),
        draw(st.just(-1) | uint32),
        draw(st.booleans()),
        draw(uint32),
        tuple(sorted(draw(st.sets(uint32, max_size=3)))),
        draw(any_blooms() | st.just(bloom.NONE)),
        draw(st.sampled_from([None, counts])),
        draw(st.dictionaries(uint32, any_bounds(), max_size=3)),
    )
