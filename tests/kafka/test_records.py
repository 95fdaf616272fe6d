"""Batches of others, read record by record: whatever they hold, what is behind them is read."""

from __future__ import annotations

import numpy as np
import pytest

from overlay.kafka.fetcher import Fetched, log_position_after
from overlay.kafka.records import RowReader, StoredRecord
from overlay.scan import Malformed
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build

LIMIT = 1 << 20
TIME = 1_700_000_000_000


def read(*batches: bytes) -> list[StoredRecord | Malformed]:
    data = np.frombuffer(b"".join(batches), np.uint8)
    found = split(data)
    unreadable = found.base_offset if found.fault else -1
    fetched = Fetched(0, data, found.batches, NO_ABORTS, 9, 0, log_position_after(found.batches, 0), unreadable)
    return list(RowReader(["name"], most_bytes=LIMIT).read(fetched, 0))


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
