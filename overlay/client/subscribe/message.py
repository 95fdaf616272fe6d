"""A message for an application: the contents of a delivery, and the methods that settle it.

Nothing of a message is parsed before the application asks for it. At two hundred thousand messages
a second there is no time to parse what most applications never use. The token, which every message
needs, is the last header of the record.

The methods are JetStream's, and so is the rule that a message can be settled only once. A second
ack, nak or term would be about a delivery that is over. `in_progress` may be called any number of
times before that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from confluent_kafka import Message as KafkaRecord

from overlay.client.arguments import Delay, check_wait, write_delay
from overlay.client.html import write_sheet
from overlay.client.texts import show_content
from overlay.consumer.acks import Verb, cut_reason
from overlay.errors import OverlayError
from overlay.kafka.header_names import FULL, SUBJECT, TOKEN

from .ack_answers import AnswerWait
from .kind import FlowRequest

OURS = frozenset({SUBJECT, TOKEN, *FULL})
"""Headers that the overlay adds to a delivery."""
ACK_TIMEOUT_S = 5.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AlreadySettled(OverlayError):
    """A message that was acked, nakked or terminated is to be settled again, or `in_progress` is
    called for it. The application has to change; trying again does not help.
    """


class NoAckWanted(OverlayError):
    """A nak, term, progress report or double ack of a message whose consumer has `ack_policy: none`
    or `flow_control`, and so ignores them.

    The application acts.
    """


class BadToken(OverlayError, ValueError):
    """A record of an output topic, or a pulled message, has an invalid token.

    The owner of the application that wrote it acts.
    """


@dataclass(frozen=True, slots=True)
class Metadata:
    """The contents of a delivery's token. `timestamp`: of the source record, UTC."""

    stream: str
    consumer: str
    sequence: int
    """In the stream."""
    consumer_sequence: int
    """Among the deliveries of the consumer, redeliveries included."""
    num_delivered: int
    """1 at the first delivery."""
    num_pending: int
    """Matching messages that were not delivered yet; 0 if the number was unknown."""
    timestamp: datetime


