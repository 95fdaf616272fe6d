"""The message buffer between the receiving thread and the application: a bounded queue of batches.

A batch is taken whole and handed out record by record. So no lock is needed per message. The
receiving thread can still tell up to where messages have been handed out, which is what it commits
(membership.py).

Records leave a batch as they are handed out, and no message object is made before. This is for the
garbage collector: it looks at thousands of waiting objects again and again, which costs more than
receiving them did.

Partitions may move to another member of the group while their records are buffered. Records that
were not handed out are dropped then, because the new owner reads them as well.
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
    """Records of one partition, in order. `end`: the offset after all of them; of a batch without
    records, the end of the partition that was reached.
    """

    partition: int
    records: deque[KafkaRecord]
    end: int
    last: KafkaRecord | None = None
    """The record that was handed out last."""
    is_done: bool = False
    """Whether the application has asked for another record after the last one."""
    is_foreign: bool = False
    """Whether the partition has moved to another member."""

    def pop(self) -> KafkaRecord | None:
        """Take the next record out of the batch and return it. After the last one, return None and
        set `is_done`: the application has asked for more.
        """
        try:
            record = self.last = self.records.popleft()
        except IndexError:
            self.is_done = True
            return None
        return record

    def find_position(self, *, with_last: bool) -> int | None:
        """Return the offset to commit for the batch, which is the one after the records that were handed
        out: `end` once all were and the application has asked for more. None if nothing was handed out
        yet, or if the partition has moved to another member.

        `with_last`: whether the record handed out last counts as well, although the application may
        still work on it; if not, the offset is that of this record.
        """
        last = self.last
        if self.is_foreign or (last is None and not self.is_done):
            return None
        if self.is_done:
            return self.end
        assert last is not None
        return int(last.offset()) + with_last


class MessageBuffer:
    """The queue of batches between a receiving thread, which puts, and another thread or a loop, which takes. `room`:
    how many records may wait to be taken before there is no room; `put` may exceed it.
    """

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
        """Number of records for which there is room; negative if the buffer is overfull."""
        return self._room - self._waiting

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def put(self, batch: Batch) -> None:
        """Append a batch, whether there is room or not. After the end it is dropped."""
        with self._changed:
            if not self._is_ended:
                self._batches.append(batch)
                self._waiting += len(batch.records)
                self._tell()

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until there is room or the buffer is ended. Return True then, and False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.room > 0 or self._is_ended, timeout)

    def end(self, error: BaseException | None = None) -> None:
        """End the buffer. Batches that it has are still taken; after them `take` raises `error`, or
        returns None if there is none. Only the first call counts.
        """
        with self._changed:
            if not self._is_ended:
                self._is_ended, self._end = True, error
            self._tell()

    def take(self, timeout: float | None = None) -> Batch | None:
        """Return the next batch; blocks until there is one. Return None after `timeout` seconds (None:
        no limit), and when the buffer is ended (`is_ended`) and has no more batches. In the second
        case raise the error given to `end` instead, if there was one, at each call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._is_ended, timeout)
            return self._pop() if self._batches or self._is_ended else None

    async def take_async(self, timeout: float | None = None) -> Batch | None:  # noqa: ASYNC109 - as `take` has it
        """Return the next batch as `take` does, awaiting it in the caller's loop."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    with self._changed:
                        if self._batches or self._is_ended:
                            return self._pop()
                        wake = self._wake = asyncio.get_running_loop().create_future()
                    await wake
        except TimeoutError:
            return None

    def find_positions(self, *, with_last: bool) -> dict[int, int]:
        """Return, by partition, the offset to commit for the batches that were taken (see
        Batch.find_position); a partition without one is left out. Once the application has asked for
        more than a batch has, the batch's end is returned once and the batch is forgotten.

        `with_last`: whether the record handed out last counts as well, although the application may
        still work on it.
        """
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
        """Drop the records of partitions that have moved to another member. What was handed out of
        them is not reported by `find_positions` any more.
        """
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
            with suppress(RuntimeError):  # the loop is closed already
                wake.get_loop().call_soon_threadsafe(_wake, wake)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
