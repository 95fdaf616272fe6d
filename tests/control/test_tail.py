"""Whether what was fetched of the control topic is all that was written."""

from __future__ import annotations

import numpy as np
import pytest

from overlay.control.tail import has_hole
from overlay.kafka.fetcher import Fetched, log_position_after
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build


def fetch(position: int, *batches: list[int]) -> Fetched:
    """Return a fetch from a position on, of batches with records at these offsets."""
    texts = [
        build([Record(offset, 0, b"k", b"v", []) for offset in offsets], base_offset=offsets[0]) for offsets in batches
    ]
    data = np.frombuffer(b"".join(texts), np.uint8)
    found = split(data).batches
    return Fetched(position, data, found, NO_ABORTS, 100, 0, log_position_after(found, position))


@pytest.mark.parametrize(
    ("position", "batches", "since", "expected"),
    [
        (3, [[3, 4], [5]], 0, False),
        (4, [[3, 4, 5]], 0, False),
        (3, [[4, 5]], 0, True),
        (3, [[3], [5]], 0, True),
        (3, [[3, 5]], 0, True),
        (0, [[2], [4, 5]], 4, False),
        (0, [[2], [5]], 4, True),
        (0, [[2], [4], [6]], 4, True),
        (0, [[2], [6]], 9, False),
        (0, [], 0, False),
    ],
)
def test_offsets_that_are_missing(position: int, batches: list[list[int]], since: int, expected: bool) -> None:
    assert has_hole(fetch(position, *batches), since) is expected
