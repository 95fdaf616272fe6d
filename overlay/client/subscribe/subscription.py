"""`client.subscribe`: the messages of a push consumer, for `for` and for `async for`.

Receiving and committing (membership.py) and sending acks (ack_sender.py) have a thread each, so
that neither waits for what an application does with a message.

`where` is the third stage of filtering: a test in the application, after the chunk index and the
consumer's filter. It runs in the application's thread when a message is about to be handed out.
Messages that fail it are acked, unless it has settled them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from confluent_kafka import Message as KafkaRecord

from overlay.client.arguments import LONGEST_WAIT_S
from overlay.client.turns import AsyncIteration, IterationGuard
from overlay.kafka.message_headers import read_headers
from overlay.kafka.properties import Properties

from .ack_answers import AckAnswers
from .ack_sender import Closed
from .intake import OnSilence, RecordIntake
from .kind import RecordClassifier
from .message import Acks, AsyncMessage, Delivered, Message
from .message_buffer import Batch
from .target import Target

Where = Callable[[Delivered], bool]
PREFETCH = 2_000
JOIN_LOOK_S = 0.1
"""Seconds between two looks whether the group was joined, from when on `idle` counts."""

M = TypeVar("M", bound=Delivered)


class Subscription:
    """The messages of a push consumer. Its subscriptions share them by partitions of the output
    topic.

    Iterate by `for` or by `async for`.

    Leaving a loop keeps the messages that were not handed out for the next loop. Closing, or the
    end of a `with` block, returns them to the group. A subscription that is garbage-collected
    closes by itself. Loops may follow one another in different threads but may not overlap.
    Messages may be acked in any thread.

    `idle`: seconds without a message of the consumer after which a loop ends; None for a loop without
    an end. Only the time that a loop waits counts, and only after the subscription has joined its
    group. The next loop waits as long again. A call that was cancelled, as by `asyncio.wait_for`, stops
    the count, and the next call of the same loop goes on with it.

    The iteration raises ConcurrentIteration, CredentialsRefused, SourceUnavailable,
    HeartbeatsMissed if asked to, and what `where` raises.
    """

    def __init__(
        self,
        kafka: Properties,
        target: Target,
        ack_topic: str,
        answers: AckAnswers,
        where: Where | None = None,
        *,
        prefetch: int = PREFETCH,
        on_silence: OnSilence = OnSilence.FLAG,
        idle: float | None = None,
    ) -> None:
        self._where, self._kind = where, RecordClassifier(target.head)
        # locks take no infinite time
        self._idle = None if idle is None else min(idle, LONGEST_WAIT_S)
        # when the loop that waits has to end; None while none waits, and before the group is joined
        self._idle_until: float | None = None
        # of a loop that a cancellation has interrupted: seconds that it may still wait
        self._idle_left: float | None = None
        self._batch: Batch | None = None
        name = f"{target.head.stream}/{target.head.consumer}"
        self._turn = IterationGuard(
            f"subscription to {name}", "open another subscription, which shares the consumer's messages"
        )
        self._intake = RecordIntake(kafka, target, ack_topic, answers, prefetch=prefetch, on_silence=on_silence)

    @property
    def is_silent(self) -> bool:
        """Whether heartbeats of the consumer are missing now; False if it sends none."""
        return self._intake.is_silent

    @property
    def is_paused(self) -> bool:
        """Whether fetching is paused, because as many messages as `prefetch` says have been waiting for a while."""
        return self._intake.is_paused

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions of the output topic that are assigned to this subscription; empty before it
        has joined the group.
        """
        return self._intake.partitions

    @property
    def is_closed(self) -> bool:
        return self._intake.is_closed

    def __iter__(self) -> Iterator[Message]:
        self._idle_left = None
        return iter(self._take, None)

    def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        self._idle_left = None
        return AsyncIteration(self._take_async)

    def _take(self) -> Message | None:
        """Return the next message of a loop; blocks until there is one. None at the end of the loop: the subscription
        is closed, or `idle` seconds have passed. Raises ConcurrentIteration, the error that ended receiving, and what
        `where` raises.
        """
        self._turn.enter()
        try:
            while (batch := self._batch or self._wait()) is not None:
                self._batch = batch
                if (message := self._find_next(batch, Message)) is not None:
                    return message
                self._batch = None
            return None
        except BaseException:
            self._stop_count()
            raise
        finally:
            self._turn.leave()

    def _wait(self) -> Batch | None:
        """Return the next batch of records; blocks until there is one. None if the loop is to end: the subscription is
        closed, or `idle` seconds have passed without a message. Raises the error that ended receiving.
        """
        buffer = self._intake.message_buffer
        while True:
            batch = buffer.take(self._find_patience())
            if batch is not None or buffer.is_ended or self._is_idle():
                return batch

    async def _wait_async(self) -> Batch | None:
        """Return the next batch as `_wait` does, without blocking the caller's event loop."""
        buffer = self._intake.message_buffer
        while True:
            batch = await buffer.take_async(self._find_patience())
            if batch is not None or buffer.is_ended or self._is_idle():
                return batch

    def _find_patience(self) -> float | None:
        """Return how many seconds a loop may wait before it calls `_is_idle`; None if there is no limit. The first call
        after a message, and after the subscription has joined its group, begins the count of `idle` seconds, or goes on
        with one that was interrupted.
        """
        if self._idle is None:
            return None
        if not self._intake.has_joined:
            return min(self._idle, JOIN_LOOK_S)
        now = time.monotonic()
        if self._idle_until is None:
            left, self._idle_left = self._idle_left, None
            self._idle_until = now + (self._idle if left is None else left)
        return max(0.0, self._idle_until - now)

    def _is_idle(self) -> bool:
        """Return whether a loop has waited for `idle` seconds and has to end. If so, the count begins again for the next
        loop.
        """
        if self._idle_until is None or time.monotonic() < self._idle_until:
            return False
        self._idle_until = None
        return True

    def _stop_count(self) -> None:
        """Stop the count of `idle` seconds, because the call that waits was cancelled or interrupted. The same loop goes on
        with it; a new one begins anew.
        """
        if self._idle_until is not None:
            self._idle_left = self._idle_until - time.monotonic()
            self._idle_until = None

    async def _take_async(self) -> AsyncMessage | None:
        """Return the next message as `_take` does, without blocking the caller's event loop."""
        with self._turn:
            try:
                while (batch := self._batch or await self._wait_async()) is not None:
                    self._batch = batch
                    if (message := self._find_next(batch, AsyncMessage)) is not None:
                        return message
                    self._batch = None
                    # let other tasks of the loop run, however full the message buffer is
                    await asyncio.sleep(0)
                return None
            except BaseException:
                self._stop_count()
                raise

    def _find_next(self, batch: Batch, make: Callable[[KafkaRecord, bytes, Acks], M]) -> M | None:
        """Return the next message of a batch to hand out, None after the last one.

        Flow control requests are answered, messages that fail `where` are acked unless `where` has
        settled them, and other records are dropped. If acks cannot be sent any more, they are left
        out: the buffer then ends, with the error that is the reason.
        """
        where, acks, kind = self._where, self._intake.acks, self._kind
        while (record := batch.pop()) is not None:
            headers = read_headers(record)
            if (token := kind.find_token(headers)) is None:
                if flow := kind.find_flow(headers):
                    with suppress(Closed):
                        acks.answer_flow(flow)
                continue
            self._idle_until = None
            message = make(record, token, acks)
            if where is None or where(message):
                return message
            if not message.is_settled:
                with suppress(Closed):
                    acks.ack(token)
        return None

    def close(self) -> None:
        """Commit how far messages were handed out, leave the group, and send the queued acks;
        blocks until that is done. The iteration then ends.

        May be called again, and from another thread.
        """
        self._intake.close()

    async def aclose(self) -> None:
        """Close as `close` does, without blocking the loop."""
        await asyncio.to_thread(self._intake.close)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
