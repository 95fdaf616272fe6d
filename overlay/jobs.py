"""A thread that runs the jobs of one session without ever blocking the event loop.

`with ThreadPoolExecutor(...)` in a coroutine joins the thread on the event loop when the block
ends. If an error ends the block while a job runs, the whole process waits for that job: no fetch,
no commit, no heartbeat and no HTTP request of any other shard. `Jobs` waits for the thread by
awaiting it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")


def open_thread(name: str) -> Executor:
    """Return an executor that runs jobs one after the other in one thread with this name. A
    simulation of the service replaces this function by one without threads.
    """
    return ThreadPoolExecutor(1, name)


class Jobs:
    """A thread for the length of an `async with` block. Jobs run one at a time, in the order of
    submission.

        async with Jobs("pipeline") as jobs:
            outcome = await jobs.run(pipeline.run, tasks, now)

    The end of the block cancels the jobs that have not begun, and awaits the one that runs. If the
    block's task is cancelled meanwhile, that takes effect only after the job. So when the block has
    ended, no job uses what the block owns. From then on `run` raises RuntimeError.
    """

    def __init__(self, name: str) -> None:
        """Prepare a thread with this name; it starts with the first job."""
        self._executor = open_thread(name)
        self._jobs: set[Future[Any]] = set()

    async def run(self, function: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        """Run `function(*args, **kwargs)` in the thread, await its end and return its result.
        Raises what it raises.

        If the caller is cancelled, it stops waiting at once. A job that has begun still runs to its
        end; one that has not is dropped.
        """
        job = self._executor.submit(partial(function, *args, **kwargs))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return await asyncio.wrap_future(job)

    async def __aenter__(self) -> Jobs:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        running = [asyncio.wrap_future(job) for job in list(self._jobs) if not job.done()]
        cancelled: asyncio.CancelledError | None = None
        while any(not job.done() for job in running):
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as asked:  # raised again below, after the job has ended
                cancelled = asked
        for job in running:
            if not job.cancelled():
                job.exception()  # retrieved, since the caller of `run` was cancelled
        if cancelled is not None:
            raise cancelled


def run_apart(function: Callable[[], Result], name: str) -> Future[Result]:
    """Start a function in a new daemon thread, and return the future of its result or error; does
    not wait. For rare calls that may take long. The future cannot be cancelled.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from now on the future cannot be cancelled

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised again by the future
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
