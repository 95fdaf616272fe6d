"""The results of `read` and `read_async`: iterators of batches, with the progress of the reading.

The reader is written for an event loop. A synchronous reading runs a loop in a thread of its own,
so that it also works in a notebook, where a loop is running already. A channel with room for a few
batches connects the two threads. If it is full, the reader waits, then the fetcher behind it, and
then nothing more is fetched.

The thread has a reference to the channel but not to the reading. So a reading that is not used any
more is garbage-collected, and its finalizer ends the thread. At the interpreter's exit the same
finalizer does so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any

import pyarrow as pa

from overlay.client.connection import Connection, Connections
from overlay.client.html import write_line
from overlay.client.turns import ConcurrentIteration, IterationGuard

from .cells import write_records
from .reader import Batches, Progress

ROOM = 4
"""Most batches that wait to be taken."""
GLANCE_S = 3.0
"""Seconds for which a notebook waits for the first records of a reading that it shows."""
_INSTEAD = "call `read` again for a second loop, or hand out the batches of one"


class Channel:
    """A queue of at most ROOM batches, which `run` fills in the event loop of one thread, and from which
    another thread takes.

    The last item is the end: an error, or None.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(ROOM)
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self, lines: Connections, read: Callable[[Connection], Batches]) -> None:
        """Run `read` with a connection of `lines`, blocking this thread, and put its batches into
        the channel until they end or `stop` is called. The last item is then None. An error is not
        raised here, but put in as the last item, so that `take` raises it.
        """
        end: BaseException | None = None
        try:
            lines.run(lambda line: self._fill(read(line)))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes the batches
            end = error
        finally:
            self._begun.set()
            self._items.put(end)

    async def _fill(self, batches: Batches) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        async with aclosing(batches):
            async for batch in batches:
                await self._room.acquire()
                self._items.put(batch)

    def take(self, most_s: float | None = None) -> pa.RecordBatch | None:
        """Return the next batch, None once after the last one; blocks until there is one. Do not call it
        again after None or an error of `run`: it would block.

        Raises the error that ended `run`, and queue.Empty after `most_s` seconds without a batch (None:
        no limit).
        """
        item = self._items.get(timeout=most_s)
        if isinstance(item, BaseException):
            raise item
        if item is not None:
            self._call(self._room.release)
        return item

    def stop(self) -> None:
        """Cancel the reading, so that `run` ends soon. Waits until `run` has begun, not until it has ended."""
        self._begun.wait()
        if self._task is not None:
            self._call(self._task.cancel)

    def _call(self, function: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(function)


class Reading:
    """An iterator of RecordBatches. Reading begins with the construction, in a thread, which waits
    while ROOM batches have not been taken. It closes itself after the last batch and after an error.

        with client.read("FLIGHTS", limit=10) as batches: ...    # closed at the end of the block
        pyarrow.table(client.read("FLIGHTS"))                    # all at once; Polars and DuckDB take a reading as well

    Iterating raises what `read_batches` raises, and ConcurrentIteration if two threads iterate at
    once. `error`: what ended the reading; None while it runs and after a regular end.
    """

    def __init__(
        self, lines: Connections, read: Callable[[Connection], Batches], schema: pa.Schema, progress: Progress
    ) -> None:
        self.schema, self.progress = schema, progress
        self.error: Exception | None = None
        self._glimpsed: pa.RecordBatch | Exception | None = None
        self._channel = Channel()
        self._turn = IterationGuard("reading", _INSTEAD)
        thread = threading.Thread(target=self._channel.run, args=(lines, read), name="overlay-read", daemon=True)
        thread.start()
        self._finalizer = weakref.finalize(self, _end, self._channel, thread)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._turn:
            if not self._finalizer.alive:
                raise StopIteration
            try:
                batch = self._take()
            except Exception as error:
                self.error = error
                self.close()
                raise
            if batch is None:
                self.close()
                raise StopIteration
            return batch

    def _take(self) -> pa.RecordBatch | None:
        """Return the next batch, None after the last one; blocks until there is one. What `_glimpse` has taken comes first.
        Raises the error that ended the reading.
        """
        glimpsed, self._glimpsed = self._glimpsed, None
        if isinstance(glimpsed, Exception):
            raise glimpsed
        return self._channel.take() if glimpsed is None else glimpsed

    def _glimpse(self) -> pa.RecordBatch | Exception | None:
        """Return the next batch, or the error that comes in its place (not raised), and keep it for the
        iteration. None if none comes within GLANCE_S seconds, or if there is no more.
        """
        with self._turn:
            if self._glimpsed is None and self._finalizer.alive:
                try:
                    self._glimpsed = self._channel.take(GLANCE_S)
                except queue.Empty:
                    return None
                except Exception as error:  # noqa: BLE001 - the iteration raises it
                    self._glimpsed = error
                if self._glimpsed is None:
                    self.close()
            return self._glimpsed

    def _repr_html_(self) -> str:
        """Return the next batch as HTML, for notebooks, or a line that says why there is none. Waits up to GLANCE_S seconds.
        The iteration still returns that batch.
        """
        try:
            found = self._glimpse() if self._finalizer.alive else None
        except ConcurrentIteration:
            return write_line(f"a reading that another loop iterates over; {self.progress.matched:,} records so far")
        if isinstance(found, Exception):
            return write_line(f"{type(found).__name__}: {found}")
        if found is not None:
            return write_line("a reading; its next batch:") + write_records(found)
        state = "no record yet" if self._finalizer.alive else f"at its end, with {self.progress.matched:,} records"
        return write_line(f"a reading, {state}")

    def close(self) -> None:
        """Stop reading, drop the batches that were not taken, and wait for the end of the reading's thread. The iteration
        is then over, without an error.

        May be called again, and from another thread.
        """
        self._finalizer()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def to_table(self) -> pa.Table:
        """Return the batches that were not taken yet, up to the end of the reading, as one table. With `follow` and no
        `limit` there is no end. Raises what iterating raises.
        """
        return pa.Table.from_batches(list(self), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a stream of the batches that were not taken yet, by Arrow's PyCapsule interface, by which
        libraries exchange batches.

        Waits for the first batch, and raises what iterating raises. Arrow passes an error of a later
        batch on as text: the library that reads the stream raises an exception of its own with it,
        as pyarrow does with ArrowInvalid. `error` has the original.
        """
        first = itertools.islice(self, 1)
        batches = itertools.chain(list(first), self)
        reader = pa.RecordBatchReader.from_batches(self.schema, batches)
        return reader.__arrow_c_stream__(requested_schema)


def _end(channel: Channel, thread: threading.Thread) -> None:
    channel.stop()
    # the garbage collector may run in any thread, also in that of the reading
    if thread is not threading.current_thread():
        thread.join()


class AsyncReading:
    """An asynchronous iterator of RecordBatches, which reads in the caller's loop while it is iterated
    over. Iterating raises what `read_batches` raises, and ConcurrentIteration if two tasks iterate at
    once.

    A call that is cancelled, as by `asyncio.wait_for`, loses nothing: the reading goes on, and the next
    call returns the batch. It closes its connection at its end. To leave early, close it by `async
    with` or `aclose`; one that is garbage-collected closes by itself.
    """

    def __init__(self, batches: Batches, schema: pa.Schema, progress: Progress) -> None:
        self.schema, self.progress = schema, progress
        self._batches = batches
        self._next: asyncio.Future[pa.RecordBatch] | None = None
        """The batch that a call has asked for, and has not returned yet."""
        self._turn = IterationGuard("reading", _INSTEAD)

    def __aiter__(self) -> AsyncReading:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        with self._turn:
            if self._next is None:
                # a task of its own: a cancelled generator would be at its end, as if all had been read
                self._next = asyncio.ensure_future(anext(self._batches))
            await asyncio.wait({self._next})
            taken, self._next = self._next, None
            return taken.result()

    async def aclose(self) -> None:
        """Stop reading and close the connection. Raises ConcurrentIteration while a task iterates."""
        with self._turn:
            asked, self._next = self._next, None
            if asked is not None:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            await self._batches.aclose()

    def __del__(self) -> None:
        # otherwise a call that was cancelled would read on though its result is lost
        if self._next is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._next.get_loop().call_soon_threadsafe(self._next.cancel)

    async def __aenter__(self) -> AsyncReading:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
