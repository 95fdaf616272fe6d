"""Each record counts as read first once, however many cursors and shards read it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from overlay.worker.commit.first_reads import FirstReads
from overlay.worker.round.task import SliceRead

HERE = ("S", ("t", 0))


def read(first: int, end: int, lost: int = 0, partition: tuple[str, tuple[str, int]] = HERE) -> SliceRead:
    example = (first, "missing") if lost else None
    return SliceRead(partition, first, end, end - first, {"missing": lost} if lost else {}, example)


def test_consumers_that_catch_up_read_again() -> None:
    reads = FirstReads()
    assert (reads.take(read(0, 100, 10)).first, reads.take(read(100, 200)).first) == (100, 100)
    for first in (0, 100):
        added = reads.take(read(first, first + 100, 10))
        assert (added.first, added.again, sum(added.unaddressed.values()), added.example) == (0, 100, 0, "")
    counts = reads.streams["S"]
    assert (counts.first, counts.again, counts.unaddressed) == (200, 200, {"missing": 10})
    assert counts.example == "t-0@0: missing"
    # a worker that begins at the end has not read what is before it, and nor has it been read first
    assert reads.take(read(500, 600, partition=("S", ("t", 1)))).first == 100
    assert reads.take(read(0, 500, partition=("S", ("t", 1)))).again == 500


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_every_record_counts_once(seed: int, readers: int) -> None:
    """Readers that go through a log in slices of their own, in whatever turns."""
    rng = random.Random(seed)
    reads, at = FirstReads(), [0] * readers
    while min(at) < 100:
        reader = rng.choice([number for number in range(readers) if at[number] < 100])
        end = min(100, at[reader] + rng.randint(1, 40))
        added = reads.take(read(at[reader], end))
        assert added.first + added.again == end - at[reader]
        at[reader] = end
    assert (reads.streams["S"].first, reads.streams["S"].again) == (100, 100 * (readers - 1))
