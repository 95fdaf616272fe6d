"""The simulation's event loop: virtual time, an order drawn from the seed, processes that end or stand still."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from typing import Any

import pytest

from overlay.clock import monotonic, now_ms
from overlay.jobs import Jobs
from overlay.waits import finish_in_thread

from .clock import simulated
from .loop import Deadlock, Loop
from .process import Process

WALL_MS0 = 1_700_000_000_000.0


def run(seed: int, coro: Any, loop: Loop | None = None) -> Any:
    loop = loop or Loop(seed)
    with simulated(loop, WALL_MS0):
        try:
            return loop.run_until_complete(coro)
        finally:
            loop.discard()


def test_a_wait_for_the_rest_of_a_time_ends() -> None:
    """Of a time that has nearly passed a rest may be left that is too small to be added to the clock."""

    async def wait() -> None:
        until = monotonic() + 1e-13
        while monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(1e-17)

    run(1, wait())


def test_an_hour_takes_no_time() -> None:
    async def sleep() -> tuple[float, int]:
        before = monotonic(), now_ms()
        await asyncio.sleep(3600)
        return monotonic() - before[0], now_ms() - before[1]

    began = time.perf_counter()
    assert run(1, sleep()) == (3600, 3_600_000)
    assert time.perf_counter() - began < 60


def test_a_seed_gives_one_order_and_seeds_differ() -> None:
    async def draw() -> list[Any]:
        order: list[Any] = []

        async def one(number: int) -> None:
            await asyncio.sleep(1)
            order.append(number)
            await asyncio.to_thread(order.append, -number)

        pending = {asyncio.create_task(one(number)) for number in range(50)}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            order.extend(task.get_name() for task in done if "Task" not in task.get_name())
        return [*order, random.random(), uuid.uuid4(), os.urandom(4), monotonic()]

    first, again, other = (run(seed, draw()) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(each for each in first if isinstance(each, int)) == [*range(-49, 0), 0, 0, *range(1, 50)]


def test_clocks_and_chance_are_back_afterwards() -> None:
    random.seed(5)
    expected = random.Random(5).random()

    async def draw() -> float:
        return random.random()

    run(1, draw())
    assert random.random() == expected
    assert abs(time.time() - time.time_ns() / 1e9) < 1
    assert time.time() > 1_750_000_000


def test_a_thread_of_another_test_moves_no_time_and_takes_no_draw() -> None:
    def disturb() -> None:
        time.sleep(0.001)
        os.urandom(4)
        uuid.uuid4()

    async def draw(threads: int) -> tuple[float, uuid.UUID, bytes]:
        for _ in range(threads):
            stranger = threading.Thread(target=disturb)
            stranger.start()
            stranger.join()
        return monotonic(), uuid.uuid4(), os.urandom(4)

    assert run(1, draw(1)) == run(1, draw(0))


def test_a_wall_clock_of_a_process_may_differ_and_jump() -> None:
    loop = Loop(1)
    process = Process("w", offset_s=5.0)
    seen: list[int] = []

    async def look() -> None:
        seen.append(now_ms())
        await asyncio.sleep(10)
        seen.append(now_ms())

    async def history() -> None:
        task = loop.start(process, look())
        seen.append(now_ms())
        await asyncio.sleep(1)
        process.offset_s = -60.0
        await task

    run(1, history(), loop)
    base = int(WALL_MS0) + 1_000_000
    assert seen == [base, base + 5_000, base + 10_000 - 60_000]


def test_nothing_of_a_killed_process_runs_not_even_finally() -> None:
    loop, process, told = Loop(1), Process("w"), []

    async def child() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(5)
        finally:
            told.append("child ends")

    async def work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                while True:
                    told.append("works")
                    await asyncio.sleep(1)
        finally:
            told.append("ends")

    async def history() -> list[str]:
        loop.start(process, work())
        await asyncio.sleep(2.5)
        loop.kill(process)
        await asyncio.sleep(60)
        return list(told)

    assert run(1, history(), loop) == ["works"] * 3
    assert loop.faults == []


def test_a_frozen_process_goes_on_when_it_thaws() -> None:
    loop, process, at = Loop(1), Process("w"), []

    async def work() -> None:
        while True:
            at.append(monotonic())
            await asyncio.sleep(1)

    async def history() -> None:
        began = loop.now
        loop.start(process, work())
        await asyncio.sleep(1.5)
        loop.freeze(process)
        await asyncio.sleep(100)
        loop.thaw(process)
        await asyncio.sleep(1.2)
        assert at == [began, began + 1, began + 101.5, began + 102.5]

    run(1, history(), loop)


def test_jobs_end_in_order_and_take_time() -> None:
    async def work() -> list[int]:
        told: list[int] = []
        async with Jobs("x") as jobs:
            await asyncio.gather(*[jobs.run(told.append, number) for number in range(5)])
            assert await jobs.run(monotonic) < monotonic()
        await finish_in_thread(told.append, 5)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return told

    assert run(3, work()) == list(range(6))


def test_a_history_that_can_never_end_is_told() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="nothing is left"):
        run(1, wait())


def test_code_that_runs_in_circles_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.sim.loop.MOST_STEPS", 1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="time stands still"):
        run(1, spin())