def read_metadata(token: bytes) -> Metadata:
    """Return the contents of an ack token, of either version. Raises BadToken."""
    try:
        parts = token.decode().split(".")
        stream, consumer, *rest = parts[2:] if len(parts) == 9 else parts[4:11]
        deliveries, sequence, consumer_sequence, time, pending = map(int, rest)
        timestamp = _EPOCH + timedelta(microseconds=time // 1_000)
    except (ValueError, OverflowError) as error:
        raise BadToken(f"not a token: {token[:200]!r}") from error
    return Metadata(stream, consumer, sequence, consumer_sequence, deliveries, pending, timestamp)


class Acks(Protocol):
    """The receiver of acks. Tokens are those of messages that were handed out to the application.

    All methods queue, and return at once; only `ask` may block, to connect. They may be called from any thread. If
    the consumer's ack policy is `none` or `flow_control`, `ack` does nothing, and `tell` and `ask` raise NoAckWanted.
    Otherwise they raise Closed if acks cannot be sent, as after the end of a subscription. `ask` also raises
    SourceUnavailable and CredentialsRefused.

    `verb`: nak, term or progress. `text`: the delay of a nak as `write_delay` returns it, or the
    reason of a term.
    """

    def ack(self, token: bytes) -> None: ...

    def tell(self, token: bytes, verb: Verb, text: str = "") -> None: ...

    def ask(self, token: bytes) -> AnswerWait:
        """Queue an ack that the service answers, and return the wait for that answer."""
        ...

    def answer_flow(self, flow: FlowRequest) -> None:
        """Queue the answer to a flow control request. Call it when the application has taken all messages before the
        request: with `ack_policy: flow_control` the answer acks them.
        """
        ...


class Delivered:
    """A delivery of a message: its contents, and whether it was acked, nakked or terminated. The
    base of Message and AsyncMessage, which have the methods to do so.
    """

    __slots__ = ("_acks", "_is_settled", "_record", "_token")
    _added = OURS
    """Names of headers that the source record did not have."""

    def __init__(self, record: KafkaRecord, token: bytes, acks: Acks) -> None:
        self._record, self._token, self._acks = record, token, acks
        self._is_settled = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject} {self.token}>"

    def _repr_html_(self) -> str:
        """Return the contents as HTML, for notebooks. Raises BadToken."""
        about = self.metadata
        headers = [name if value is None else f"{name}={show_content(value)}" for name, value in self.headers]
        return write_sheet(
            [
                ("subject", self.subject),
                ("consumer", f"{about.stream}/{about.consumer}"),
                ("sequence", f"{about.sequence:,}"),
                ("consumer_sequence", f"{about.consumer_sequence:,}"),
                ("num_delivered", f"{about.num_delivered:,}"),
                ("timestamp", about.timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")),
                ("key", "" if self.key is None else show_content(self.key)),
                ("headers", " ".join(headers)),
                ("value", "" if self.value is None else show_content(self.value)),
                ("is_settled", str(self.is_settled)),
            ]
        )

    @property
    def subject(self) -> str:
        """The subject of the message in the stream."""
        found: bytes = next(value for name, value in reversed(self._record.headers()) if name == SUBJECT)
        return found.decode()

    @property
    def value(self) -> bytes | None:
        found: bytes | None = self._record.value()
        return found

    @property
    def data(self) -> bytes:
        """The value as NATS clients have it: b"" if it is null."""
        return self.value or b""

    @property
    def key(self) -> bytes | None:
        found: bytes | None = self._record.key()
        return found

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the source record without those that the overlay added, in order, with
        repetitions. `Nats-Msg-Size` and `Nats-Pin-Id` stay, if the overlay has added these.
        """
        return [(name, value) for name, value in self._record.headers() if name not in self._added]

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of this name, of those in `headers`. None if there is none, or if its value
        is null.
        """
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def token(self) -> str:
        """The ack token, by which another process can ack the message (Control.ack)."""
        return self._token.decode()

    @property
    def metadata(self) -> Metadata:
        """The contents of the token. Raises BadToken."""
        return read_metadata(self._token)

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset of the record that brought the message, not of the source record. That of a pulled
        message is in the topic of answers.
        """
        record = self._record
        return record.topic(), record.partition(), record.offset()

    @property
    def is_settled(self) -> bool:
        """Whether the message was acked, nakked or terminated through this object."""
        return self._is_settled

    def _settle(self, verb: Verb, text: str = "") -> None:
        self._check()
        self._acks.tell(self._token, verb, text)
        self._is_settled = True

    def _progress(self) -> None:
        self._check()
        self._acks.tell(self._token, Verb.PROGRESS)

    def _check(self) -> None:
        if self._is_settled:
            raise AlreadySettled(f"message {self.token} is settled already: one ack, nak or term a message")


class Message(Delivered):
    """A message of a `for` loop. Its methods queue an ack, nak, term or progress report and return
    at once; it is sent within milliseconds. Only `ack_sync` waits. All raise Closed once the
    subscription is closed, unless the ack policy is `none` or `flow_control`: then `ack` does
    nothing, and the others raise NoAckWanted.
    """

    __slots__ = ()

    def ack(self) -> None:
        """Queue an ack of the message. Once the service has committed it, the message is never
        delivered again. If the consumer's ack policy is `none` or `flow_control`, nothing is sent.
        Raises AlreadySettled, and Closed if an ack would be sent.
        """
        if self._is_settled:
            self._check()
        self._acks.ack(self._token)
        self._is_settled = True

    def nak(self, delay: Delay | None = None) -> None:
        """Queue a request for redelivery, at once or after a delay. Raises AlreadySettled, Closed,
        NoAckWanted, and BadQuestion for a negative delay or one of more than 292 years.
        """
        self._settle(Verb.NAK, write_delay(delay))

    def term(self, reason: str = "") -> None:
        """Queue a request that the message is never delivered again. `reason`: for the service's
        advisory in `<prefix>.events`; the dead letter says only `term`. Raises AlreadySettled, NoAckWanted, Closed.
        """
        self._settle(Verb.TERM, cut_reason(reason))

    def in_progress(self) -> None:
        """Queue a report that the work on the message continues, so that its ack_wait begins again. May
        be called any number of times before the ack. Raises AlreadySettled, NoAckWanted, Closed.
        """
        self._progress()

    def ack_sync(self, timeout: float = ACK_TIMEOUT_S) -> None:
        """Ack the message and wait until the service has committed the ack; after that it is never
        redelivered.

        Raises AckTimeout after `timeout` seconds (the message may then be acked again), BadQuestion if
        that is not a number, AlreadySettled, NoAckWanted, Closed, SourceUnavailable, CredentialsRefused.
        """
        timeout = check_wait("timeout", timeout)
        self._check()
        with self._acks.ask(self._token) as answer:
            answer.wait(timeout)
        self._is_settled = True


class AsyncMessage(Delivered):
    """A message of an `async for` loop, with the methods of Message as coroutines."""

    __slots__ = ()

    async def ack(self) -> None:
        """Queue an ack of the message and return at once, as Message.ack does. Raises AlreadySettled, Closed."""
        if self._is_settled:
            self._check()
        self._acks.ack(self._token)
        self._is_settled = True

    async def nak(self, delay: Delay | None = None) -> None:
        """Queue a request for redelivery, at once or after a delay. Raises AlreadySettled, Closed,
        NoAckWanted, and BadQuestion for a negative delay or one of more than 292 years.
        """
        self._settle(Verb.NAK, write_delay(delay))

    async def term(self, reason: str = "") -> None:
        """Queue a request that the message is never delivered again. `reason`: for the service's
        advisory in `<prefix>.events`; the dead letter says only `term`. Raises AlreadySettled, NoAckWanted, Closed.
        """
        self._settle(Verb.TERM, cut_reason(reason))

    async def in_progress(self) -> None:
        """Queue a report that the work on the message continues, so that its ack_wait begins again. Raises AlreadySettled,
        NoAckWanted, Closed.
        """
        self._progress()

    async def ack_sync(self, timeout: float = ACK_TIMEOUT_S) -> None:  # noqa: ASYNC109 - as JetStream's clients have it
        """Ack the message and wait, without blocking the loop, until the service has committed the
        ack. Raises AckTimeout after `timeout` seconds (the message may then be acked again), and what
        Message.ack_sync raises.
        """
        timeout = check_wait("timeout", timeout)
        self._check()
        # the first call opens a connection, which may take a while
        asking = asyncio.ensure_future(asyncio.to_thread(self._acks.ask, self._token))
        try:
            waiting = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(_forget)
            raise
        with waiting as answer:
            await answer.wait_async(timeout)
        self._is_settled = True


def _forget(asking: asyncio.Future[AnswerWait]) -> None:
    """End the wait for an answer that no caller has any more, or take note of the error that came in its place."""
    if not asking.cancelled() and asking.exception() is None:
        asking.result().forget()
