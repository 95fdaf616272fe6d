"""An executor of one thread without a thread: jobs run on the simulation's loop, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from .loop import JOB_S, Loop


class InlineExecutor(Executor):
    """Stands in for `ThreadPoolExecutor(1)`. A job takes a time drawn from the seed and runs at a moment within it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = deque()
        self._is_busy = False
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job. Raises RuntimeError after a shutdown."""
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._waiting.append((future, fn, args, kwargs))
        if not self._is_busy:
            self._is_busy = True
            self._next()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs. Nothing is waited for: the loop cannot be held up."""
        self._is_shut = True
        while cancel_futures and self._waiting:
            self._waiting.popleft()[0].cancel()

    def _next(self) -> None:
        while self._waiting:
            future, function, args, kwargs = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                span = self._loop.chance.random() * JOB_S
                begins = self._loop.chance.random() * span
                self._loop.call_later(begins, self._run, future, span - begins, function, args, kwargs)
                return
        self._is_busy = False

    def _run(
        self,
        future: Future[Any],
        rest: float,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # noqa: BLE001 - raised again by the caller
            error = raised
        self._loop.call_later(rest, self._end, future, result, error)

    def _end(self, future: Future[Any], result: Any, error: BaseException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        self._next()
