"""An event loop whose time is virtual: when nothing is left to run, it jumps to the next timer.

One loop runs one history. Its order of events depends on the seed alone:

- Timers of the same moment run in an order that is drawn from the seed.
- Futures and tasks are hashed by the order in which they were made, so that sets of them are walked in the same order each
  time. (Sets of texts need a fixed PYTHONHASHSEED.)
- Jobs for threads run on the loop, at a moment between their beginning and their end (`run_in_executor`).

The loop knows processes (process.py): it drops what belongs to a dead one, and holds back what belongs to a frozen one.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from heapq import heappop, heappush
from typing import Any

from .process import PROCESS, Process, State

MOST_STEPS = 2_000_000
"""Callbacks at one moment of virtual time, after which the loop gives up: something runs in circles without waiting."""
LEAST_S = 1e-9
"""Shortest wait of a timer."""
JOB_S = 0.002
"""Longest time that a job of a thread takes."""


class Deadlock(Exception):
    """Nothing is left that could ever run, and the history has not ended; or time stands still while code runs on."""


class Future(asyncio.Future):  # type: ignore[type-arg]
    """A future whose hash is a number that the loop gives out at the first use."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
            return self.number


class Task(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is a number that the loop gives out at the first use."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
            return self.number


class Handle(list[Any]):
    """Something to run: callback, arguments, context. Empty once it is cancelled; the loop skips it then.

    A list and no asyncio.Handle: Python makes one without running code of ours.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self.clear()

    def cancelled(self) -> bool:
        return not self


class Loop(asyncio.BaseEventLoop):
    """A loop of virtual time. `now` is in seconds."""

    # asyncio's own
    _ready: deque[Handle]
    _stopping: bool

    def __init__(self, seed: int, start_s: float = 1_000.0) -> None:
        super().__init__()
        self.now = start_s
        self.chance = random.Random(seed)
        """Of the loop and the network; code under test draws from the module `random`, which clock.py seeds."""
        self.steps = 0
        """Callbacks run so far."""
        self.faults: list[dict[str, Any]] = []
        """What reached the loop's exception handler, such as exceptions of tasks that were never looked at."""
        self._timers: list[tuple[float, float, int, Handle]] = []
        self.numbers = itertools.count(1)
        self._draw = self.chance.random
        self.is_over = False
        self.set_exception_handler(self._note_fault)

    def _note_fault(self, _: Any, context: dict[str, Any]) -> None:
        if not self.is_over:
            self.faults.append(context)

    # time

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        timer = Handle((callback, args, copy_context() if context is None else context))
        if not self.is_over:
            heappush(self._timers, (when, self._draw(), next(self.numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        # a wait that is too short to change the sum would let code that waits for its rest run on for ever
        when = self.now + max(delay, LEAST_S) if delay > 0 else self.now + delay
        timer = Handle((callback, args, copy_context() if context is None else context))
        if not self.is_over:
            heappush(self._timers, (when, self._draw(), next(self.numbers), timer))
        return timer

    # what runs next

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle((callback, args, copy_context() if context is None else context))
        if not self.is_over:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Run until the loop is asked to stop. Raises Deadlock."""
        ready, timers, running = self._ready, self._timers, State.RUNNING
        steps_here = 0
        while not self._stopping:
            if not ready:
                while timers and not timers[0][3]:
                    heappop(timers)
                if not timers:
                    raise Deadlock("nothing is left that could run")
                when = timers[0][0]
                if when > self.now:
                    self.now = when
                    steps_here = 0
                while timers and timers[0][0] <= self.now:
                    ready.append(heappop(timers)[3])
            # as many as are ready now: what they add runs after the timers that are due by then
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle:
                    continue
                callback, args, context = handle
                process = context.get(PROCESS)
                if process is not None and process.state is not running:
                    process.held.append(handle)
                    continue
                try:
                    context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
                    self.call_exception_handler({"message": f"in callback {callback!r}", "exception": error})
                self.steps += 1
                steps_here += 1
            if steps_here > MOST_STEPS:
                raise Deadlock(f"{steps_here} callbacks ran at {self.now:.3f} s, and time stands still")

    # futures and tasks

    def create_future(self) -> Future:
        return Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> Task:
        return Task(coro, loop=self, name=name, context=context)

    def start(self, process: Process, coro: Coroutine[Any, Any, Any], name: str | None = None) -> Task:
        """Run a coroutine as a part of a process, and so all that it starts."""
        return self.create_task(coro, name=name or process.name, context=process.context.copy())

    # threads

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a function on the loop, and give its result a little later.

        When the caller is cancelled in between, the function has run all the same, as in a thread.
        """
        future = self.create_future()
        span = self.chance.random() * JOB_S
        begins = self.chance.random() * span
        self.call_later(begins, self._run_job, future, span - begins, func, args)
        return future

    def _run_job(self, future: Future, rest: float, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return  # it waited for a thread still
        try:
            result, error = func(*args), None
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # noqa: BLE001 - raised again by the caller
            result, error = None, raised
        self.call_later(rest, _settle, future, result, error)

    # processes

    def kill(self, process: Process) -> None:
        """End a process as `kill -9` does: nothing of it runs any more, and its connections break."""
        process.state = State.DEAD
        for callback in process.dead_callbacks:
            callback()
        process.dead_callbacks.clear()

    def freeze(self, process: Process) -> None:
        """Let nothing of a process run until `thaw`. Its timers expire meanwhile."""
        if process.state is State.RUNNING:
            process.state = State.FROZEN

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on with all that has come up meanwhile."""
        if process.state is State.FROZEN:
            process.state = State.RUNNING
            self._ready.extend(process.held)
            process.held.clear()

    # the end

    def discard(self) -> None:
        """Forget all that has not ended, so that nothing of it has an effect. The loop is closed afterwards.

        Coroutines that are closed run their `finally` blocks; here these can start nothing and their errors are dropped.
        """
        self.is_over = True
        self._ready.clear()
        self._timers.clear()
        tasks = asyncio.all_tasks(self)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        # else `asyncio.gather` in a `finally` block makes another loop, which stays open
        asyncio.set_event_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())
                tasks.clear()
                gc.collect()
        finally:
            sys.unraisablehook = hook
            asyncio.set_event_loop(None)
        self.close()


def _settle(future: Future, result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _close(coro: Any) -> None:
    """Close a coroutine that waits. It may wait again in a `finally` block, which Python refuses once a time."""
    for _ in range(100):
        try:
            coro.close()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: BLE001 - the history is over
            continue
        return
