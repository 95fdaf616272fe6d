"""Readings in the caller's loop that are cancelled and closed, without Kafka."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.reader import Progress
from overlay.client.read.reading import AsyncReading
from overlay.errors import SourceUnavailable
from overlay.waits import until

SCHEMA = pa.schema({"number": pa.int64()})


class Source:
    """Batches of one number each, which come when a test lets them. `is_closed`: whether nothing reads any more."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[int | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def read(self) -> AsyncGenerator[pa.RecordBatch, None]:
        try:
            while (item := await self.items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield pa.record_batch([[item]], SCHEMA)
        finally:
            self.is_closed = True

    def open(self) -> AsyncReading:
        return AsyncReading(self.read(), SCHEMA, Progress())


async def take(reading: AsyncReading) -> int:
    (number,) = (await anext(reading))["number"].to_pylist()
    assert isinstance(number, int)
    return number


async def cancel_one(reading: AsyncReading) -> None:
    """Ask for a batch, and give up while there is none."""
    taking = asyncio.ensure_future(take(reading))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)


@given(st.lists(st.booleans(), max_size=8), st.booleans())
def test_a_cancelled_call_loses_nothing(cancels: list[bool], fails: bool) -> None:
    """`cancels`: whether a call was cancelled before each batch came. Not even the end is lost, nor an error."""

    async def run() -> None:
        source = Source()
        reading = source.open()
        for number, is_cancelled in enumerate(cancels):
            if is_cancelled:
                await cancel_one(reading)
            source.items.put_nowait(number)
            assert await take(reading) == number
        await cancel_one(reading)
        source.items.put_nowait(SourceUnavailable("away") if fails else None)
        with pytest.raises(SourceUnavailable if fails else StopAsyncIteration):
            await anext(reading)
        assert source.is_closed

    asyncio.run(run())


async def test_a_reading_is_closed_after_a_call_was_cancelled() -> None:
    source = Source()
    reading = source.open()
    await cancel_one(reading)
    before = source.is_closed
    await reading.aclose()
    assert (before, source.is_closed) == (False, True)
    with pytest.raises(StopAsyncIteration):
        await anext(reading)


async def test_a_reading_that_is_garbage_ends() -> None:
    source = Source()
    reading = source.open()
    await cancel_one(reading)
    del reading
    gc.collect()
    async with asyncio.timeout(60):
        await until(lambda: source.is_closed, pause_s=0.01)
