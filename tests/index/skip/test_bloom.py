"""Bloom filters against Python sets: nothing lost, and no more found by chance than theory says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.skip import bloom
from overlay.index.skip.bloom import Bloom
from overlay.index.skip.terms import Hashes, Term
from tests.index.headers import ask_bloom
from tests.oracle.chunks import make_bloom, may_hold

words = st.integers(0, (1 << 64) - 1)
terms = st.builds(lambda h1, h2: Term(h1, h2, ""), words, words)
sizes = st.sampled_from([16, 17, 100, 256, 1000, 8192])


def as_array(found: list[Term]) -> Hashes:
    return np.array([(term.h1, term.h2) for term in found], np.uint64).reshape(-1, 2)


def draw_hashes(count: int, seed: int) -> Hashes:
    return np.random.default_rng(seed).integers(0, 1 << 64, (count, 2), np.uint64)


def measure(one: Bloom, hashes: Hashes) -> float:
    """The share of terms that are found."""
    starts, ks = np.array([0, len(one.bits)]), np.array([one.hashes], np.uint8)
    data, found = np.frombuffer(one.bits, np.uint8), 0
    for row in range(len(hashes)):
        answer = np.ones(1, np.bool_)
        bloom.test(data, starts, ks, hashes[row : row + 1], answer)
        found += bool(answer[0])
    return found / len(hashes)


@settings(max_examples=60, deadline=None)
@given(st.lists(terms, max_size=60, unique=True), st.lists(terms, max_size=5), sizes | st.none())
def test_a_filter_is_its_twin(put: list[Term], others: list[Term], size: int | None) -> None:
    made = bloom.make(as_array(put), size or "auto")
    assert (made.bits, made.hashes) == make_bloom(put, size)
    assert all(ask_bloom(made, term) for term in put)
    assert [ask_bloom(made, term) for term in others] == [may_hold(made.bits, made.hashes, term) for term in others]


@pytest.mark.parametrize(
    ("count", "size"), [(6, "auto"), (12, "auto"), (100, "auto"), (850, "auto"), (6800, "auto"), (100, 64)]
)
def test_false_positives_are_those_of_theory(count: int, size: int | str) -> None:
    """Of several filters, since small ones differ from each other; where theory says next to nothing, so do we."""
    rounds = 40 if count < 20 else 4
    share, theory, told = 0.0, 0.0, 0.0
    for seed in range(rounds):
        made = bloom.make(draw_hashes(count, seed), size)  # type: ignore[arg-type]
        share += measure(made, draw_hashes(24_000 // rounds * 4, 1000 + seed)) / rounds
        theory += bloom.predict(count, len(made.bits), made.hashes) / rounds
        told += made.false_positives / rounds
    assert share <= 1.3 * theory + 1e-4
    assert share == pytest.approx(told, rel=0.3, abs=1e-4)
    assert theory <= 0.011 or size == 64


def test_small_filters_beat_plain_double_hashing() -> None:
    """What the windows of the sum are for: taken modulo m at once, 128 bits let through much more than theory says."""

    def plain(h1: int, h2: int) -> frozenset[int]:
        return frozenset((h1 + i * h2) % 128 for i in range(7))

    wrong, ours, rounds = 0, 0.0, 30
    for seed in range(rounds):
        put, asked = draw_hashes(4, seed), draw_hashes(4000, 500 + seed)
        bits = frozenset().union(*(plain(int(h1), int(h2)) for h1, h2 in put))
        wrong += sum(plain(int(h1), int(h2)) <= bits for h1, h2 in asked)
        ours += measure(bloom.make(put), asked)
    theory = bloom.predict(4, 16, 7)
    assert wrong / (rounds * 4000) > 20 * theory
    assert ours / rounds < 20 * theory


def test_sizes() -> None:
    assert [bloom.choose_size(n) for n in (0, 13, 14, 26, 27, 6836, 6838, 10**6)] == [
        16,
        16,
        32,
        32,
        64,
        8192,
        8192,
        8192,
    ]
    assert bloom.choose_size(5, 1000) == 512
    assert bloom.choose_size(5, 64 << 10) == 64 << 10
    assert all(bloom.predict(n, bloom.choose_size(n), 7) <= 0.0101 for n in range(1, 6800, 97))


def test_a_filter_that_says_nothing_is_left_out() -> None:
    assert bloom.make(draw_hashes(1000, 1), 16) == bloom.NONE
    assert bloom.make(draw_hashes(80, 1), 16) != bloom.NONE
    assert bloom.make(draw_hashes(bloom.limit_terms(16), 1), 16) == bloom.NONE
    assert ask_bloom(bloom.NONE, Term(1, 2, ""))
    assert bloom.NONE.false_positives == 1
    empty = bloom.make(draw_hashes(0, 1))
    assert len(empty.bits) == 16
    assert not ask_bloom(empty, Term(1, 2, ""))


@settings(deadline=None)
@given(st.lists(st.lists(terms, max_size=30), min_size=1, max_size=4), st.lists(terms, max_size=5))
def test_joined_filters_hold_what_each_of_them_held(groups: list[list[Term]], others: list[Term]) -> None:
    filters = [bloom.make(as_array(group)) for group in groups]
    joined = bloom.join(filters)
    assert all(ask_bloom(joined, term) for group in groups for term in group)
    assert len(joined.bits) <= max(len(one.bits) for one in filters)
    for term in others:
        if any(ask_bloom(one, term) for one in filters):
            assert ask_bloom(joined, term)


def test_filters_of_the_same_terms_join_without_a_loss() -> None:
    one = bloom.make(draw_hashes(850, 1))
    assert bloom.join((one, one)) == one
    assert bloom.join((one, bloom.NONE)) == bloom.NONE
    other = bloom.make(draw_hashes(850, 2))
    assert bloom.join((one, other)).false_positives > 5 * one.false_positives


@settings(deadline=None)
@given(st.lists(terms, min_size=1, max_size=100))
def test_a_folded_filter_is_that_of_half_the_size(put: list[Term]) -> None:
    made = bloom.make(as_array(put), 256)
    half = bloom.fold(np.frombuffer(made.bits, np.uint8)).tobytes()
    assert all(may_hold(half, made.hashes, term) for term in put)
    if made.hashes == bloom.choose_hashes(len(put), 128):
        assert half == bloom.make(as_array(put), 128).bits


def test_filters_are_folded_where_they_lie() -> None:
    filters = [bloom.make(draw_hashes(n, n)) for n in (10, 300, 60, 300, 5)]
    data = np.frombuffer(b"".join(one.bits for one in filters), np.uint8).copy()
    starts = np.cumsum([0, *(len(one.bits) for one in filters)])
    used = bloom.fold_all(data, starts, len(filters[1].bits))
    expected = [
        bloom.fold(np.frombuffer(one.bits, np.uint8)).tobytes() if len(one.bits) == len(filters[1].bits) else one.bits
        for one in filters
    ]
    assert data[:used].tobytes() == b"".join(expected)
    assert starts.tolist() == [0, *np.cumsum([len(one) for one in expected]).tolist()]


def test_terms_are_tested_in_many_filters_at_once() -> None:
    filters = [bloom.make(draw_hashes(n, n)) for n in (1, 40, 0, 900, 3)] + [bloom.NONE]
    data = np.frombuffer(b"".join(one.bits for one in filters), np.uint8)
    starts = np.cumsum([0, *(len(one.bits) for one in filters)])
    ks = np.array([one.hashes for one in filters], np.uint8)
    asked = np.concatenate([draw_hashes(2, 900), draw_hashes(1, 40)])
    for hashes in (asked[:2], asked, asked[2:]):
        answer = np.array([True, True, True, True, False, True])
        bloom.test(data, starts, ks, hashes, answer)
        as_terms = [Term(int(h1), int(h2), "") for h1, h2 in hashes]
        expected = [all(ask_bloom(one, term) for term in as_terms) for one in filters]
        expected[4] = False
        assert answer.tolist() == expected


def test_the_formula() -> None:
    assert bloom.predict(100, 128, 7) == pytest.approx((1 - math.exp(-7 * 100 / 1024)) ** 7)
