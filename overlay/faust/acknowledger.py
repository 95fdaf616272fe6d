"""The acks of one consumer, sent after Kafka has what the agents sent.

An agent that sends to a topic only queues: Faust writes records later and flushes before it commits
offsets. An ack that overtook them would settle a message whose results a kill can still take away.
So tokens of acknowledged events are collected for some milliseconds, Faust's producer is flushed,
and then they go to the client library's AckSender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from faust import App
from mode import Service

from overlay.client.subscribe.ack_answers import AckAnswers, AnswerWait
from overlay.client.subscribe.ack_sender import AckSender, Closed
from overlay.client.subscribe.kind import FlowRequest
from overlay.client.subscribe.target import Target
from overlay.consumer.acks import Verb
from overlay.errors import OverlayError
from overlay.kafka.own_topics import acks_topic, reply_topic
from overlay.kafka.properties import Properties

LINGER_S = 0.01
"""Seconds for which tokens are collected before the producer is flushed."""


class Acknowledger(Service):
    """The receiver of one consumer's acks, a service of the application.

    It is added before the application starts, so it is among its first children and stops after the others: after the
    agents, which may still acknowledge, and after Faust's producer, which has then written everything. If Kafka
    refuses acks, the application crashes with the reason, because all later acks might be lost as well.
    """

    def __init__(self, app: App, kafka: Properties, prefix: str, target: Target, **options: Any) -> None:
        super().__init__(**options)
        self._app, self._kafka, self._target = app, kafka, target
        self._topic = acks_topic(prefix, target.head.stream)
        self._answers = AckAnswers(kafka, reply_topic(prefix))
        self._sender: AckSender | None = None
        self._waiting: deque[bytes] = deque()
        self._called = asyncio.Event()
        self._turn = asyncio.Lock()
        self._home: asyncio.AbstractEventLoop | None = None
        self._failure: OverlayError | None = None
        self._is_closed = False

    def open(self) -> None:
        """Open the sender of acks. Call it in the application's event loop, before any other method;
        further calls do nothing. Raises CredentialsRefused.
        """
        if self._sender is None:
            self._home = asyncio.get_running_loop()
            self._sender = AckSender(
                self._kafka, self._topic, self._target.head, self._target.policy, self._answers, self._hear_failure
            )

    def ack_later(self, token: bytes) -> None:
        """Queue an ack of the delivery with this token. It is sent after the next flush of Faust's
        producer. May be called from any thread. After the end of the application it is dropped, and
        the message is delivered again.
        """
        self._waiting.append(token)
        # while it is set, what sends the tokens has still to look at them; their number tells nothing, since two threads
        # may append at once
        if self._called.is_set() or self._home is None or self._home.is_closed():
            return
        if asyncio._get_running_loop() is self._home:
            self._called.set()
        else:
            self._home.call_soon_threadsafe(self._called.set)

    def ack(self, token: bytes) -> None:
        """Queue an ack of the delivery with this token, which is sent within milliseconds, without a flush of Faust's
        producer. Does nothing if the consumer takes no acks. Raises Closed, also if the application does not run.
        """
        self._find_sender().ack(token)

    def tell(self, token: bytes, verb: Verb, text: str = "") -> None:
        """Queue a nak, term or progress for the delivery with this token. `text`: the delay of a nak
        as `write_delay` returns it, or the reason of a term. Raises NoAckWanted, Closed.
        """
        self._find_sender().tell(token, verb, text)

    def ask(self, token: bytes) -> AnswerWait:
        """Queue an ack that the service answers once it has committed it, and return the wait for
        that answer. May block for seconds, to connect. Raises NoAckWanted, Closed,
        SourceUnavailable, CredentialsRefused.
        """
        return self._find_sender().ask(token)

    def answer_flow(self, flow: FlowRequest) -> None:
        """Queue the answer to a flow control request. Raises Closed."""
        self._find_sender().answer_flow(flow)

    def _find_sender(self) -> AckSender:
        if self._sender is None:
            raise Closed("the application does not run, so its messages cannot be settled")
        return self._sender

    @Service.task
    async def _run(self) -> None:
        while not self.should_stop:
            await self.wait(self._called)  # type: ignore[arg-type] # mode's own events are asyncio's
            self._called.clear()
            if self._failure is not None:
                raise self._failure
            if self._waiting:
                await asyncio.sleep(LINGER_S)
                await self._pass_on()

    async def _pass_on(self) -> None:
        async with self._turn:
            tokens = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if tokens and self._sender is not None and not self._is_closed:
                try:
                    await self._app.producer.flush()
                except asyncio.CancelledError:
                    # they wait for the next flush, before those that have come since
                    self._waiting.extendleft(reversed(tokens))
                    raise
                for token in tokens:
                    self._sender.ack(token)

    async def on_stop(self) -> None:
        """Send what is queued, wait until Kafka has it, and close the sender."""
        await self._pass_on()
        async with self._turn:
            self._is_closed = True
            if self._sender is not None:
                await asyncio.to_thread(self._sender.close)
        await asyncio.to_thread(self._answers.close)

    def _hear_failure(self, error: OverlayError) -> None:
        if self._home is not None and not self._home.is_closed():
            self._home.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: OverlayError) -> None:
        self._failure = self._failure or error
        self._called.set()
