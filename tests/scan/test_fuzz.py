"""Damaged batches: no crash, no hang, no read outside the buffer, and the same judgement as the oracle.

The bytes under test lie in the middle of a larger array whose rest is poison: 0xFF, in which every varint is without
end, or 0x01, in which every byte is a null or a -1. A kernel that reads a byte outside decides by the poison sooner or
later, and the two runs differ. OVERLAY_FUZZ sets how many damaged buffers are tried. `make test-bounds` runs these tests with
kernels that check each index.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.arrays import Bytes
from overlay.match.envelope import COLUMNS, envelope
from overlay.scan import Decoder, Malformed
from overlay.scan.codec import Arena
from overlay.scan.columns import TYPES, Origin, gather
from overlay.subject import SubjectRule
from overlay.subject.dictionary import Dictionary
from tests.oracle.batches import Record
from tests.scan.compare import PLAN, Reading, has_odd_markers, read_oracle, read_row, read_scan
from tests.support import batches as make
from tests.support.strategies import FetchBuffer, fetch_buffers, mutate

ROUNDS = int(os.environ.get("OVERLAY_FUZZ", "3000"))
CANARY = 4096
LIMIT = 1 << 20

RULE = SubjectRule.from_template("t.{header:origin}")
NAMES = COLUMNS.keys() - {"timestamp"}
HEADERS = [(b"origin", b"JFK"), (b"dest", None), ("größe".encode(), b""), (b"origin", b"EWR")]


def _records(base_offset: int, count: int) -> list[Record]:
    sizes = [None, 0, 1, 70, 9]
    return [
        Record(
            base_offset + 2 * i,
            1_700_000_000_000 + i * (-1) ** i * 977,
            None if i % 4 == 0 else b"key-%d" % i,
            None if sizes[i % 5] is None else b"v" * (sizes[i % 5] or 0),
            HEADERS[: i % 5],
        )
        for i in range(count)
    ]


def make_corpus() -> list[bytes]:
    """Small buffers, so that a round is quick: each codec alone, several batches, flags, markers, nothing."""
    alone = [make.build(_records(5, 4), base_offset=5, codec=codec, xerial=True) for codec in range(5)]
    raw_snappy = make.build(_records(5, 4), base_offset=5, codec=2, xerial=False)
    row = b"".join(make.build(_records(100 * i, 3), base_offset=100 * i, codec=i % 5) for i in range(5))
    transaction = make.build(_records(0, 2), transactional=True, producer_id=7) + make.end_marker(9, 7, commit=False)
    odd = make.empty(0, 9) + make.build(_records(50, 2), base_offset=50, log_append_time=True) + make.empty(90, 1)
    return [*alone, *alone[:1], raw_snappy, row, transaction + row[len(alone[0]) :], odd, make.build()]


def _between_canaries(data: bytes, poison: int) -> Bytes:
    whole = np.full(len(data) + 2 * CANARY, poison, np.uint8)
    whole[CANARY : CANARY + len(data)] = np.frombuffer(data, np.uint8)
    return whole[CANARY : CANARY + len(data)]


class PoisonedArena(Arena):
    """An arena full of poison when made and wherever it grows: what lies behind the decompressed bytes is known."""

    def __init__(self, poison: int, limit: int = LIMIT) -> None:
        super().__init__(size=512, limit=limit)
        self.poison = poison
        self.buf[:] = poison

    def _grow(self, keep: int) -> bool:
        grown = super()._grow(keep)
        self.buf[keep:] = self.poison
        return grown


def _decode(data: bytes, poison: int, aborted: list[tuple[int, int]], slice_rows: int = 4096) -> Reading:
    decoder = Decoder(PLAN, slice_bytes=400, slice_rows=slice_rows, arena=PoisonedArena(poison))
    return read_scan(_between_canaries(data, poison), decoder, aborted)


def _check(data: bytes, aborted: list[tuple[int, int]]) -> Reading:
    reading = _decode(data, 0xFF, aborted)
    again = _decode(data, 0x01, aborted)
    assert reading == again, "the outcome depends on bytes outside the buffer"
    assert reading == _decode(data, 0xFF, aborted, slice_rows=2), "the outcome depends on where slices end"
    if not has_odd_markers(data):
        expected = read_oracle(data, aborted)
        assert reading.seen == expected.seen
        assert reading.fields == expected.fields
    return reading


@pytest.mark.timeout(60 + ROUNDS // 50)
def test_damaged_buffers() -> None:
    corpus = make_corpus()
    faults = records = 0
    for seed in range(ROUNDS):
        data = mutate(seed, corpus[seed % len(corpus)])
        try:
            reading = _check(data, [(7, 0)])
        except Exception as error:
            error.add_note(f"mutation {seed} of buffer {seed % len(corpus)}: {data.hex()}")
            raise
        faults += len(reading.faults)
        records += len(reading.fields)
    assert faults > ROUNDS / 4, "the damage is too tame to prove anything"
    assert records > ROUNDS / 4, "the damage is so great that nothing is left to compare"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fetch_buffers(max_batches=5), st.integers(0, 1 << 32))
def test_damaged_fetches(fetch: FetchBuffer, seed: int) -> None:
    """Few, but of any shape; and Hypothesis makes a failing one small."""
    _check(mutate(seed, fetch.data), fetch.aborted)


def _read_columns(data: bytes, poison: int) -> list[list[dict[str, Any]]]:
    """Every column that can be made of what is left of a damaged buffer, row by row, a list for each slice."""
    decoder = Decoder(PLAN, slice_bytes=400, arena=PoisonedArena(poison))
    dictionary = Dictionary(RULE, "topic", 0, bool)
    slices: list[list[dict[str, Any]]] = []
    for piece in decoder.decode(_between_canaries(data, poison)):
        if isinstance(piece, Malformed):
            continue
        codes = dictionary.encode(piece.buf, piece.at[:1], piece.size[:1])
        rows = envelope(piece, np.arange(len(piece)), codes, dictionary, "topic", 0, NAMES, True).to_pylist()
        columns = {
            f"{type} {origin.value} {slot}": gather(piece.buf, at, size, type, origin).array
            # a time may lie outside what Python's can hold, and is read as a long all the same
            for type, origin in product(TYPES.keys() - {"timestamp"}, Origin)
            for slot, (at, size) in enumerate(zip(piece.at, piece.size, strict=True))
        }
        for number, row in enumerate(rows):
            seen = read_row(piece, number)
            headers = [(header["name"], header["value"]) for header in row["headers"]]
            assert (row["offset"], row["key"], row["value"]) == (seen.offset, seen.key, seen.value)
            assert headers == [(name.decode(errors="replace"), value) for name, value in seen.headers]
            row |= {name: column[number].as_py() for name, column in columns.items()}
        slices.append(rows)
    return slices


@pytest.mark.timeout(60 + ROUNDS // 50)
def test_columns_of_damaged_buffers() -> None:
    """The kernels behind the walk: typed columns, subjects, the envelope. Digits around a field would change its number."""
    corpus = make_corpus()
    rows = 0
    for seed in range(ROUNDS // 10):
        data = mutate(seed, corpus[seed % len(corpus)])
        slices = _read_columns(data, 0xFF)
        assert slices == _read_columns(data, ord("1")), f"mutation {seed}: {data.hex()}"
        rows += sum(map(len, slices))
    assert rows > ROUNDS / 40


@pytest.mark.parametrize("codec", range(5))
def test_every_cut(codec: int) -> None:
    """A payload cut at each byte under right lengths and CRC: the kernel's own checks, one after the other."""
    payload = b"".join(make.encode_record(record, 5, 1_700_000_000_000) for record in _records(5, 5))
    for size in range(len(payload)):
        _check(make.build(base_offset=5, codec=codec, payload=payload[:size], count=5, last_offset_delta=8), [])


def _overlong(payload: bytes, at: int) -> bytes:
    return payload[:at] + b"\xff" * 12 + payload[at + 1 :]


def _replaced(payload: bytes, at: int) -> bytes:
    return payload[:at] + b"\x80" + payload[at + 1 :]


@pytest.mark.parametrize("damage", [_overlong, _replaced])
def test_every_position(damage: Callable[[bytes, int], bytes]) -> None:
    """A varint without end, or one byte longer, at each byte."""
    payload = b"".join(make.encode_record(record, 5, 1_700_000_000_000) for record in _records(5, 5))
    for at in range(len(payload)):
        _check(make.build(base_offset=5, payload=damage(payload, at), count=5, last_offset_delta=8), [])
