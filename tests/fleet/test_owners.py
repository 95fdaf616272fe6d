"""Which worker has a shard while it moves: the picture against a group that deals out generations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.app import JUDGE_S
from overlay.fleet.findings import Expected, Kind, Picture, list_holders, look, survey
from overlay.fleet.live import KEEP_MS
from overlay.fleet.memory import Memory, WorkerRow
from overlay.fleet.picture import describe
from overlay.fleet.publisher import LOOK_S
from overlay.fleet.status import EVERY_MS, Status, WorkerStatus
from overlay.fleet.timetable import Timetable
from overlay.worker.membership import HEARTBEAT_MS, SESSION_MS

from .statuses import NOW, make_status

SHARDS = 4


def claim(worker: str, *shards: int, generation: int | None = None, number: int = 0, every: int = 2_000) -> Status:
    return make_status(worker, shards=shards, shard_count=SHARDS, generation=generation, number=number, every=every)


def see(*told: tuple[int, Status], now: int) -> Picture:
    memory = Memory()
    for appended, status in told:
        memory.fold(status.model_copy(update={"clock": appended}), appended)
    # as a table of Faust gives them back
    return look(Memory(json.loads(json.dumps(memory.workers))), now, Expected())


def list_kinds(picture: Picture) -> set[Kind]:
    return {finding.kind for finding in survey(picture)}


def test_shards_of_a_killed_worker_are_those_of_the_one_that_took_them_over() -> None:
    before = [(NOW, claim("a", 0, 1, generation=5)), (NOW, claim("b", 2, 3, generation=5))]
    after = (NOW + 6_500, claim("b", 0, 1, 2, 3, generation=6, number=1))
    picture = see(*before, after, now=NOW + 6_600)
    assert picture.live.keys() == {"a", "b"}, "it is not silent yet"
    assert picture.owners == dict.fromkeys(range(SHARDS), ("b",))
    assert list_kinds(picture) == set()
    shown = describe(picture, [], {})
    assert [row["state"] for row in shown["shards"]] == ["running"] * SHARDS
    assert [row["shards"] for row in shown["workers"]] == [[], [0, 1, 2, 3]]
    # once it is silent, what it had is shown
    shown = describe(see(*before, after, now=NOW + 7_001), [], {})
    assert [(row["state"], row["shards"]) for row in shown["workers"]] == [
        ("silent", [0, 1]),
        ("running", [0, 1, 2, 3]),
    ]


def test_a_frozen_worker_that_tells_its_old_assignment_again_owns_nothing() -> None:
    told = [
        (NOW, claim("a", 0, 1, generation=5)),
        (NOW + 7_000, claim("b", 0, 1, 2, 3, generation=6)),
        (NOW + 9_000, claim("a", 0, 1, generation=5, number=1)),
    ]
    assert see(*told, now=NOW + 9_000).owners == dict.fromkeys(range(SHARDS), ("b",))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # of a version that does not tell
        (None, 6),
        (5, None),
        (None, None),
        # the same generation twice: not one group
        (6, 6),
        # Kafka has forgotten the group and counts from 1 again: either may be the owner
        (50, 1),
    ],
)
def test_two_owners_are_shown_if_neither_is_newer(first: int | None, second: int | None) -> None:
    told = [
        (NOW, claim("a", 0, 1, 2, 3, generation=first)),
        (NOW + 1, claim("b", 0, generation=second)),
    ]
    picture = see(*told, now=NOW + 2)
    assert picture.owners[0] == ("a", "b")
    assert list_kinds(picture) == {Kind.SHARD_WITH_TWO_OWNERS}


def test_a_generation_that_was_told_late_does_not_hide_a_later_one() -> None:
    """The second worker has told its older generation after the first told a newer one."""
    told = [(NOW, claim("a", 0, generation=7)), (NOW + 1, claim("b", 0, 1, 2, 3, generation=6))]
    assert see(*told, now=NOW + 2).owners[0] == ("a", "b")
    last = (NOW + 3, claim("b", 1, 2, 3, generation=7, number=1))
    assert see(*told, last, now=NOW + 4).owners == {0: ("a",), 1: ("b",), 2: ("b",), 3: ("b",)}


TOLD = st.lists(st.tuples(st.none() | st.integers(0, 4), st.integers(0, 4)), max_size=7)
"""Of each worker that says it has a shard, its generation, and when that was first told."""


@given(TOLD)
def test_a_shard_is_of_those_from_which_no_later_generation_took_it(told: list[tuple[int | None, int]]) -> None:
    status = dict(make_status())
    fields = [name for name in WorkerStatus.model_fields if name not in ("worker", "generation")]
    rows = [
        WorkerRow(
            **{name: status[name] for name in fields}, worker=f"w{n}", generation=generation, seen=NOW, dealt=dealt
        )
        for n, (generation, dealt) in enumerate(told)
    ]
    holders = [
        f"w{n}"
        for n, (mine, since) in enumerate(told)
        if mine is None or not any(other is not None and other > mine and dealt >= since for other, dealt in told)
    ]
    assert list_holders(rows) == tuple(holders)


def list_statuses(worker: str, change: float, until: float, *shards: int) -> list[tuple[int, Status]]:
    """The statuses of a worker up to a time, and when Kafka takes each: of half of the shards, and after the time `change`
    of `shards`, in the next generation. Times are seconds from NOW.
    """
    timetable, now = Timetable(), 0.0
    found: list[tuple[int, Status]] = []
    half = (0, 1) if worker == "a" else (2, 3)
    while now < until:
        has_changed = now >= change
        if (pause := timetable.find_pause(has_changed, now)) > 1e-9:
            now += min(pause, LOOK_S)
            continue
        owned, generation = (shards, 6) if has_changed else (half, 5)
        timetable.begin(has_changed, now)
        timetable.settle(EVERY_MS / 1000, now, is_written=True)
        status = claim(worker, *owned, generation=generation, number=len(found), every=EVERY_MS)
        found.append((NOW + round(now * 1000), status))
    return found


@given(st.floats(4, 8), st.floats(0, 1.65), st.floats(0, 1))
def test_the_picture_is_right_within_ten_seconds_of_a_kill(kill: float, late: float, phase: float) -> None:
    """The group gives the shards to the other worker as the session ends, whose last heartbeat was sent up to HEARTBEAT_MS
    before, once the other has heard of that by a heartbeat of its own. An answer of /fleet is up to KEEP_MS old.
    """
    takeover = kill + (SESSION_MS - HEARTBEAT_MS) / 1000 + late
    told = [*list_statuses("a", 99, kill), *list_statuses("b", takeover, kill + 20, 0, 1, 2, 3)]
    told.sort(key=lambda pair: pair[0])
    memory = Memory()
    for second in range(30):
        now = NOW + round((phase + second * JUDGE_S) * 1000)
        while told and told[0][0] <= now:
            appended, status = told.pop(0)
            memory.fold(status.model_copy(update={"clock": appended}), appended)
        if not memory.workers:
            continue
        picture = look(memory, now, Expected())
        assert max(map(len, picture.owners.values())) <= 1
        if now < NOW + kill * 1000:
            assert Kind.WORKER_SILENT not in list_kinds(picture)
        if now >= NOW + (kill + 10 - KEEP_MS / 1000 - JUDGE_S) * 1000 and told:
            assert set(picture.owners.values()) == {("b",)}
            assert picture.live.keys() == {"b"}


DEALS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=SHARDS, max_size=SHARDS), st.sets(st.integers(0, 2))), max_size=8
)
"""For each generation, the worker of each shard, and the workers that do not live to tell it."""


@given(DEALS, st.lists(st.integers(0, 1_400), min_size=24, max_size=24))
def test_no_shard_of_one_group_has_two_owners(deals: list[tuple[list[int], set[int]]], delays: list[int]) -> None:
    """A group deals every two seconds, and each worker that lives tells within 1.4 s. At no moment has a shard two
    owners, and once all have told the owners are those of the group.
    """
    told: list[tuple[int, Status]] = []
    for generation, (owners, dead) in enumerate(deals, 1):
        for worker in range(3):
            if worker not in dead:
                shards = [shard for shard, owner in enumerate(owners) if owner == worker]
                at = NOW + 2_000 * generation + delays[(generation * 3 + worker) % 24]
                told.append((at, claim(f"w{worker}", *shards, generation=generation, number=generation)))
    told.sort(key=lambda pair: pair[0])
    memory = Memory()
    for at, status in told:
        memory.fold(status.model_copy(update={"clock": at}), at)
        assert max(map(len, look(memory, at, Expected()).owners.values())) <= 1
    if deals and not deals[-1][1]:
        picture = look(memory, NOW + 2_000 * len(deals) + 1_400, Expected())
        assert picture.owners == {shard: (f"w{owner}",) for shard, owner in enumerate(deals[-1][0])}
