"""Pieces that are kept: found again row by row, joined, and let go of when there are too many."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.dispatch.record_cache import NOWHERE, RecordCache
from overlay.match.record_slice import RecordSlice, join
from tests.dispatch.scenes import make_pieces
from tests.output.pressing import make_records

LOG = make_records(300, 40)


def cut(first: int, last: int) -> RecordSlice:
    """The records with these sequences."""
    (piece,) = make_pieces(LOG[first - 1 : last])
    return piece


def value(piece: RecordSlice, row: int) -> bytes:
    """Key, value and headers as they lie there."""
    records = piece.records
    return records.buf[records.body[row] : records.end[row]].tobytes()


def test_a_joined_piece_is_as_one_that_was_kept_whole() -> None:
    whole, joined = cut(1, 60), join(cut(1, 25), cut(26, 60))
    assert joined.sequences.tolist() == whole.sequences.tolist()
    assert [value(joined, row) for row in range(60)] == [value(whole, row) for row in range(60)]
    texts = [bytes(p.texts.text[p.texts.bounds[c] : p.texts.bounds[c + 1]]) for p in (joined, whole) for c in p.codes]
    assert texts[:60] == texts[60:]
    assert joined.measure(np.arange(60)).tolist() == whole.measure(np.arange(60)).tolist()


parts = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 40)), min_size=1, max_size=12)


@given(parts=parts, asked=st.lists(st.integers(1, 300), max_size=60), limit=st.sampled_from([1, 9_000, 1 << 30]))
@settings(max_examples=60, deadline=None)
def test_what_is_found_is_what_was_put(parts: list[tuple[int, int]], asked: list[int], limit: int) -> None:
    """Pieces may overlap, as those of consumers at different places do."""
    record_cache = RecordCache(limit)
    put = set[int]()
    for first, count in parts:
        piece = cut(first, min(first + count, 300))
        record_cache.put("S", piece)
        put |= set(piece.sequences.tolist())
    found = record_cache.find("S", np.array(asked, np.int64))
    for i, sequence in enumerate(asked):
        if found.number[i] == NOWHERE:
            assert limit < 1 << 30 or sequence not in put
        else:
            piece, row = found.pieces[found.number[i]], int(found.row[i])
            assert piece.sequences[row] == sequence
            assert value(piece, row) == value(cut(sequence, sequence), 0)
    assert record_cache.find("T", np.array(asked, np.int64)).missing.size == len(asked)


def test_it_stays_small() -> None:
    record_cache = RecordCache(100_000)
    for n in range(2_000):
        record_cache.put("S" if n % 3 else "T", cut(n % 300 + 1, n % 300 + 1))
    assert record_cache.size <= 100_000 + 70_000


def test_a_trickle_makes_few_pieces() -> None:
    record_cache = RecordCache()
    for n in range(1, 257):
        record_cache.put("S", cut(n, n))
    assert len(record_cache.find("S", np.array([1])).pieces) <= 9


def test_what_was_read_again_is_there_for_one_step() -> None:
    record_cache = RecordCache()
    record_cache.lay_out("S", cut(5, 9))
    assert not record_cache.find("S", np.array([5, 9])).missing.size
    record_cache.clear()
    assert record_cache.find("S", np.array([5, 9])).missing.size == 2


def test_joining_the_newest_slices_leaves_the_oldest_its_place() -> None:
    record_cache = RecordCache(sum(cut(*span).size for span in ((1, 100), (1, 40))))
    record_cache.put("S", cut(1, 100))
    record_cache.put("T", cut(1, 20))
    for n in range(101, 111):
        record_cache.put("S", cut(n, n))
    assert not record_cache.find("S", np.array([1])).missing.size
    record_cache.put("U", cut(1, 30))
    assert record_cache.find("S", np.array([1, 110])).missing.tolist() == [0]
    assert not record_cache.find("T", np.array([1])).missing.size
