"""What an output must hold: against a slow obvious twin, and against outputs that are wrong in every way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.demo.verdict import Content, compare, expect
from tests.oracle.subjects import matches

SUBJECTS = ["f.JFK.AA", "f.JFK.UA", "f.LGA.AA", "f.LGA.AA.x", "f"]
FILTERS = ["f.*.AA", "f.JFK.>", ">", "f.LGA.AA", "*", "f.*", "g.>"]


def content(*entries: tuple[int, str]) -> Content:
    return Content(Counter(subject for _, subject in entries), np.array([n for n, _ in entries], np.int64))


# the first call loads Arrow's kernels
@settings(deadline=None)
@given(
    st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=12),
    st.lists(st.sampled_from(FILTERS), max_size=3),
    st.integers(0, 40),
    st.none() | st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_expected_is_what_a_look_at_each_record_says(
    rows: list[str], filters: list[str], records: int, flags: list[bool] | None
) -> None:
    published = [(i + 1, rows[i % len(rows)]) for i in range(records) if flags is None or flags[i % len(rows)]]
    slow = [entry for entry in published if not filters or any(matches(text, entry[1]) for text in filters)]
    found = expect(pa.array(rows), filters, records, None if flags is None else np.array(flags[: len(rows)]))
    assert found.counts == Counter(subject for _, subject in slow)
    assert found.sequences.tolist() == [number for number, _ in slow]
    assert found.total == len(slow)
    assert compare(found, content(*slow)) == []


WANTED = content((1, "a"), (4, "b"), (5, "a"))


def test_a_missing_record() -> None:
    assert compare(WANTED, content((1, "a"), (5, "a"))) == [
        "1 records missing by their subjects: b (1)",
        "1 stream sequences are missing: 4",
    ]


def test_a_record_too_many() -> None:
    assert compare(WANTED, content((1, "a"), (2, "c"), (4, "b"), (5, "a"))) == [
        "1 records too many by their subjects: c (1)",
        "1 stream sequences are not among those selected: 2",
    ]


def test_a_record_twice() -> None:
    assert compare(WANTED, content((1, "a"), (4, "b"), (4, "b"), (5, "a"))) == [
        "1 records too many by their subjects: b (1)",
        "1 records are there more than once",
    ]


def test_right_counts_of_wrong_records() -> None:
    assert compare(WANTED, content((1, "a"), (4, "b"), (6, "a"))) == [
        "1 stream sequences are missing: 5",
        "1 stream sequences are not among those selected: 6",
    ]


def test_another_order() -> None:
    assert compare(WANTED, content((4, "b"), (1, "a"), (5, "a"))) == ["records are out of order"]
