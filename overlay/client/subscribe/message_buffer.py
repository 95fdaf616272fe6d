"""Between the thread that receives and whoever takes messages: a bounded row of batches, and how far they have been taken.

A batch is taken whole and handed out one by one. So nothing is locked for a message, and the receiving thread can still say
up to where messages have been handed out, which is what it commits (membership.py).

Records leave a batch as they are handed out, and nothing is made of one before. That is for the garbage collector: objects
that wait in thousands are looked at again and again, and cost more than receiving them did.

Partitions may go to another member of the group while their records lie here. What nobody has is dropped, since the new
owner reads it as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from confluent_kafka import Message as KafkaRecord


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one partition, in order. `end`: the offset that all of them lie below."""

    partition: int
    records: deque[KafkaRecord]
    end: int
    last: KafkaRecord | None = None
    """The one that was handed out last."""
    is_done: bool = False
    """Whether the application has come back after the last one."""
    is_foreign: bool = False
    """Whether the partition has gone to somebody else."""

    def pop(self) -> KafkaRecord | None:
        """The next record; None after the last, which says that the application has come back."""
        try:
            record = self.last = self.records.popleft()
        except IndexError:
            self.is_done = True
            return None
        return record

    def find_position(self, *, with_last: bool) -> int | None:
        """The offset that all that was handed out lies below. `with_last`: the one in hand counts."""
        last = self.last
        if self.is_foreign or (last is None and not self.is_done):
            return None
        if self.is_done:
            return self.end
        assert last is not None
        return int(last.offset()) + with_last


class MessageBuffer:
    """One thread puts, another one or a loop takes. `room`: records that may wait."""

    def __init__(self, room: int) -> None:
        self._room, self._waiting = room, 0
        self._batches: deque[Batch] = deque()
        self._handed: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._end: BaseException | None = None
        self._is_ended = False
        self._wake: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        return self._room - self._waiting

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def put(self, batch: Batch) -> None:
        """Whether there is room or not. After the end nothing is taken in."""
        with self._changed:
            if not self._is_ended:
                self._batches.append(batch)
                self._waiting += len(batch.records)
                self._tell()

    def wait_for_room(self, timeout: float) -> bool:
        """Whether there is room, within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.room > 0 or self._is_ended, timeout)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes. What lies here is still taken, then the error is raised. The first end counts."""
        with self._changed:
            if not self._is_ended:
                self._is_ended, self._end = True, error
            self._tell()

    def take(self) -> Batch | None:
        """The next batch; waits for it. None at the end. Raises what ended it."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._is_ended)
            return self._pop()

    async def take_async(self) -> Batch | None:
        """As `take`, in the caller's loop."""
        while True:
            with self._changed:
                if self._batches or self._is_ended:
                    return self._pop()
                wake = self._wake = asyncio.get_running_loop().create_future()
            await wake

    def find_positions(self, *, with_last: bool) -> dict[int, int]:
        """By partition, how far its records have been handed out; those only of which some were, since the last call or so."""
        found: dict[int, int] = {}
        with self._changed:
            handed = list(self._handed)
        for batch in handed:
            is_done = batch.is_done
            if (position := batch.find_position(with_last=with_last)) is not None:
                found[batch.partition] = position
            if is_done:
                self._handed.remove(batch)
        return found

    def drop(self, partitions: Collection[int]) -> None:
        """Partitions have gone to somebody else."""
        with self._changed:
            for batch in (*self._handed, *self._batches):
                if batch.partition in partitions:
                    batch.is_foreign = True
                    batch.records.clear()
            self._waiting = sum(len(batch.records) for batch in self._batches)
            self._changed.notify_all()

    def _pop(self) -> Batch | None:
        if not self._batches:
            if self._end is not None:
                raise self._end
            return None
        batch = self._batches.popleft()
        self._handed.append(batch)
        self._waiting -= len(batch.records)
        self._changed.notify_all()
        return batch

    def _tell(self) -> None:
        self._changed.notify_all()
        wake, self._wake = self._wake, None
        if wake is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                wake.get_loop().call_soon_threadsafe(_wake, wake)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
