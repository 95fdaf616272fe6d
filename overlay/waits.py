"""Waits that neither lose a cancellation nor leave running work behind.

Before Python 3.12 `asyncio.wait_for` swallows a cancellation that arrives in the same iteration of
the event loop as the awaited result. The canceller then waits for a task that keeps running.
`asyncio.timeout` has no such fault.

`asyncio.gather` raises the first error and lets the other coroutines run on, using things that
their caller has closed meanwhile.

`asyncio.to_thread` stops waiting when it is cancelled, while its thread runs on. If that thread
decodes into buffers that are used again, two threads use them at once. The result is torn records,
or, since compiled code checks no bounds, the end of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from .clock import monotonic

Params = ParamSpec("Params")
Result = TypeVar("Result")

_MOST_DOUBLINGS = 20
"""A million times the shortest pause. Without a limit, the number would outgrow a float."""


def is_cancelled() -> bool:
    """Return whether the current task is being cancelled. A CancelledError alone does not tell: it
    may come from an awaited task that was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def finish_in_thread(
    function: Callable[Params, Result], /, *args: Params.args, **kwargs: Params.kwargs
) -> Result:
    """Return `function(*args, **kwargs)`, run in another thread. Raises what it raises.

    If the caller is cancelled, this waits until the function has returned, and raises
    CancelledError then. Use it for work of milliseconds, not for waiting.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:  # cancelled again: still wait for the thread
                continue
        if not work.cancelled():
            work.exception()  # retrieved, so that asyncio does not report it
        raise


async def finish_within(work: Coroutine[Any, Any, Result], seconds: float) -> Result:
    """Await `work`, without a time limit, and return its result. Raises what it raises.

    If the caller is cancelled, the work gets `seconds` more to end, and is cancelled after that.
    CancelledError is raised when it has ended. If the caller is cancelled once more, the work is
    cancelled at once, and its end is not awaited. Use it for work that leaves something open if it
    is cancelled.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([working], timeout=seconds)
        finally:
            working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        raise


async def run_all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines at the same time and return their results in the same order.

    The first error cancels the others. It is raised when all of them have ended.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def comes_true(condition: Callable[[], object], seconds: float, *, pause_s: float = 0.05) -> bool:
    """Wait until a condition is true, at most about `seconds`, blocking this thread. Return whether
    it became true. It is checked at once and every `pause_s` seconds.
    """
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        time.sleep(pause_s)  # no event reports what is waited for
    return True


async def until(condition: Callable[[], object], *, pause_s: float) -> None:
    """Wait without limit until a condition is true. It is checked at once and every `pause_s`
    seconds.

    For what no event reports. The caller sets the time limit.
    """
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(pause_s)


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, at most `seconds` (None: without limit). Return whether it is
    set; False means that the time is over.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def set_after(event: asyncio.Event, other: asyncio.Event) -> None:
    """Wait, without limit, until `event` is set, and then set `other`.

    A task of this lets a loop wait for one event instead of two, which would take two tasks each
    time.
    """
    await event.wait()
    other.set()


@dataclass(slots=True)
class Slices:
    """The parts of long work on the event loop, which does other work in between. A part takes about
    `seconds`."""

    seconds: float
    _began: float = field(default_factory=monotonic)

    async def rest(self) -> None:
        """Let other tasks run if the present part has taken long enough. Call it between the steps
        of the work."""
        if monotonic() - self._began >= self.seconds:
            await asyncio.sleep(0)
            self._began = monotonic()


@dataclass(slots=True)
class Backoff:
    """Pauses between retries: the first takes `shortest_s` seconds, each further one twice as long,
    up to `longest_s`.

    `failures`: how many there were before the first pause, each of which doubles it, up to
    `longest_s`.
    """

    shortest_s: float
    longest_s: float
    failures: int = 0

    @property
    def pause_s(self) -> float:
        """The present pause, in seconds."""
        return min(self.shortest_s * 2.0 ** min(self.failures, _MOST_DOUBLINGS), self.longest_s)

    async def rest(self, stop: asyncio.Event | None = None) -> None:
        """Wait for the present pause, or until `stop` is set if that is sooner. The next pause is
        twice as long, up to `longest_s`.
        """
        pause = self.pause_s
        self.failures += 1
        if stop is None:
            await asyncio.sleep(pause)
        else:
            await is_set_within(stop, pause)

    def reset(self) -> None:
        """Make the next pause the shortest one again, after a success."""
        self.failures = 0


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Await `work` and return True; raises what it raises. If `stop` is set first, cancel the work,
    wait for its end, and return False.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()
        return working in done
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
