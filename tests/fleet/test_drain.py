"""Which worker may be drained, and when it is."""

from __future__ import annotations

import pytest

from overlay.errors import OverlayError
from overlay.fleet.drain import find_target, is_settled, list_moves
from overlay.fleet.findings import Expected, Picture, look
from overlay.fleet.memory import Memory
from overlay.fleet.status import ShardStatus, Status
from tests.fleet.statuses import NOW, make_status


def see(*statuses: Status, now: int = NOW) -> Picture:
    memory = Memory()
    for status in statuses:
        memory.fold(status, NOW)
    return look(memory, now, Expected())


A = make_status("a", shards=(0,), shard_count=2)
B = make_status("b", shards=(1,), shard_count=2)
BOTH = make_status("b", shards=(0, 1), shard_count=2)
EMPTY = make_status("a", shards=(), shard_count=2, drained=True)


def test_a_worker_beside_another_may_be_drained() -> None:
    assert find_target(see(A, B), "a").worker == "a"
    assert find_target(see(EMPTY, BOTH), "a").drained, "once more is no fault"


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ((), "worker a is the only one that takes shards"),
        ((make_status("b", shards=(), drained=True),), "Start another worker first"),
        ((make_status("b", shards=(), trouble="waiting for Kafka"),), "the only one"),
    ],
)
def test_the_only_worker_that_takes_shards_may_not(others: tuple[Status, ...], says: str) -> None:
    with pytest.raises(OverlayError, match=says):
        find_target(see(make_status("a"), *others), "a")
    assert find_target(see(make_status("a"), *others), "a", undo=True)


def test_a_worker_that_is_not_heard_may_not() -> None:
    with pytest.raises(OverlayError, match=r"there is no worker c\. Workers that are heard: a, b"):
        find_target(see(A, B), "c")
    with pytest.raises(OverlayError, match="worker a is silent"):
        find_target(see(A, B, now=NOW + 60_000), "a")


def test_a_worker_is_drained_when_others_serve_all_shards() -> None:
    assert is_settled(see(EMPTY, BOTH), "a")
    starting = tuple(ShardStatus(number=number, ready=number == 0) for number in (0, 1))
    for picture in (
        see(A, B),
        see(EMPTY, B),
        see(make_status("a", shards=(0,), shard_count=2, drained=True), BOTH),
        see(EMPTY, BOTH.model_copy(update={"shards": starting})),
        see(BOTH),
    ):
        assert not is_settled(picture, "a")


def test_a_worker_takes_shards_again() -> None:
    assert is_settled(see(A, B), "a", undo=True)
    assert not is_settled(see(EMPTY, BOTH), "a", undo=True)
    idle = EMPTY.model_copy(update={"drained": False})
    assert not is_settled(see(idle, BOTH), "a", undo=True), "the group has not dealt out yet"
    joining = A.model_copy(update={"trouble": "the group is dealing out shards"})
    assert not is_settled(see(joining, B), "a", undo=True)
    third = make_status("c", shards=(), shard_count=2)
    assert is_settled(see(third, A, B), "c", undo=True), "there is none for the third one"


def test_where_the_shards_went() -> None:
    assert list_moves(see(A, B), see(EMPTY, BOTH), "a") == {0: "b"}
    assert list_moves(see(EMPTY, BOTH), see(A, B), "a") == {}
