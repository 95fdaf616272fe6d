"""The ids of schemas in fetched bytes, against a walk over the records."""

from __future__ import annotations

import numpy as np
import pytest

from overlay.scan.commit import NO_ABORTS
from overlay.schemas.ids import find_ids
from tests.oracle.batches import Record
from tests.support.batches import CODECS, build


def frame(id: int, rest: bytes = b"x") -> bytes:
    return b"\0" + id.to_bytes(4, "big") + rest


VALUES = [
    frame(9),
    None,
    b"",
    b'{"a": 1}',
    frame(7),
    frame(9),
    b"\0\0\0",
    b"Obj\x01",
    frame((1 << 32) - 1, b""),
    b"\1abcdef",
]


@pytest.mark.parametrize("codec", [CODECS["none"], CODECS["lz4"], CODECS["gzip"]])
def test_ids_come_with_the_offsets_of_their_first_records(codec: int) -> None:
    records = [Record(10 + i, 5, b"key", value, [(b"h", b"v")]) for i, value in enumerate(VALUES)]
    data = build(records[:4], base_offset=10, codec=codec) + build(records[4:], base_offset=14, codec=codec)
    buf = np.frombuffer(data, np.uint8)
    found = find_ids(buf, 0, NO_ABORTS)
    assert list(found.items()) == [(9, 10), (7, 14), ((1 << 32) - 1, 18)]
    assert find_ids(buf, 11, NO_ABORTS) == {7: 14, 9: 15, (1 << 32) - 1: 18}


def test_batches_that_cannot_be_read_and_aborted_records_are_passed_over() -> None:
    broken = build([Record(0, 5, None, frame(1))], crc=7)
    aborted = build([Record(1, 5, None, frame(2))], base_offset=1, transactional=True, producer_id=4)
    sound = build([Record(2, 5, None, frame(3))], base_offset=2)
    buf = np.frombuffer(broken + aborted + sound, np.uint8)
    assert find_ids(buf, 0, np.array([[4, 1]], np.int64)) == {3: 2}
