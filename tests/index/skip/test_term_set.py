"""Sets of terms against Python's."""

from __future__ import annotations

import mmh3
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip.term_set import TermNumbers, TermSet
from overlay.index.skip.terms import Hashes


def spread(numbers: list[int]) -> Hashes:
    return np.array([mmh3.hash64(b"%d" % number, signed=False) for number in numbers], np.uint64).reshape(-1, 2)


def as_set(hashes: Hashes) -> set[tuple[int, int]]:
    return {(int(h1), int(h2)) for h1, h2 in hashes}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 4000), st.booleans()), max_size=5))
def test_a_set_of_terms(steps: list[tuple[int, int, bool]]) -> None:
    terms, twin = TermSet(1 << 20), set[tuple[int, int]]()
    for first, count, anew in steps:
        if anew:
            terms.clear()
            twin.clear()
        hashes = spread(list(range(first, first + count)))
        terms.add_hashes(hashes)
        twin |= as_set(hashes)
        assert terms.count == len(twin) == len(terms.hashes)
        assert as_set(terms.hashes) == twin


def test_equal_halves_of_hashes_are_no_equal_terms() -> None:
    terms = TermSet(1 << 20)
    terms.add_hashes(np.array([[1, 2], [1, 3], [0, 2], [2, 0], [1, 2]], np.uint64))
    assert as_set(terms.hashes) == {(1, 2), (1, 3), (0, 2), (2, 0)}


def test_slices_are_hashed_where_they_lie() -> None:
    terms = TermSet(1 << 20)
    buf = np.frombuffer(b"abcabc", np.uint8)
    at, size = np.array([0, 3, 1, 4]), np.array([3, 3, -1, 0])
    terms.add_slices(buf, at, size, 7)
    assert as_set(terms.hashes) == {mmh3.hash64(text, 7, signed=False) for text in (b"abc", b"")}


def test_it_stops_at_its_limit() -> None:
    terms = TermSet(100)
    counts = []
    for hashes in (list(range(90)), list(range(6000)), list(range(100_000, 200_000))):
        terms.add_hashes(spread(hashes))
        counts.append((terms.count, terms.is_full))
    assert counts[0] == (90, False)
    assert counts[1] == counts[2]
    assert counts[1][1]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=6), max_size=12), st.data())
def test_numbers_of_terms(groups: list[list[int]], data: st.DataObject) -> None:
    numbers = TermNumbers()
    parts = [numbers.number(spread(group)) for group in groups]
    wanted = data.draw(st.lists(st.integers(0, len(groups) - 1), unique=True)) if groups else []
    starts = np.cumsum([0, *(len(group) for group in groups)])
    terms = TermSet(1 << 20)
    for _ in range(2):
        numbers.put(np.array(wanted, np.int32), starts, np.concatenate([np.empty(0, np.int32), *parts]), terms)
        assert as_set(terms.hashes) == as_set(spread([term for g in wanted for term in groups[g]]))
        assert len(terms.hashes) == len(as_set(terms.hashes))


def test_many_numbers_of_terms() -> None:
    numbers = TermNumbers()
    first = numbers.number(spread(list(range(3000))))
    again = numbers.number(spread(list(range(9000))))
    assert again.tolist() == list(range(9000))
    assert first.tolist() == list(range(3000))
