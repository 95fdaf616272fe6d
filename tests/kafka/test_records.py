"""Batches of others, read record by record: whatever they hold, what is behind them is read."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.records import ROWS_AT_ONCE, PlainReader, RowReader, StoredRecord
from overlay.scan import Fault, Malformed
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import SLICE_ROWS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.tiny_records import build_tiny

LIMIT = 1 << 20
TIME = 1_700_000_000_000


def read(*batches: bytes) -> list[StoredRecord | Malformed]:
    return list(RowReader(["name"], most_bytes=LIMIT).read(as_fetched(*batches), 0))


def as_fetched(*batches: bytes) -> Fetched:
    data = np.frombuffer(b"".join(batches), np.uint8)
    found = split(data)
    unreadable = found.base_offset if found.fault else -1
    return Fetched(0, data, found.batches, NO_ABORTS, 9, 0, log_position_after(found.batches, 0), unreadable)


def make_record(offset: int, value: bytes | None = b"v") -> Record:
    return Record(offset, TIME, b"k", value, [(b"\xff", b"x"), (b"name", b"1"), (b"name", b"2")])


BEHIND = build([make_record(5)], base_offset=5)
ROW = StoredRecord(5, TIME, b"k", b"v", {"name": b"2"})


@pytest.mark.parametrize(
    "bad",
    [
        build([make_record(1)], base_offset=1, crc=1),
        build([make_record(1)], base_offset=1, count=99),
        build([make_record(1)], base_offset=1, payload=b"\xff" * 40),
        build([make_record(1)], base_offset=1, codec=4, section=b"no zstd"),
        build([make_record(1, bytes(2 * LIMIT))], base_offset=1, codec=4),
        build([make_record(1)], base_offset=1, attributes=7),
    ],
    ids=["crc", "count", "records", "compression", "bomb", "codec"],
)
def test_a_bad_batch_hides_nothing_behind_it(bad: bytes) -> None:
    first, *rest = read(bad, BEHIND)
    assert isinstance(first, Malformed)
    assert first.base_offset == 1
    assert rest == [ROW]


def test_an_unknown_format_says_where_to_go_on() -> None:
    *rows, last = read(BEHIND, build([make_record(6)], base_offset=6, magic=7))
    assert rows == [ROW]
    assert isinstance(last, Malformed)
    assert last.next_offset > 6


def test_tombstones_and_null_headers() -> None:
    record = Record(3, TIME, None, None, [(b"name", None)])
    assert read(build([record], base_offset=3)) == [StoredRecord(3, TIME, None, None, {})]


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("make", [RowReader, PlainReader])
def test_a_batch_with_more_records_than_the_limit_is_not_read(
    make: type[RowReader] | type[PlainReader], codec: int
) -> None:
    most = 3 * ROWS_AT_ONCE
    crowd, full = build_tiny(most + 1, codec=codec), build_tiny(most, base_offset=most + 1, codec=codec)
    first, *rows = make(most_records=most).read(as_fetched(crowd, full), 0)
    assert first == Malformed(Fault.TOO_MANY, 0, most + 1)
    assert [row.offset for row in rows if isinstance(row, StoredRecord)] == list(range(most + 1, 2 * most + 1))
    assert len(list(make().read(as_fetched(crowd), 0))) == most + 1


def test_rows_are_made_as_they_are_taken() -> None:
    """An event loop that takes some of a batch does not wait for the others, nor has room for them."""
    fetched = as_fetched(build_tiny(4 * SLICE_ROWS))
    tracemalloc.start()
    rows = RowReader(["name"]).read(fetched, 0)
    assert next(rows) == StoredRecord(0, 0, b"", None, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    decoder = SLICE_ROWS * (32 + 16) + (4 << 20)
    assert peak < decoder + 500 * ROWS_AT_ONCE
    assert sum(1 for _ in rows) == 4 * SLICE_ROWS - 1
