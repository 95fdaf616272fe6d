"""A worker's membership of the group, by what aiokafka tells it. With a group: tests/sim/test_moving_shards.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from overlay.kafka.properties import Properties
from overlay.worker.membership import Membership, Release

TOPIC = "overlay.state"


@dataclass
class Coordinator:
    """The group's coordinator, as aiokafka shows it. `failures`: what its next heartbeats raise."""

    generation: int = 1
    failures: list[BaseException] = field(default_factory=list)
    is_heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a heartbeat that is confirmed."""

    async def _do_heartbeat(self) -> bool:
        if self.failures:
            raise self.failures.pop()
        self.is_heard.set()
        return True

    def request_rejoin(self) -> None:
        pass


@dataclass
class Client:
    async def bootstrap(self) -> None:
        pass

    async def _metadata_update(self) -> bool:
        return True


@dataclass
class Consumer:
    """aiokafka's consumer, without a connection. `is_stopped`: whether it has left the group."""

    _coordinator: Coordinator = field(default_factory=Coordinator)
    _client: Client = field(default_factory=Client)
    is_stopped: bool = False

    def subscribe(self, *_: object, **__: object) -> None:
        pass

    def pause(self, *_: object) -> None:
        pass

    async def getmany(self) -> dict[TopicPartition, list[object]]:
        return {}

    async def stop(self) -> None:
        self.is_stopped = True


class Member(Membership):
    """A membership whose consumer is `fake`."""

    def _make_consumer(self, kafka: Properties, group: str) -> Any:
        self.fake = Consumer()
        return self.fake

    async def deal(self, *numbers: int) -> None:
        """Tell it that the group has assigned these shards."""
        await self.on_partitions_assigned({TopicPartition(TOPIC, number) for number in numbers})


async def take(_: frozenset[int]) -> bool:
    return True


async def release_nothing() -> None:
    pass


@asynccontextmanager
async def run_member(*numbers: int, release: Release = release_nothing) -> AsyncIterator[Member]:
    """A member that has these shards, and leaves at the end."""
    member, stop = Member({"bootstrap.servers": "localhost:1"}, "overlay", TOPIC, is_cooperative=False), asyncio.Event()
    running = asyncio.create_task(member.run(stop, take, release))
    try:
        await asyncio.sleep(0)
        await member.deal(*numbers)
        yield member
    finally:
        stop.set()
        await running


@pytest.mark.parametrize(("after", "expected"), [({1, 2}, True), ({2}, False)])
async def test_ownership_is_told_when_the_rebalance_has_ended(after: set[int], expected: bool) -> None:
    """Within it, nothing is known: a False would close the journals of shards that stay."""
    async with run_member(1) as member:
        assert await member.is_owner(1)
        assert not await member.is_owner(2)
        await member.on_partitions_revoked(())
        asking = asyncio.create_task(member.is_owner(1))
        await asyncio.sleep(0)
        assert not asking.done()
        await member.deal(*after)
        assert await asking is expected


async def test_ownership_is_not_told_for_ever_while_a_rebalance_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.worker.membership.CONFIRM_S", 0.01)
    async with run_member(1) as member:
        await member.on_partitions_revoked(())
        assert not await member.is_owner(1)


async def test_an_assignment_is_over_when_the_next_rebalance_begins() -> None:
    async with run_member() as member:
        assert member.is_assigned(frozenset())
        assert not member.is_assigned(frozenset({1}))
        await member.on_partitions_revoked(())
        assert not member.is_assigned(frozenset())
        await member.deal(1)
        assert not member.is_assigned(frozenset())
        assert member.is_assigned(frozenset({1}))
    assert not member.is_assigned(frozenset()), "it has left"


async def test_a_failed_release_ends_the_membership() -> None:
    """Its shards would go to no other worker as long as heartbeats are sent."""

    async def fail() -> None:
        raise RuntimeError("not released")

    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="not released"):
        async with run_member(1, release=fail) as member:
            pass
    assert member.fake.is_stopped
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("failure", [RuntimeError("not foreseen"), asyncio.CancelledError()])
async def test_a_failed_heartbeat_ends_no_hurry(failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HURRY_S", "POLL_S"):
        monkeypatch.setattr(f"overlay.worker.membership.{name}", 0.001)
    async with run_member(1) as member:
        member.fake._coordinator.failures.append(failure)
        member._note_moving(True)
        async with asyncio.timeout(60):
            await member.fake._coordinator.is_heard.wait()
