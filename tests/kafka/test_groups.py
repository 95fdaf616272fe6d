"""Questions about groups, to brokers that fail in the middle of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from overlay.errors import SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.protocol import NO_TAGS, Code, ConsumerGroupDescribeRequest, DescribeGroupsRequest
from tests.support.stub import Cut, Stub, run_stub


def tell_dead(request: Any) -> tuple[Any, ...]:
    return 0, [(0, name, "Dead", "", "", [], 0, NO_TAGS) for name in request.groups], NO_TAGS


def tell_members(request: Any) -> tuple[Any, ...]:
    assignment: tuple[Any, ...] = ([], NO_TAGS)
    member: tuple[Any, ...] = ("m", None, None, 1, "client", "/host", [], None, assignment, assignment, NO_TAGS)
    return 0, [(0, None, name, "Stable", 1, 1, "uniform", [member], 0, NO_TAGS) for name in request.groups], NO_TAGS


def lose_coordinator(stub: Stub, *, times: int) -> None:
    """The next questions for a coordinator are answered that there is none."""
    left = [times]

    def answer(_: Any) -> tuple[Any, ...]:
        left[0] -= 1
        code = Code.COORDINATOR_NOT_AVAILABLE if left[0] >= 0 else Code.NONE
        return 0, code, None, -1 if code else stub.node, stub.host, stub.port

    stub.on(FindCoordinatorRequest, answer)


async def test_a_group_is_not_empty_because_its_coordinator_breaks_off() -> None:
    """A group of the new protocol is `Dead` to the first of two questions; its members come with the second."""
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(DescribeGroupsRequest, tell_dead)

        def break_off(_: Any) -> None:
            lose_coordinator(stub, times=3)
            stub.on(ConsumerGroupDescribeRequest, tell_members)
            raise Cut

        stub.on(ConsumerGroupDescribeRequest, break_off)
        assert await admin.count_members_of(["g", "h"]) == {"g": 1, "h": 1}


async def test_a_group_whose_coordinator_stays_away_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.kafka.admin.LEADER_S", 0.3)
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(DescribeGroupsRequest, tell_dead)

        def break_off(_: Any) -> None:
            lose_coordinator(stub, times=1_000_000)
            raise Cut

        stub.on(ConsumerGroupDescribeRequest, break_off)
        with pytest.raises(SourceUnavailable, match="group g: "):
            await admin.count_members("g")


async def test_a_coordinator_that_loads_is_asked_in_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.kafka.admin.LEADER_S", 2.0)
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(OffsetFetchRequest, lambda _: (0, [], Code.COORDINATOR_LOAD_IN_PROGRESS))
        with pytest.raises(SourceUnavailable, match="group g0: "):
            await admin.find_committed([f"g{number}" for number in range(10)])
        assert 10 < stub.count(OffsetFetchRequest) <= 80


async def test_a_coordinator_that_moves_is_asked_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node id stays, and the old address takes requests without an answer, as a lost machine does."""
    monkeypatch.setattr("overlay.kafka.admin.DEADLINE_S", 600)
    monkeypatch.setattr("overlay.kafka.brokers.LOOK_S", 0.2)
    async with run_stub(1) as first, run_stub(2) as old, run_stub(2) as new:
        first.others = [old]
        for stub in (first, old, new):
            stub.on(FindCoordinatorRequest, lambda _: (0, 0, None, 2, first.others[0].host, first.others[0].port))
            stub.on(OffsetFetchRequest, lambda _: (0, [("t", [(0, 5, "", 0)])], 0))
        async with Admin({"bootstrap.servers": first.address}) as admin:
            assert await admin.find_committed(["g"]) == {"g": {"t": {0: 5}}}
            old.is_silent, first.others = True, [new]
            async with asyncio.timeout(60):
                assert await admin.find_committed(["g"]) == {"g": {"t": {0: 5}}}
            assert new.count(OffsetFetchRequest) == 1


async def test_many_groups_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is decoded in one go. Coordinators beyond the ones remembered are looked up again."""
    monkeypatch.setattr("overlay.kafka.groups.KNOWN", 700)
    sizes: list[int] = []

    def tell(request: Any) -> tuple[Any, ...]:
        sizes.append(len(request.groups))
        return tell_dead(request)

    groups = [f"g{number}" for number in range(1200)]
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(DescribeGroupsRequest, tell)
        stub.on(ConsumerGroupDescribeRequest, tell_members)
        for lookups in (1200, 1200 + 500, 1200 + 2 * 500):
            assert await admin.count_members_of(groups) == dict.fromkeys(groups, 1)
            assert stub.count(FindCoordinatorRequest) == lookups
    assert sizes == [500, 500, 200] * 3


async def test_a_group_that_an_answer_leaves_out_has_none() -> None:
    async with run_stub() as stub, Admin({"bootstrap.servers": stub.address}) as admin:
        stub.on(DescribeGroupsRequest, lambda _: (0, [], NO_TAGS))
        with pytest.raises(SourceUnavailable, match="group g: "):
            await admin.count_members("g")
