"""Waits that neither lose a cancellation nor leave anything behind.

Before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes in the same round of the loop as what it waits
for. Whoever cancelled then waits for a task that goes on. `asyncio.timeout` does not.

`asyncio.gather` raises the first error and lets the others run on, into what their caller has closed since.

`asyncio.to_thread` gives up its wait when it is cancelled, and the thread goes on. Where that thread decodes into buffers
that are used again, the next to use them finds somebody else in them: torn records, and in compiled code, which
checks no bounds, the end of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

from .clock import monotonic

Params = ParamSpec("Params")
Result = TypeVar("Result")


async def finish_in_thread(
    function: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
) -> Result:
    """`function(*args, **kwargs)` in another thread. A cancellation is obeyed when the function has returned: use it for
    what takes milliseconds, not for waiting.

    Raises what the function raises.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:  # asked again: still the thread comes first
                continue
        if not work.cancelled():
            work.exception()  # looked at, so that nobody reports it as never retrieved
        raise


async def run_all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines side by side and return what they return, in their order.

    The first error cancels the others and is raised when all of them have ended.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def comes_true(condition: Callable[[], object], seconds: float, *, pause_s: float = 0.05) -> bool:
    """Look again and again, in this thread, for so long at most: whether it came true."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, None: for however long; whether it came."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Await `work` and return True, or give up on it when `stop` is set."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()
        return working in done
    finally:
        working.cancel()
        stopping.cancel()
