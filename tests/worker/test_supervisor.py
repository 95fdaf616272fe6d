"""Several workers as child processes, with short programs in place of workers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from overlay.waits import until
from overlay.worker.supervisor import Supervisor

DEADLINE_S = 60.0
WAITS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print(flush=True); signal.pause()"
"""Ends with code 0 at SIGTERM."""
FAILS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print(flush=True); signal.pause()"
STAYS = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); [signal.pause() for _ in 'ab']"
)
"""Does not heed SIGTERM."""


@dataclass
class Children:
    """Starts a program for each worker. `processes`: all that were started, by worker."""

    programs: Sequence[str]
    processes: list[list[asyncio.subprocess.Process]] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = [[] for _ in self.programs]

    async def start(self, number: int) -> asyncio.subprocess.Process:
        command = [sys.executable, "-S", "-c", self.programs[number]]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        # once it has said something, it heeds signals
        assert process.stdout is not None
        await process.stdout.readline()
        self.processes[number].append(process)
        return process

    async def await_started(self, *counts: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: [len(each) for each in self.processes] == [*counts], pause_s=0.01)


async def test_workers_end_with_their_parent() -> None:
    children, stop = Children([WAITS, WAITS]), asyncio.Event()
    supervisor = Supervisor(children.start, 2)
    running = asyncio.create_task(supervisor.run(stop))
    await children.await_started(1, 1)
    stop.set()
    assert await running
    assert [process.returncode for each in children.processes for process in each] == [0, 0]
    assert supervisor.restarts == 0


async def test_a_worker_that_was_killed_is_started_again_and_the_other_goes_on() -> None:
    children, stop = Children([WAITS, WAITS]), asyncio.Event()
    supervisor = Supervisor(children.start, 2, rest_s=(0.01, 0.02))
    running = asyncio.create_task(supervisor.run(stop))
    await children.await_started(1, 1)
    for times in (1, 2, 3):
        children.processes[0][-1].send_signal(signal.SIGKILL)
        await children.await_started(1 + times, 1)
    stop.set()
    assert await running
    assert supervisor.restarts == 3
    assert [process.returncode for process in children.processes[0]] == [-9, -9, -9, 0]


async def test_workers_that_end_with_an_error_or_do_not_end_are_told() -> None:
    for program, stop_s, code in ((FAILS, DEADLINE_S, 3), (STAYS, 0.5, -9)):
        children, stop = Children([program, WAITS]), asyncio.Event()
        running = asyncio.create_task(Supervisor(children.start, 2, stop_s=stop_s).run(stop))
        await children.await_started(1, 1)
        stop.set()
        assert not await running
        codes = [each[0].returncode for each in children.processes]
        # beside one that stays, a worker on a slow machine may not end in time either
        assert codes == [code, 0] or (program == STAYS and codes == [-9, -9])


async def test_nothing_is_started_after_the_end() -> None:
    """Also not while a worker that has ended waits to be started again."""
    children, stop = Children(["print(flush=True)"]), asyncio.Event()
    supervisor = Supervisor(children.start, 1, rest_s=(60.0, 60.0))
    running = asyncio.create_task(supervisor.run(stop))
    await children.await_started(1)
    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: supervisor.restarts == 1, pause_s=0.01)
        stop.set()
        assert await running
    assert len(children.processes[0]) == 1
