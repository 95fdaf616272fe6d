"""The row filter on fetches made by hand: how slices become parts."""

from __future__ import annotations

import numpy as np
import pytest

from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.question import make_request
from overlay.client.read.row_filter import PART_SLICES, RowFilter
from overlay.client.read.topic import describe_topic
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build

STREAM = describe_topic("t", {"n": "long"})


def fetch(*batches: bytes, position: int = 0, end: int) -> Fetched:
    data = np.frombuffer(b"".join(batches), np.uint8)
    return Fetched(position, data, split(data).batches, NO_ABORTS, end, 0, LogPosition(end))


def make_batch(at: int, count: int, size: int = 10) -> bytes:
    records = [Record(n, n, None, b"x" * size, [(b"n", b"%d" % n)]) for n in range(at, at + count)]
    return build(records, base_offset=at, codec=3)


def sift(fetched: Fetched, offset_range: OffsetRange, *, sql: str = "1 = 1") -> list[tuple[list[int], int]]:
    request = make_request(STREAM, is_named=True, now=0, columns=["offset"], sql=sql)
    parts = RowFilter(request, sequenced=True).sift(offset_range, fetched, 0)
    return [([n for batch in part.batches for n in batch["offset"].to_pylist()], part.position) for part in parts]


def test_slices_are_joined_up_to_a_bound() -> None:
    """Each batch here decompresses to more than a slice."""
    batches = [make_batch(3 * n, 3, 800_000) for n in range(2 * PART_SLICES)]
    end = 3 * len(batches)
    parts = sift(fetch(*batches, end=end), OffsetRange(("t", 0), 0, end))
    assert [n for offsets, _ in parts for n in offsets] == list(range(end))
    assert [len(offsets) for offsets, _ in parts if offsets] == [end // 2] * 2 and parts[-1][1] == end


def test_rows_of_a_part_are_in_one_batch() -> None:
    request = make_request(STREAM, is_named=True, now=0, columns=["offset"])
    fetched = fetch(*(make_batch(3 * n, 3, 800_000) for n in range(3)), end=9)
    (part,) = RowFilter(request, sequenced=True).sift(OffsetRange(("t", 0), 0, 9), fetched, 0)
    assert [batch.num_rows for batch in part.batches] == [9] and [t.tolist() for t in part.times] == [list(range(9))]


@pytest.mark.parametrize(("start", "stop", "floor"), [(0, 20, 0), (3, 17, 0), (0, 20, 15), (0, 20, 25), (5, 5, 0)])
def test_offset_ranges(start: int, stop: int, floor: int) -> None:
    fetched = fetch(make_batch(0, 10), make_batch(10, 10), position=start, end=20)
    parts = sift(fetched, OffsetRange(("t", 0), start, stop, floor))
    assert [n for offsets, _ in parts for n in offsets] == list(range(max(start, floor), stop))


def test_nothing_passes() -> None:
    """There is no batch, but the position moves."""
    assert sift(fetch(make_batch(0, 10), end=10), OffsetRange(("t", 0), 0, 10), sql="n > 50") == [([], 10)]
