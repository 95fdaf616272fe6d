"""Requests to workers whose clocks are wrong: one whose sender still waits is answered, another is not."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded

from .asking import ask, await_answer, find_answers
from .host import Worker, read_config, warm_up
from .world import World

LATE = 300


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out"}],
    )


@pytest.mark.parametrize("ahead_s", [0.0, 12.0, 3_600.0])
def test_a_worker_whose_clock_is_ahead_answers_requests(ahead_s: float) -> None:
    """Also the one that waits while the worker is killed and starts again."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world), offset_s=ahead_s)
        worker.start()
        await asyncio.sleep(10)
        for number in range(3):
            await ask(world, f"info-{number}", "consumer.info", "S", consumer="c")
            assert "error" not in await await_answer(world, f"info-{number}", 5)
            await asyncio.sleep(40 * number)
        worker.kill()
        await ask(world, "waits", "consumer.info", "S", consumer="c", timeout="60s")
        worker.start()
        assert "error" not in await await_answer(world, "waits", 30)
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("ahead_s", [0.0, 12.0, 3_600.0])
def test_requests_whose_sender_waits_no_more_are_not_carried_out(ahead_s: float) -> None:
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world), offset_s=ahead_s)
        worker.start()
        await asyncio.sleep(10)
        worker.kill()
        await ask(world, "late", "consumer.delete", "S", consumer="c")
        await asyncio.sleep(30)
        worker.start()
        await asyncio.sleep(30)
        await ask(world, "then", "consumer.info", "S", consumer="c")
        assert "error" not in await await_answer(world, "then", 5)
        assert not find_answers(world, "late")
        await worker.stop()

    world.run(history)


def test_late_requests_by_the_hundred_hold_up_no_others() -> None:
    """One transaction for each of them would take more than a minute."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(10)
        worker.kill()
        for number in range(LATE):
            await ask(world, f"late-{number}", "consumer.delete", "S", consumer="c")
        await asyncio.sleep(30)
        world.faults.latency_s = (0.03, 0.05)
        worker.start()
        await asyncio.sleep(20)
        await ask(world, "then", "consumer.info", "S", consumer="c")
        assert "error" not in await await_answer(world, "then", 5)
        assert not any(find_answers(world, f"late-{number}") for number in range(LATE))
        await worker.stop()

    world.run(history)
