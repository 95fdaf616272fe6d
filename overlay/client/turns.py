"""One iteration at a time: what is handed out message by message or batch by batch cannot be shared by two loops.

Two loops that take from one subscription or reading at once would take over each other's remainder: messages would be handed
out by neither, and what the group commits would be wrong. What counts is that two calls overlap, not which thread calls. So a
loop may be left and begun again, in another thread as well, and messages may be acked in any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from overlay.errors import OverlayError

T = TypeVar("T")


class ConcurrentIteration(OverlayError, RuntimeError):
    """Two iterations of one subscription, ordered consumer or reading overlap. The application acts."""


class Turn:
    """Whose turn it is to take the next one: a `with` block that one caller at a time may enter. Raises ConcurrentIteration.

    `what`: that which is iterated over; `instead`: what to do for a second loop.
    """

    __slots__ = ("_instead", "_lock", "_what", "leave")

    def __init__(self, what: str, instead: str) -> None:
        self._what, self._instead = what, instead
        self._lock = threading.Lock()
        self.leave: Callable[[], None] = self._lock.release
        """What the end of the block does, for what is entered once a message and cannot afford the block."""

    @property
    def is_taken(self) -> bool:
        """Whether a caller is within."""
        return self._lock.locked()

    def enter(self) -> None:
        """What the beginning of the block does."""
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
    """For `async for`, what `iter(take, None)` is for `for`: `take` returns the next one, None at the end."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[], Awaitable[T | None]]) -> None:
        self._take = take

    def __aiter__(self) -> AsyncIteration[T]:
        return self

    async def __anext__(self) -> T:
        if (item := await self._take()) is None:
            raise StopAsyncIteration
        return item
