"""Waits, their ends and their cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from overlay import waits
from overlay.waits import (
    Backoff,
    Slices,
    finish_in_thread,
    finish_within,
    is_set_within,
    run_all,
    set_after,
    unless,
    until,
)


async def test_results_and_errors_come_through() -> None:
    assert await finish_in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await finish_in_thread(divmod, 7, 0)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_wait_ends_after_the_thread(fails: bool) -> None:
    """However often it is cancelled, and whatever becomes of the work."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)
        ended.set()
        if fails:
            raise ValueError

    waiting = asyncio.create_task(finish_in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(3):
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done and not ended.is_set()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_cancelled_work_may_finish() -> None:
    """And what it leaves open otherwise is closed."""
    steps = list[str]()

    async def work() -> None:
        steps.append("opened")
        await asyncio.sleep(0.05)
        steps.append("closed")

    waiting = asyncio.create_task(finish_within(work(), 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert steps == ["opened", "closed"]


async def test_cancelled_work_that_does_not_finish_is_cancelled() -> None:
    is_cancelled = False

    async def work() -> None:
        nonlocal is_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    waiting = asyncio.create_task(finish_within(work(), 0.01))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert is_cancelled


async def test_work_has_ended_when_it_was_stopped() -> None:
    stop, is_ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal is_ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            is_ended = True

    stop.set()
    assert not await unless(stop, work())
    stop.clear()
    asyncio.get_running_loop().call_soon(stop.set)
    assert not await unless(stop, work())
    assert is_ended


async def test_an_event_that_comes_and_one_that_does_not() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.01)
    event.set()
    assert await is_set_within(event, 0.01) and await is_set_within(event, None)


async def test_an_event_that_comes_with_a_cancellation() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 10))
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_an_event_sets_another_one() -> None:
    event, other = asyncio.Event(), asyncio.Event()
    passing = asyncio.create_task(set_after(event, other))
    await asyncio.sleep(0)
    assert not other.is_set()
    event.set()
    await passing
    assert other.is_set()


async def test_the_first_error_ends_all_before_it_is_raised() -> None:
    """`asyncio.gather` alone lets the others go on, into what their caller closes next."""
    ended = []

    async def work(number: int) -> int:
        try:
            await asyncio.sleep(0 if number == 1 else 10)
            if number == 1:
                raise ValueError
            return number
        finally:
            ended.append(number)

    with pytest.raises(ValueError):
        await run_all(map(work, range(3)))
    assert sorted(ended) == [0, 1, 2]

    async def give(number: int) -> int:
        return number

    assert await run_all(map(give, range(3))) == [0, 1, 2]


async def test_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    backoff = Backoff(0.5, 3.0)
    for _ in range(5):
        await backoff.rest()
    backoff.reset()
    await backoff.rest()
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0, 0.5]
    await Backoff(0.5, 3.0, failures=100_000).rest()
    assert pauses[-1] == 3.0


async def test_long_work_lets_other_tasks_run_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    now, turns = 0.0, list[float]()

    async def note(seconds: float) -> None:
        turns.append(now)

    monkeypatch.setattr(waits, "monotonic", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", note)
    slices = Slices(0.5)
    slices._began = now
    for _ in range(5):
        now += 0.25
        await slices.rest()
    assert turns == [0.5, 1.0]


async def test_a_pause_ends_when_it_is_to_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    async with asyncio.timeout(60):
        await Backoff(3_600.0, 3_600.0).rest(stop)


async def test_until_returns_when_the_condition_is_true() -> None:
    answers = iter([False, False, True])
    await until(lambda: next(answers), pause_s=0.0)
    assert list(answers) == []
