"""The judge of chunk headers finds what is wrong with one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlay.index.skip.chunk_header import Header

from .chunk_headers import _compare
from .reading import Found

RECORDS = [Found(0, offset, 100 + offset, b"k%d" % (offset % 2), b"v", ()) for offset in range(3)]
RIGHT = Header(
    topic="src", partition=0, first_offset=0, next_offset=3, records=3, addressed=3, bytes=1, min_time=100, max_time=102,
    epoch=0, crc=1, exact=True, config_fingerprint=0, subjects={"s.k0": 2, "s.k1": 1},
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"subjects": None}, ""),
        ({"records": 2}, "records is 3, not 2"),
        ({"addressed": 4}, "addressed is 3, not 4"),
        ({"subjects": {"s.k0": 3}}, "subjects is {'s.k0': 2, 's.k1': 1}, not {'s.k0': 3}"),
        ({"min_time": 101}, "min_time is 100, not 101"),
        ({"max_time": -1}, "max_time is 102, not -1"),
    ],
)
def test_what_a_header_says_wrongly(change: dict[str, object], fault: str) -> None:
    assert list(_compare(replace(RIGHT, **change), RECORDS)) == ([fault] if fault else [])  # type: ignore[arg-type]
