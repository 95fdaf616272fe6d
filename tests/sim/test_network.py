"""Connections of the simulation: order, faults before and after a broker acted, timeouts, and processes that end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import client as aiokafka_client
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.metadata import MetadataRequest

from .faults import Faults
from .world import World

History = Callable[[World], Awaitable[Any]]


def run(history: History, **faults: Any) -> World:
    world = World(1, brokers=1)
    for name, value in faults.items():
        setattr(world.faults, name, value)

    async def live(world: World) -> None:
        await history(world)

    world.run(live)
    return world


async def connect(**settings: Any) -> Any:
    return await aiokafka_client.create_conn("broker-0", 9092, **settings)


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest([(name, 1, 1, [], [])], 1000, False)


def test_answers_come_in_the_order_of_the_requests() -> None:
    async def history(world: World) -> None:
        connection, done = await connect(), []
        for number in range(20):
            connection.send(create(f"t{number}")).add_done_callback(lambda _, number=number: done.append(number))
        await connection.send(MetadataRequest(None))
        assert done == list(range(20)) and len(world.cluster.topics) == 20

    run(history)


def test_a_cut_before_the_broker_acted_leaves_nothing_behind() -> None:
    async def history(world: World) -> None:
        closed: list[Any] = []
        connection = await connect(on_close=lambda _, reason: closed.append(reason))
        with pytest.raises(KafkaConnectionError):
            await connection.send(create("t"))
        assert not connection.connected() and closed and not world.cluster.topics
        with pytest.raises(KafkaConnectionError):
            await connection.send(create("t"))

    run(history, cut_before=1.0)


def test_a_cut_after_the_broker_acted_loses_the_answer_alone() -> None:
    async def history(world: World) -> None:
        connection = await connect()
        with pytest.raises(KafkaConnectionError):
            await connection.send(create("t"))
        assert list(world.cluster.topics) == ["t"]

    run(history, cut_after=1.0)


def test_a_lost_answer_ends_in_the_clients_timeout() -> None:
    async def history(world: World) -> None:
        connection = await connect(request_timeout_ms=3_000)
        began = world.loop.now
        with pytest.raises(TimeoutError):
            await connection.send(create("t"))
        assert world.loop.now - began == pytest.approx(3)
        assert list(world.cluster.topics) == ["t"] and connection.connected()

    run(history, stalled=1.0)


def test_a_slow_answer_holds_up_those_behind_it() -> None:
    async def history(world: World) -> None:
        connection = await connect()
        began = world.loop.now
        first = connection.send(create("t"))
        await asyncio.sleep(0.01)
        world.faults.slow = 0.0
        await connection.send(MetadataRequest(None))
        assert first.done() and world.loop.now - began > 5

    run(history, slow=1.0, slow_s=(5.0, 5.0))


def test_nothing_arrives_between_parted_sides() -> None:
    async def history(world: World) -> None:
        connection = await connect(request_timeout_ms=2_000)
        world.faults.parted = {("", 0)}
        with pytest.raises(TimeoutError):
            await connection.send(create("t"))
        with pytest.raises(TimeoutError):
            await connect(request_timeout_ms=2_000)
        assert not world.cluster.topics

    run(history)


def test_an_idle_connection_is_closed_and_one_that_waits_is_not() -> None:
    async def history(world: World) -> None:
        connection = await connect(max_idle_ms=5_000)
        await asyncio.sleep(4)
        await connection.send(MetadataRequest(None))
        await asyncio.sleep(4)
        assert connection.connected()
        await asyncio.sleep(2)
        assert not connection.connected() and not world.cluster.sessions

    run(history)


def test_a_broker_that_is_down_refuses_and_one_that_stops_hangs_up() -> None:
    async def history(world: World) -> None:
        connection = await connect()
        with world.at_cluster("stops") as cluster:
            cluster.stop(0)
        await asyncio.sleep(1)
        assert not connection.connected()
        with pytest.raises(ConnectionRefusedError):
            await connect()

    run(history)


def test_what_a_killed_process_has_sent_still_arrives_and_its_connections_end() -> None:
    async def send(told: list[str]) -> None:
        connection = await connect()
        told.append("sends")
        try:
            await connection.send(create("t"))
        finally:
            told.append("ends")

    async def history(world: World) -> None:
        told: list[str] = []
        world.start("p", send(told))
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        world.kill("p")
        assert not world.cluster.topics
        await asyncio.sleep(1)
        assert list(world.cluster.topics) == ["t"] and told == ["sends"] and not world.cluster.sessions

    run(history)


def test_a_frozen_process_finds_its_answer_when_it_thaws() -> None:
    async def send(told: list[float], world: World) -> None:
        connection = await connect()
        await connection.send(MetadataRequest(None))
        told.append(world.loop.now)

    async def history(world: World) -> None:
        told: list[float] = []
        world.network.watch = lambda name, _: world.freeze(name)
        world.start("p", send(told, world))
        await asyncio.sleep(100)
        assert not told
        thawed = world.loop.now
        world.thaw("p")
        await asyncio.sleep(1)
        assert told == [thawed]

    run(history)


def test_probabilities_are_shares_of_all_requests() -> None:
    world = World(1)
    faults = Faults(cut_before=0.1, cut_after=0.2, stalled=0.05, slow=0.15)
    drawn = [faults.judge(world.loop.chance, "x").name for _ in range(20_000)]
    shares = {name: drawn.count(name) / len(drawn) for name in set(drawn)}
    expected = {"CUT_BEFORE": 0.1, "CUT_AFTER": 0.2, "STALLED": 0.05, "SLOW": 0.15, "PASSES": 0.5}
    assert shares == pytest.approx(expected, abs=0.02)
    world.loop.discard()
