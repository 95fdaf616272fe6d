"""What gets through to Faust of the batches that any client may have written."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from aiokafka.record.memory_records import MemoryRecords

from overlay.fleet import screening
from overlay.fleet.screening import Screened, make_arena, screen
from overlay.scan.header import Fault
from tests.oracle.batches import Record
from tests.support.batches import CODECS, build


def make(offset: int, *values: bytes, codec: str = "none", name: bytes = b"h") -> bytes:
    records = [Record(offset + at, 7, b"k", value, [(name, b"x")]) for at, value in enumerate(values)]
    return build(records, base_offset=offset, codec=CODECS[codec])


def make_bomb(offset: int, size: int) -> bytes:
    """A batch of one record that decompresses to so many bytes."""
    return make(offset, bytes(size), codec="zstd")


def list_batches(data: bytes) -> Iterator[tuple[int, int, list[bytes | None]]]:
    """What aiokafka finds: first offset, next offset, and the values of each batch."""
    records = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch is not None and batch.validate_crc()
        yield batch.base_offset, batch.next_offset, [record.value for record in batch]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_sound_gets_through_as_it_is(codec: str) -> None:
    data = make(3, b"a", b"b", codec=codec) + make(5, b"c")
    assert screen(data, make_arena()) == Screened(data)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (make_bomb(5, screening.MOST_BATCH_BYTES + 1), Fault.TOO_LARGE.text),
        (make(5, b"x", name=b"\xff"), "the name of a header is not UTF-8"),
        (make(5, b"x", codec="lz4", name=b"\xc3("), "the name of a header is not UTF-8"),
        (build([Record(5, 7, None, b"x", [])], base_offset=5, crc=1), Fault.CRC.text),
        (build(base_offset=5, payload=b"\x7f" + bytes(20), count=1), Fault.RECORD.text),
        (build(base_offset=5, codec=4, section=b"zork", count=1), Fault.DECOMPRESS.text),
        (build(base_offset=5, count=screening.MOST_BATCH_RECORDS + 1, last_offset_delta=0), Fault.TOO_MANY.text),
    ],
    ids=["bomb", "header", "compressed header", "crc", "record", "codec", "count"],
)
def test_a_batch_that_would_end_faust_is_emptied(bad: bytes, why: str) -> None:
    found = screen(make(3, b"a", b"b") + bad + make(6, b"c"), make_arena())
    assert found.refused == {5: why}
    assert list(list_batches(found.data)) == [(3, 5, [b"a", b"b"]), (5, 6, []), (6, 7, [b"c"])]


def test_an_answer_gets_through_in_parts_that_fit_into_memory() -> None:
    size = screening.PASS_BYTES // 2
    data = b"".join(make_bomb(offset, size) for offset in range(3))
    assert [batch[:2] for batch in list_batches(screen(data, make_arena()).data)] == [(0, 1)]
    assert [batch[:2] for batch in list_batches(screen(make(0, b"a") + make_bomb(1, size), make_arena()).data)] == [
        (0, 1),
        (1, 2),
    ]


def test_the_cut_off_end_of_an_answer_stays() -> None:
    data = make(0, b"a") + make(1, b"\xff", name=b"\xff") + make(2, b"c")[:-1]
    assert screen(data, make_arena()).data[-len(make(2, b"c")) + 1 :] == make(2, b"c")[:-1]
    (length,) = struct.unpack_from(">i", data, 8)
    assert screen(data[: 12 + length], make_arena()) == Screened(data[: 12 + length])
