"""The runs of a batch: merged as if all of them were sorted at once, in few bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.arrays import Ints
from spark.job import runs
from spark.job.runs import COLUMNS, Merge, Runs, merge_runs, open_pressed, press, read_pieces

Run = tuple[int, int, int]
"""Place, deliveries, wanted records."""

TASKS = st.lists(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.integers(0, 2)), max_size=9).map(sorted),
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)
"""The runs of some tasks in several ranges each, in which places rise, but for records without sequences. The third number
is how many wanted records are not delivered."""


def note(ranges: Sequence[Sequence[Run]]) -> tuple[bytes, list[Run]]:
    """The runs of a task as it tells the driver of them, and as they are: those without a wanted record are none."""
    noted, found, offset = Runs(), list[Run](), 0
    for each in ranges:
        noted.begin()
        for place, delivered, more in each:
            if (wanted := delivered + more) > 0:
                offset += 1_000  # no run goes on the one before
                places = place + np.arange(wanted)
                noted.add(places, offset + np.arange(wanted), np.arange(delivered))
                found.append((place, delivered, wanted))
    return noted.to_bytes(), found


def sort_at_once(tasks: Mapping[int, Sequence[Run]]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield, for each run that has deliveries, its task, and its first rank and how many wanted records come with that one:
    among those of the task, and of the batch."""
    whole = [(run[0], number, at) for number, found in tasks.items() for at, run in enumerate(found)]
    rank = passed = 0
    before = dict[tuple[int, int], tuple[int, int]]()
    for _, number, at in sorted(whole):
        before[number, at] = rank, passed
        rank, passed = rank + tasks[number][at][1], passed + tasks[number][at][2]
    for number, found in tasks.items():
        rank = passed = 0
        for at, (_, delivered, wanted) in enumerate(found):
            if delivered:
                yield number, rank, passed + 1, before[number, at][0], before[number, at][1] + 1
            rank, passed = rank + delivered, passed + wanted


def is_ordered(tasks: Mapping[int, Sequence[Run]]) -> bool:
    places = [place for found in tasks.values() for place, *_ in found]
    return places == sorted(places)


@given(TASKS, st.integers(1, 4))
def test_runs_are_merged_as_if_they_were_sorted_at_once(tasks: list[list[list[Run]]], size: int) -> None:
    """However they are cut into pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "PIECE", size)
        noted = {number: note(ranges) for number, ranges in enumerate(tasks)}
        merges = merge_runs({number: data for number, (data, _) in noted.items()})
    known = {number: found for number, (_, found) in noted.items()}
    assert bool(merges) is not is_ordered(known)
    if merges:
        assert merges.keys() == {number for number, found in known.items() if found}
        for number, rank, passed, *wanted in sort_at_once(known):
            unknown = place(merges[number], rank, -1)
            assert (place(merges[number], rank, passed), unknown) == (wanted, [wanted[0], -1])


def place(merge: Merge, rank: int, passed: int) -> list[int]:
    return [int(found[0]) for found in merge.place(np.array([rank]), np.array([passed]))]


@pytest.mark.parametrize("top", [0, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_numbers_of_every_size_stay_as_they_are(top: int) -> None:
    columns = np.array([[0, top, 1], [1, 2, 3]], np.int64)
    assert open_pressed(press(columns), 2, 3).tolist() == columns.tolist()


def test_a_run_goes_on_over_slices_and_a_range_begins_another() -> None:
    noted = Runs()
    for places in ([1, 2, 5], [6, 7], [9]):
        noted.add(np.array(places), np.array(places), np.arange(1))
    noted.begin()
    noted.add(np.array([10]), np.array([10]), np.arange(0))
    (piece,) = read_pieces(noted.to_bytes())
    assert piece.open().tolist() == [[1, 10], [3, 0], [6, 1]]


COUNT = 200_000


def test_the_runs_of_a_fine_ledger_take_few_bytes() -> None:
    """The ledger changes the partition with each record or so, so a batch has as many runs as records."""
    chosen = np.random.default_rng(0).random(2 * COUNT) < 0.5
    tracemalloc.start()
    try:
        tasks = {number: note_fine(np.flatnonzero(chosen == bool(number)) + 1) for number in (0, 1)}
        merges = merge_runs(tasks)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found = sum(int(merge.counts.sum()) for merge in merges.values())
    assert found > COUNT * 0.9
    assert kept < 8 * COLUMNS * found / 2
    assert most < 8 * COLUMNS * found


def note_fine(places: Ints) -> bytes:
    """The runs of a task that delivers all of a partition with these places, in slices."""
    noted = Runs()
    for at in range(0, places.size, 10_000):
        mine = places[at : at + 10_000]
        noted.add(mine, np.arange(at, at + mine.size), np.arange(mine.size))
    return noted.to_bytes()
