"""The reader without kernels, held against the decoder: the same records and the same faults, whatever the bytes are."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.scan import Decoder, Malformed
from overlay.scan.codec import Arena
from overlay.scan.header import split
from overlay.scan.rows import find_batches, read_rows
from tests.oracle.batches import Record
from tests.scan.compare import NO_STOP, PLAN, as_array, read_row
from tests.scan.test_fuzz import make_corpus
from tests.support.strategies import FetchBuffer, fetch_buffers, mutate

ROUNDS = int(os.environ.get("OVERLAY_FUZZ", "1000"))
LIMIT = 1 << 20
MOST = 6
"""Records of a batch; few of those drawn have more."""
SLOW_DRAWS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Seen = list[Record | Malformed]


def read_by_kernels(
    data: bytes, aborted: Sequence[tuple[int, int]], position: int = 0, stop: int = NO_STOP, slice_rows: int = 4096
) -> Seen:
    pairs = np.array(aborted, np.int64).reshape(-1, 2)
    seen: Seen = []
    decoder = Decoder(PLAN, slice_bytes=400, slice_rows=slice_rows, most_records=MOST, arena=Arena(512, LIMIT))
    for piece in decoder.decode(as_array(data), position, stop=stop, aborted=pairs):
        seen += [piece] if isinstance(piece, Malformed) else [read_row(piece, row) for row in range(len(piece))]
    return seen


def read_plain(data: bytes, aborted: Sequence[tuple[int, int]], position: int = 0, stop: int = NO_STOP) -> Seen:
    pairs = np.array(aborted, np.int64).reshape(-1, 2)
    arena = Arena(512, LIMIT)
    rows = read_rows(as_array(data), position, stop=stop, aborted=pairs, arena=arena, most_records=MOST)
    return [row if isinstance(row, Malformed) else Record(*row[:4], [*row.headers]) for row in rows]


def check(data: bytes, aborted: Sequence[tuple[int, int]], position: int = 0, stop: int = NO_STOP) -> Seen:
    seen = read_plain(data, aborted, position, stop)
    assert seen == read_by_kernels(data, aborted, position, stop)
    # batches of more records than a slice has
    assert seen == read_by_kernels(data, aborted, position, stop, slice_rows=2)
    mine, theirs = split(as_array(data), find_batches), split(as_array(data))
    assert mine[1:] == theirs[1:]
    assert mine.batches.tolist() == theirs.batches.tolist()
    return seen


@SLOW_DRAWS
@given(fetch_buffers(max_batches=5), st.integers(0, 60), st.integers(0, 1 << 32), st.booleans())
def test_fetches_are_read_as_by_the_decoder(fetch: FetchBuffer, span: int, seed: int, is_damaged: bool) -> None:
    data = mutate(seed, fetch.data) if is_damaged else fetch.data
    check(data, fetch.aborted)
    first = int.from_bytes(data[:8], signed=True)
    check(data, fetch.aborted, first + 2, first + 2 + span)


def test_damaged_buffers_are_read_as_by_the_decoder() -> None:
    corpus = make_corpus()
    faults = records = 0
    for seed in range(ROUNDS):
        data = mutate(seed, corpus[seed % len(corpus)])
        try:
            seen = check(data, [(7, 0)])
        except Exception as error:
            error.add_note(f"mutation {seed} of buffer {seed % len(corpus)}: {data.hex()}")
            raise
        faults += sum(isinstance(one, Malformed) for one in seen)
        records += sum(isinstance(one, Record) for one in seen)
    assert faults > ROUNDS / 4, "the damage is too tame to prove anything"
    assert records > ROUNDS / 4, "the damage is so great that nothing is left to compare"
