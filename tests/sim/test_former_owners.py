"""A worker that has lost its shards and does not know it yet leaves them to their new owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.worker.change_setup import prepare

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .process import PROCESS
from .reading import read_topic
from .scenes import await_records, intercept
from .world import World
from .writing import write_under_one_key

COUNT = 5
INIT_PRODUCER_ID = 22
"""The API key of requests that fence a producer."""
CONSUMER = {"durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}
WITH_MACHINE = {**CONSUMER, "inactive_threshold": "10h", "interest": "always"}
"""Its deletion takes a new session."""


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [],
    )


async def start(world: World, config: dict[str, Any] = CONSUMER) -> list[Worker]:
    """Begin a history of two workers with a consumer that was created by request and has its deliveries."""
    world.cluster.create_topic("source")
    loaded = configure(world)
    workers = [Worker(world, name, loaded) for name in ("v", "w")]
    for worker in workers:
        worker.start()
    await asyncio.sleep(20)
    await write_under_one_key(world, "source", map(str, range(COUNT)))
    await create(world, "first", config)
    await await_records(world, "out", COUNT)
    return workers


async def create(world: World, id: str, config: dict[str, Any]) -> None:
    await ask(world, id, "consumer.create", "S", config=config)
    assert "error" not in await await_answer(world, id)


def test_a_worker_whose_heartbeats_hang_fences_no_journal() -> None:
    """It learns that its shard was given away only when it gives up its connection, after 40 s."""
    warm_up()
    world = World(1, brokers=1)
    opened: list[str] = []

    def note(answer: Answer, handle: Callable[[Answer], None]) -> None:
        if str(answer.request.transactional_id).startswith("overlay.control"):
            opened.append(answer.request.transactional_id)
        handle(answer)

    async def history(world: World) -> None:
        workers = await start(world)
        former, owner = sorted(workers, key=lambda worker: not worker.service.sessions)

        def lose_heartbeats(name: str, kind: str) -> None:
            is_lost = name == former.name and kind == "HeartbeatRequest"
            world.faults.stalled = 1.0 if is_lost else 0.0

        world.network.watch = lose_heartbeats
        await asyncio.sleep(20)
        assert owner.service.sessions
        intercept(world, INIT_PRODUCER_ID, note)
        for number in range(5):
            await ask(world, f"q{number}", "consumer.info", "S", consumer="c")
            answer = await await_answer(world, f"q{number}")
            assert answer["overlay"]["state"] == "running"
        assert len(opened) == 1, "the owner opens its journal, and is not fenced"
        world.network.watch, world.faults.stalled = None, 0.0
        for worker in workers:
            await worker.stop()

    world.run(history)


@pytest.mark.parametrize("config", [WITH_MACHINE, CONSUMER], ids=["machine", "no machine"])
def test_a_worker_that_slept_while_it_dropped_a_state_leaves_the_state_of_a_namesake_alone(
    config: dict[str, Any],
) -> None:
    """Its successor has dropped the state meanwhile, and serves a new consumer by the same name."""
    warm_up()
    slept: list[str] = []
    is_deleting = asyncio.Event()

    async def sleep_first(*arguments: Any, **named: Any) -> Any:
        process = PROCESS.get()
        if process is not None and is_deleting.is_set() and not slept:
            slept.append(process.name)
            world.freeze(process.name)
            await asyncio.sleep(0)
        return await prepare(*arguments, **named)

    world = World(2, brokers=1, limits={"overlay.worker.shard.prepare": sleep_first})

    async def history(world: World) -> None:
        workers = await start(world, config)
        is_deleting.set()
        await ask(world, "delete", "consumer.delete", "S", consumer="c")
        assert (await await_answer(world, "delete"))["success"]
        await create(world, "second", config)
        await await_records(world, "out", 2 * COUNT)
        (name,) = slept
        world.thaw(name)
        await asyncio.sleep(60)
        assert len(read_topic(world.cluster, "out")) == 2 * COUNT
        for worker in workers:
            await worker.stop()

    world.run(history)
