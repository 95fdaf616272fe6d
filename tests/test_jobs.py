"""Jobs in a thread: the event loop never stands still for them, and none outlives its block."""

from __future__ import annotations

import asyncio
import threading

import pytest

from overlay.jobs import Jobs, run_apart

HELD_S = 60
TURNS = 20


class Job:
    """A job that runs until `go_on` is set. It gives up after HELD_S, because an event loop that waits for it sets nothing."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.is_told_to_end = False

    def run(self) -> str:
        self.begun.set()
        self.is_told_to_end = self.go_on.wait(HELD_S)
        self.ended.set()
        return "done"


async def test_results_and_errors_come_through() -> None:
    async with Jobs("test") as jobs:
        assert await jobs.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await jobs.run(divmod, 7, 0)
        assert (await jobs.run(threading.current_thread)).name.startswith("test")


async def test_the_loop_turns_while_a_failed_block_waits_for_its_job() -> None:
    """As a session that fails while its pipeline works: the executor's own exit holds up the loop until the job ends."""
    job, failed = Job(), asyncio.Event()

    async def fail() -> None:
        async with Jobs("test") as jobs:
            working = asyncio.create_task(jobs.run(job.run))
            await asyncio.to_thread(job.begun.wait, HELD_S)
            working.cancel()
            failed.set()
            raise ValueError

    failing = asyncio.create_task(fail())
    await failed.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0.005)
        assert not failing.done()
    job.go_on.set()
    with pytest.raises(ValueError):
        await failing
    assert job.ended.is_set() and job.is_told_to_end


async def test_a_cancelled_block_ends_after_its_job() -> None:
    """However often it is cancelled; a job that has not begun is never run."""
    job, late = Job(), Job()

    async def work() -> None:
        async with Jobs("test") as jobs:
            await asyncio.gather(jobs.run(job.run), jobs.run(late.run))

    task = asyncio.create_task(work())
    await asyncio.to_thread(job.begun.wait, HELD_S)
    for _ in range(3):
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done and not job.ended.is_set()
    job.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.ended.is_set() and job.is_told_to_end and not late.begun.is_set()


async def test_no_thread_is_left() -> None:
    async with Jobs("test-left") as jobs:
        thread = await jobs.run(threading.current_thread)
    await asyncio.to_thread(thread.join, HELD_S)
    assert not thread.is_alive()


async def test_a_thread_of_its_own_for_one_call() -> None:
    """A wait that is given up leaves the call alone, and another may wait for it."""
    job = Job()
    future = run_apart(job.run, "test-apart")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.wrap_future(future)
    job.go_on.set()
    assert await asyncio.wrap_future(future) == "done"
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(run_apart(lambda: 1 // 0, "test-apart"))
