"""Batches of very many records come in slices of a bounded number of rows, and what has grown for them shrinks again."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from overlay.scan import Decoder, Fault, Malformed, Records
from overlay.scan.codec import Arena
from overlay.scan.decode import FIRST_ROWS, SLICE_ROWS
from overlay.scan.shrinking import SMALL_SLICES
from tests.oracle.batches import Record
from tests.scan.compare import PLAN, as_array
from tests.support.batches import build, encode_record
from tests.support.tiny_records import build_tiny, encode_tiny

MANY = 3 * SLICE_ROWS + 5
SMALL = build([Record(0, 0, b"k", b"v", [])], codec=4)
ARENA_BYTES = 64 << 10


def list_offsets(decoder: Decoder, data: bytes, position: int = 0, stop: int = 1 << 62) -> list[int]:
    """Decode slices, and check that they are small and follow each other."""
    offsets: list[int] = []
    for piece in decoder.decode(as_array(data), position, stop=stop):
        assert isinstance(piece, Records)
        assert len(piece) <= SLICE_ROWS
        assert piece.next_offset >= position
        assert ((position <= piece.offset) & (piece.offset < piece.next_offset)).all()
        offsets += piece.offset.tolist()
        position = piece.next_offset
    assert position <= stop
    return offsets


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_of_very_many_records_comes_in_slices(codec: int) -> None:
    data = build_tiny(MANY, codec=codec) + build_tiny(2, base_offset=MANY, codec=codec)
    decoder = Decoder(PLAN)
    assert list_offsets(decoder, data) == list(range(MANY + 2))
    assert decoder._rows == SLICE_ROWS


@pytest.mark.parametrize("position", [0, 1, SLICE_ROWS - 1, SLICE_ROWS, 2 * SLICE_ROWS + 7, MANY - 1])
def test_a_part_of_such_a_batch_is_read(position: int) -> None:
    data, decoder = build_tiny(MANY), Decoder(PLAN)
    for stop in (position + 1, position + SLICE_ROWS, MANY + 9):
        assert list_offsets(decoder, data, position, stop) == list(range(position, min(stop, MANY)))


def test_small_batches_make_a_slice_together_up_to_the_limit() -> None:
    """Four of these are more rows than a slice has."""
    each = SLICE_ROWS // 4 + 1
    data = b"".join(build_tiny(each, base_offset=each * number) for number in range(8))
    sizes = [len(piece) for piece in Decoder(PLAN).decode(as_array(data)) if isinstance(piece, Records)]
    assert [size for size in sizes if size] == [3 * each, 3 * each, 2 * each]


LAST = MANY - 1
RECORD = encode_record(Record(LAST, 0, b"", None, []), 0, 0)
"""As the last one of MANY."""
BEFORE = encode_record(Record(SLICE_ROWS - 1, 0, b"", None, []), 0, 0)


def replace_record(number: int, record: bytes) -> bytes:
    """Return the bytes of MANY records, one of them replaced."""
    payload = encode_tiny(MANY)
    at, end = len(encode_tiny(number)), len(encode_tiny(number + 1))
    return payload[:at] + record + payload[end:]


@pytest.mark.parametrize(
    ("payload", "count", "fault"),
    [
        (replace_record(LAST, b"\x7f" + RECORD[1:]), MANY, Fault.RECORD),
        (replace_record(LAST, BEFORE), MANY, Fault.OFFSETS),
        # the first record of the second slice has the offset of the one before it
        (replace_record(SLICE_ROWS, BEFORE), MANY, Fault.OFFSETS),
        (encode_tiny(MANY)[: -len(RECORD)], MANY, Fault.RECORD),
        # there are no more records behind the second slice
        (encode_tiny(2 * SLICE_ROWS), 2 * SLICE_ROWS + 9, Fault.RECORD),
        (encode_tiny(MANY) + RECORD, MANY, Fault.COUNT),
    ],
    ids=["broken", "backwards", "backwards between slices", "one too few", "slices too few", "one too many"],
)
def test_a_batch_with_a_fault_far_behind_shows_no_record(payload: bytes, count: int, fault: Fault) -> None:
    """As one that is walked in one go."""
    data = build(base_offset=0, codec=4, payload=payload, count=count, last_offset_delta=LAST)
    for rows in (SLICE_ROWS, 1 << 22):
        pieces = list(Decoder(PLAN, slice_rows=rows).decode(as_array(data + build_tiny(1, base_offset=MANY))))
        assert pieces[0] == Malformed(fault, 0, MANY)
        assert sum(len(piece) for piece in pieces[1:] if isinstance(piece, Records)) == 1


def test_the_memory_for_a_batch_does_not_grow_with_its_records() -> None:
    """Beside the arena, whose limit is in bytes."""
    small, large = (as_array(build_tiny(count)) for count in (2 * SLICE_ROWS, 16 * SLICE_ROWS))
    peaks = []
    for data in (small, large):
        decoder = Decoder(PLAN, arena=Arena(16 << 20))
        tracemalloc.start()
        assert sum(len(piece) for piece in decoder.decode(data) if isinstance(piece, Records)) >= 2 * SLICE_ROWS
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    rows = SLICE_ROWS * (32 + 16 * PLAN.width)
    assert peaks[1] < peaks[0] + 100_000
    assert peaks[1] < rows + 1_000_000


def decode_small(decoder: Decoder, slices: int) -> None:
    for _ in range(slices):
        assert sum(len(piece) for piece in decoder.decode(as_array(SMALL)) if isinstance(piece, Records)) == 1


def test_what_grew_for_a_large_batch_has_its_first_size_again_after_small_ones() -> None:
    arena = Arena(ARENA_BYTES)
    decoder = Decoder(PLAN, arena=arena)
    list_offsets(decoder, build_tiny(MANY))
    grown = decoder._rows, arena.buf.size
    assert grown > (FIRST_ROWS, len(encode_tiny(MANY)))
    decode_small(decoder, SMALL_SLICES - 1)
    assert (decoder._rows, arena.buf.size) == grown
    decode_small(decoder, 1)
    assert (decoder._rows, arena.buf.size) == (FIRST_ROWS, ARENA_BYTES)
    assert list_offsets(decoder, build_tiny(MANY)) == list(range(MANY))


def test_what_large_batches_need_again_and_again_stays() -> None:
    arena = Arena(ARENA_BYTES)
    decoder = Decoder(PLAN, arena=arena)
    list_offsets(decoder, build_tiny(MANY))
    grown, buf = decoder._offset, arena.buf
    for _ in range(4):
        decode_small(decoder, SMALL_SLICES - 1)
        list_offsets(decoder, build_tiny(MANY))
    assert decoder._offset is grown
    assert arena.buf is buf


def test_a_batch_over_the_limit_leaves_no_large_arena() -> None:
    arena = Arena(ARENA_BYTES, 1 << 20)
    decoder = Decoder(PLAN, arena=arena)
    bomb = build(base_offset=0, codec=4, payload=bytes(2 << 20), count=1)
    assert [piece.fault for piece in decoder.decode(as_array(bomb)) if isinstance(piece, Malformed)] == [
        Fault.TOO_LARGE
    ]
    assert arena.buf.size == arena.limit
    decode_small(decoder, SMALL_SLICES)
    assert arena.buf.size == ARENA_BYTES


def test_rows_are_kept_whole_when_there_is_no_memory_for_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk checks no bounds, so the decoder must not count rows that it lacks."""
    decoder = Decoder(PLAN)
    list_offsets(decoder, build_tiny(MANY))
    decode_small(decoder, SMALL_SLICES - 1)
    made = np.empty

    def fail(shape: object, *of: object) -> object:
        if isinstance(shape, tuple):
            raise MemoryError
        return made(shape, *of)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", fail)
        with pytest.raises(MemoryError):
            decode_small(decoder, 1)
    assert decoder._offset.size == decoder._at.shape[1] == decoder._rows
    assert list_offsets(decoder, build_tiny(MANY)) == list(range(MANY))
