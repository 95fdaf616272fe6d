"""Batches of a stream: by number, by time, and what is left when the loop over them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from structlog.testing import capture_logs

from overlay.faust.batches import EventSource
from overlay.faust.tracking import DeliveredEvent


class Queue:
    """Numbers in place of events; None ends the stream. `is_closed`: the loop over them has ended."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[int | None] = asyncio.Queue()
        self.is_closed = False

    def put(self, *items: int | None) -> None:
        for item in items:
            self._items.put_nowait(item)

    async def iterate(self) -> AsyncGenerator[int, None]:
        try:
            while (item := await self._items.get()) is not None:
                yield item
        finally:
            self.is_closed = True

    def open(self) -> Any:
        return EventSource(cast("AsyncGenerator[DeliveredEvent, None]", self.iterate()))


async def test_a_batch_is_full() -> None:
    queue = Queue()
    queue.put(1, 2, 3, 4, 5)
    source = queue.open()
    for wanted in ([1, 2], [3, 4]):
        assert await source.take(2, 60.0) == wanted
        source.forget()
    assert await source.take(1, None) == [5]


async def test_a_batch_ends_some_time_after_its_first_event() -> None:
    queue = Queue()
    source = queue.open()
    taking = asyncio.ensure_future(source.take(3, 0.01))
    await asyncio.wait({taking}, timeout=0.05)
    assert not taking.done()  # there is no first event yet
    queue.put(1)
    assert await taking == [1]
    source.forget()
    # what was waited for meanwhile is the next batch's
    queue.put(2, None)
    assert await source.take(1, 0.01) == [2]
    source.forget()
    assert await source.take(1, 0.01) == []
    assert queue.is_closed


async def test_what_is_left_in_the_end() -> None:
    for with_shown, wanted in ((True, [1, 2]), (False, [])):
        queue = Queue()
        queue.put(1, 2)
        source = queue.open()
        assert await source.take(2, None) == [1, 2]
        assert await source.close(with_shown=with_shown) == wanted
        assert queue.is_closed


async def test_events_of_a_batch_that_was_not_full_are_left() -> None:
    queue = Queue()
    queue.put(1, 2)
    source = queue.open()
    taking = asyncio.ensure_future(source.take(3, None))
    await asyncio.wait({taking}, timeout=0.05)
    taking.cancel()
    await asyncio.wait({taking})
    queue.put(3)
    assert await source.close(with_shown=True) in ([1, 2], [1, 2, 3])
    assert queue.is_closed


async def test_a_batch_that_is_done_with_is_not_left() -> None:
    queue = Queue()
    queue.put(1)
    source = queue.open()
    assert await source.take(1, None) == [1]
    source.forget()
    assert await source.close(with_shown=True) == []


async def test_an_error_behind_a_batch_takes_no_event_along() -> None:
    """The agent has ended by an error of its own meanwhile, and its events are to be delivered again."""
    gate = asyncio.Event()

    async def iterate() -> AsyncGenerator[int, None]:
        yield 1
        await gate.wait()
        raise ValueError("the next one cannot be read")

    source: Any = EventSource(cast("AsyncGenerator[DeliveredEvent, None]", iterate()))
    assert await source.take(2, 0.01) == [1]
    gate.set()
    await asyncio.wait({source._ahead})
    with capture_logs() as logs:
        assert await source.close(with_shown=True) == [1]
    assert "the next one cannot be read" in str(logs)


async def test_a_close_that_is_cancelled_says_so() -> None:
    """The event that is read ahead takes its time to end."""
    gate = asyncio.Event()

    async def iterate() -> AsyncGenerator[int, None]:
        yield 1
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    source: Any = EventSource(cast("AsyncGenerator[DeliveredEvent, None]", iterate()))
    assert await source.take(2, 0.01) == [1]
    closing = asyncio.ensure_future(source.close(with_shown=True))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing}, timeout=5)
    gate.set()
    assert closing.cancelled()
