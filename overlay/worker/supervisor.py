"""Several workers as child processes: starts them, starts one again that has ended, and ends them all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.logs import get_logger
from overlay.waits import Backoff

log = get_logger(__name__)

REST_S = (1.0, 30.0)
"""Shortest and longest pause in seconds before a worker is started again; it doubles with each end in a row."""
STEADY_S = 60.0
"""A worker that has run for so long was well: its next pause is the shortest one."""
STOP_S = 45.0
"""Seconds that workers have to end after SIGTERM. A worker needs less, or Kafka hangs."""

Start = Callable[[int], Awaitable[asyncio.subprocess.Process]]
"""Starts the worker with this number, counted from 0."""


@dataclass(slots=True)
class Supervisor:
    """Runs `count` workers as child processes, which `start` starts. They are told to stop by SIGTERM, and
    killed if they have not ended `stop_s` seconds later. `rest_s`: shortest and longest pause in seconds
    before a worker that has ended is started again."""

    start: Start
    count: int
    stop_s: float = STOP_S
    rest_s: tuple[float, float] = REST_S
    restarts: int = 0
    """How often a worker was started again."""
    _running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> bool:
        """Keep the workers running until `stop`, and then end them. Return whether all that ran at that time have
        ended within `stop_s` (none was killed) and with exit code 0.
        """
        async with asyncio.TaskGroup() as group:
            keeping = [group.create_task(self._keep(number, stop)) for number in range(self.count)]
            await stop.wait()
            for process in self._running.values():
                _signal(process, signal.SIGTERM)
            _, late = await asyncio.wait(keeping, timeout=self.stop_s)
            for number, process in self._running.items():
                log.error("a worker has not ended in time and is killed", worker=number, pid=process.pid)
                _signal(process, signal.SIGKILL)
            await asyncio.gather(*late)
        return not late and all(task.result() for task in keeping)

    async def _keep(self, number: int, stop: asyncio.Event) -> bool:
        """Run one worker until `stop`, and start it again whenever it has ended before. Return whether it has ended with
        exit code 0 after `stop`; True if it was not running then."""
        backoff = Backoff(*self.rest_s)
        while not stop.is_set():
            began = monotonic()
            process = self._running[number] = await self.start(number)
            if stop.is_set():
                # it was started while the others were told
                _signal(process, signal.SIGTERM)
            code = await process.wait()
            del self._running[number]
            if stop.is_set():
                return code == 0
            if monotonic() - began >= STEADY_S:
                backoff.reset()
            self.restarts += 1
            log.error(
                "a worker has ended by itself and is started again",
                worker=number,
                pid=process.pid,
                code=code,
                restarts=self.restarts,
            )
            await backoff.rest(stop)
        return True


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    if process.returncode is None:
        process.send_signal(number)
