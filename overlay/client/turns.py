"""A guard against overlapping iterations of one subscription or reading.

If two loops took messages from one subscription at the same time, each would take over the other's
remainder. Some messages would be returned by neither loop, and what the group commits would be
wrong. Only overlapping calls are refused, whatever threads they are in. So a loop may be left and
begun again, even in another thread, and messages may be acked in any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from overlay.errors import OverlayError

T = TypeVar("T")


class ConcurrentIteration(OverlayError, RuntimeError):
    """Two iterations of one subscription, pull consumer, ordered consumer or reading overlap; calls of a pull
    consumer's `fetch` count as well. The application acts.
    """


class IterationGuard:
    """A `with` block that only one caller at a time may enter. A second caller does not wait: it
    gets ConcurrentIteration.

    `what`: the thing iterated over, for the message. `instead`: what to do for a second loop, for
    the message.
    """

    __slots__ = ("_instead", "_lock", "_what", "leave")

    def __init__(self, what: str, instead: str) -> None:
        self._what, self._instead = what, instead
        self._lock = threading.Lock()
        self.leave: Callable[[], None] = self._lock.release
        """Leave the block. For code that runs once per message and cannot afford a `with` block."""

    def enter(self) -> None:
        """Enter the block; `leave` ends it. Raises ConcurrentIteration if any caller is in it, even the
        same one.
        """
        if not self._lock.acquire(False):
            raise ConcurrentIteration(
                f"{self._what}: another loop is taking the next one at this moment. One iteration at a time; {self._instead}"
            )

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class AsyncIteration(Generic[T]):
    """An asynchronous iterator over what the coroutine function `take` returns, until that is None: as
    `iter(take, None)` is for a function.
    """

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[], Awaitable[T | None]]) -> None:
        self._take = take

    def __aiter__(self) -> AsyncIteration[T]:
        return self

    async def __anext__(self) -> T:
        if (item := await self._take()) is None:
            raise StopAsyncIteration
        return item
