"""Strips of a log: what a cell shows of all that lies in it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.view.strip import MARKS, MATCHED, PLAIN_MARKS, READ, SKIPPED, UNINDEXED, Canvas, Strip, find_kinds

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from([READ, UNINDEXED, MATCHED])))


@given(st.integers(0, 20), st.integers(0, 60), st.integers(1, 80), spans)
def test_a_cell_shows_what_counts_most_of_its_offsets(
    first: int, size: int, width: int, painted: list[tuple[int, int, int]]
) -> None:
    end = first + size
    canvas = Canvas(first, end, width)
    offsets = dict.fromkeys(range(first, end), SKIPPED)
    for low, length, kind in painted:
        canvas.paint(kind, np.array([low]), np.array([low + length]))
        for offset in range(max(low, first), min(low + length, end)):
            offsets[offset] = max(offsets[offset], kind)
    assert canvas.cells.size == min(width, size)
    wanted = [SKIPPED] * canvas.cells.size
    for offset, kind in offsets.items():
        at = (offset - first) * canvas.cells.size // size
        wanted[at] = max(wanted[at], kind)
    assert canvas.cells.tolist() == wanted


def test_many_spans_at_once_are_those_one_by_one() -> None:
    canvas = Canvas(0, 100, 10)
    canvas.paint(READ, np.array([0, 5, 35]), np.array([1, 8, 47]))
    assert Strip("t-0", canvas.cells).write(PLAIN_MARKS) == "-..--....."
    canvas.paint(MATCHED, np.array([36]), np.array([37]))
    canvas.paint(UNINDEXED, np.array([90]), np.array([1 << 62]))
    strip = Strip("t-0", canvas.cells)
    assert strip.write(PLAIN_MARKS) == "-..#-....?"
    assert strip.write(MARKS) == "░··█░····?"
    assert find_kinds([strip]) == [SKIPPED, READ, UNINDEXED, MATCHED]
