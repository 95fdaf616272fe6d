"""When a worker's next status comes: as often as promised, soon after a change, and never more often than allowed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.timetable import CALM_S, GATHER_S, Scope, Timetable

EVERY_S = 2.0
LOOK_S = 0.1


def run(marks: list[tuple[float, int]], until: float) -> list[tuple[float, int, Scope]]:
    """The statuses of a worker that looks each LOOK_S: when each was made, of what, and its scope. `marks`: from which
    time on there is what."""
    timetable, now, found = Timetable(), 0.0, []
    while now <= until:
        mark = max((pair for pair in marks if pair[0] <= now), default=(0.0, 0))[1]
        pause = timetable.find_pause(mark, now)
        if pause <= 1e-9:
            found.append((round(now, 6), mark, timetable.begin(mark, now)))
            timetable.settle(EVERY_S, now, is_written=True)
            continue
        now += min(pause, LOOK_S)
    return found


def test_one_comes_every_two_seconds_and_each_second_one_tells_of_consumers() -> None:
    assert run([], 9.0) == [
        (0.0, 0, Scope.ALL),
        (2.0, 0, Scope.WORKER),
        (4.0, 0, Scope.ALL),
        (6.0, 0, Scope.WORKER),
        (8.0, 0, Scope.ALL),
    ]


def test_a_change_is_told_soon_and_with_the_consumers() -> None:
    assert run([(2.05, 1)], 5.0) == [
        (0.0, 0, Scope.ALL),
        (2.0, 0, Scope.WORKER),
        # half a second after the one before
        (2.5, 1, Scope.ALL),
        (4.5, 1, Scope.WORKER),
    ]
    (change,) = [at for at, mark, _ in run([(3.4, 1)], 3.9) if mark]
    assert 3.4 + GATHER_S <= change + 1e-6 <= 3.4 + GATHER_S + 2 * LOOK_S


def test_what_changes_meanwhile_is_told_with_it() -> None:
    told = [(at, mark) for at, mark, _ in run([(3.4, 1), (3.45, 2), (3.55, 3)], 3.99) if mark]
    assert [mark for _, mark in told] == [3]


def test_a_change_within_a_usual_status_is_told_with_the_consumers() -> None:
    """The usual one was due, and nothing but its turn would have it leave the consumers out."""
    assert (2.0, 1, Scope.ALL) in run([(1.95, 1)], 3.0)


CHANGES = st.lists(st.floats(0.1, 19), max_size=40)


@given(CHANGES)
def test_bounds(times: list[float]) -> None:
    marks = [(at, number) for number, at in enumerate(sorted(times), 1)]
    told = run(marks, 21.0)
    gaps = [second - first for (first, *_), (second, *_) in itertools.pairwise(told)]
    assert all(CALM_S - 1e-6 <= gap <= EVERY_S + LOOK_S for gap in gaps)
    for at, number in marks:
        first = min(moment for moment, mark, _ in told if mark >= number)
        assert first - at <= CALM_S + GATHER_S + 2 * LOOK_S


def test_a_change_does_not_shorten_the_pause_after_a_failure() -> None:
    timetable = Timetable()
    assert timetable.begin(1, 0.0) is Scope.ALL
    timetable.settle(60.0, 0.0, is_written=False)
    assert timetable.find_pause(2, 5.0) == 55.0
    assert timetable.begin(2, 60.0) is Scope.ALL
    timetable.settle(EVERY_S, 60.0, is_written=True)
    assert timetable.begin(2, 62.0) is Scope.WORKER
    timetable.settle(EVERY_S, 62.0, is_written=False)
    # what it would have told is told with the next one
    assert timetable.begin(2, 64.0) is Scope.ALL
