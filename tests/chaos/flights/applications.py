"""Programs that take messages through the client library and ack most of them.

An application ignores some messages, naks some, says that it is still at work on some, and leaves
its group now and then. It notes what it took and when it first acked, before it acks: so the notes
hold at least everything that was acked, and a message that the service counts as settled though no
note has it was settled without an ack.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from overlay.client.client import Client
from overlay.client.control.answers import Pulled
from overlay.client.subscribe.ack_answers import AckTimeout
from overlay.client.subscribe.message import Message
from overlay.client.subscribe.subscription import Subscription
from overlay.errors import OverlayError
from overlay.kafka.own_topics import acks_topic
from tests.oracle.push import parse_token

from .plan import NUMBER, STREAM, Consumer
from .producers import ClientLost, WatchedProducer

BATCH = 50
STAY_S = (10.0, 40.0)
PATIENCE_S = 60.0
EVERY = 10
"""Of how many messages one is acked where an ack stands for all before it."""


@dataclass(slots=True)
class Notes:
    """What the applications of one consumer did, by stream sequence. Times: seconds since 1970."""

    taken: dict[int, float] = field(default_factory=dict)
    """When a message was first taken."""
    acked: dict[int, float] = field(default_factory=dict)
    """When a message was first acked."""
    nakked: set[int] = field(default_factory=set)
    numbers: dict[int, set[int]] = field(default_factory=dict)
    """The numbers of the records that came under a sequence, of a consumer that is pulled from."""
    confirmed: dict[int, float] = field(default_factory=dict)
    """When `ack_sync` returned."""
    troubles: list[tuple[float, str, str]] = field(default_factory=list)
    """Errors that the client library raised: when, of which type, with which message."""


class Application(ABC):
    """A program that takes messages, in a thread of its own. `is_diligent`: ack everything from now on."""

    def __init__(self, open_client: Callable[[], Client], consumer: Consumer, notes: Notes, rng: random.Random):
        self._open_client, self._consumer, self._notes, self._rng = open_client, consumer, notes, rng
        self.is_diligent = False
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"application-{consumer.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more messages and wait for the thread."""
        self._stop.set()
        self._leave()
        self._thread.join(60)
        if self._thread.is_alive():
            raise AssertionError(f"an application of {self._consumer.name} did not end")
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._open_client() as client:
                while not self._stop.is_set():
                    try:
                        self._take(client)
                    except OverlayError as error:
                        # a service or a broker that is away; the next try goes on
                        self._notes.troubles.append((time.time(), type(error).__name__, str(error)))
                        self._stop.wait(0.5)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.error = error

    @abstractmethod
    def _leave(self) -> None:
        """Have `_take` return soon. Called in another thread."""

    @abstractmethod
    def _take(self, client: Client) -> None:
        """Take messages for a while."""

    def _draws_neglect(self, deliveries: int) -> float:
        """Return what decides how a message is treated: below 0.1 it is neglected in some way, at 1.0 it is acked."""
        return self._rng.random() if not self.is_diligent and deliveries < 3 else 1.0


class Subscriber(Application):
    """One member of a push consumer's group."""

    _subscription: Subscription | None = None

    def _leave(self) -> None:
        if (subscription := self._subscription) is not None:
            subscription.close()

    def _take(self, client: Client) -> None:
        """Take messages until it is time to leave the group."""
        until = time.monotonic() + self._rng.uniform(*STAY_S)
        with client.subscribe(self._consumer.name, stream=STREAM) as messages:
            self._subscription = messages
            for message in messages:
                self._settle(message)
                if self._stop.is_set() or (time.monotonic() > until and not self.is_diligent):
                    break
        self._subscription = None

    def _settle(self, message: Message) -> None:
        sequence, deliveries = message.metadata.sequence, message.metadata.num_delivered
        self._notes.taken.setdefault(sequence, time.time())
        if self._consumer.acks_all:
            if sequence % EVERY == 0 or self.is_diligent or deliveries > 2:
                self._ack(message, sequence)
            return
        dice = self._draws_neglect(deliveries)
        if dice < 0.04:
            return
        if dice < 0.08:
            self._notes.nakked.add(sequence)
            message.nak(self._rng.choice([None, 0.2, 1.5]))
        elif dice < 0.083:
            self._notes.acked.setdefault(sequence, time.time())
            try:
                message.ack_sync(timeout=3)
            except AckTimeout:
                return
            self._notes.confirmed.setdefault(sequence, time.time())
        else:
            if dice < 0.1:
                message.in_progress()
            self._ack(message, sequence)

    def _ack(self, message: Message, sequence: int) -> None:
        self._notes.acked.setdefault(sequence, time.time())
        message.ack()


class Puller(Application):
    """Pulls messages in batches, and acks each by a plain record on the ack topic, as any Kafka producer can."""

    def _leave(self) -> None:
        pass  # a pull ends by itself within a second

    def _take(self, client: Client) -> None:
        producer = WatchedProducer("of acks", {"bootstrap.servers": client.kafka["bootstrap.servers"]})
        topic = acks_topic(client.prefix, STREAM)
        while not self._stop.is_set():
            for message in client.control.next(STREAM, self._consumer.name, BATCH, expires=1.0):
                body = self._decide(message)
                if body is not None:
                    producer.produce(topic, body, headers=[("Nats-Reply-To", message.token)])
            try:
                if left := producer.drain(PATIENCE_S):
                    raise AssertionError(f"{left} acks were not taken\n{producer.describe()}")
            except ClientLost as error:
                # what it keeps comes again after ack_wait
                self._notes.troubles.append((time.time(), type(error).__name__, str(error)))
                producer.drop()
                return

    def _decide(self, message: Pulled) -> bytes | None:
        """Return what to say of a message, None for nothing."""
        token = parse_token(message.token.encode())
        self._notes.taken.setdefault(token.sequence, time.time())
        number = next(int(value) for name, value in message.headers if name == NUMBER and value is not None)
        self._notes.numbers.setdefault(token.sequence, set()).add(number)
        dice = self._draws_neglect(token.deliveries)
        if dice < 0.05:
            return None
        if dice < 0.1:
            self._notes.nakked.add(token.sequence)
            return b"-NAK"
        self._notes.acked.setdefault(token.sequence, time.time())
        return b"+ACK"
