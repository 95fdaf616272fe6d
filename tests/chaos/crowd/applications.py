"""What writes and reads in a storm over a crowd: orders, acks of pushed messages, and pulls."""

from __future__ import annotations

import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition

from overlay.client.client import Client
from overlay.errors import OverlayError
from overlay.kafka.own_topics import acks_topic
from tests.oracle.push import parse_token
from tests.support.kafka import SureProducer

from .plan import CITIES, KINDS, MOST, NUMBER, PARTITIONS, PREFIX, STREAMS, name_stream, name_topic

BURST = 20
PULLED = 50
JOIN_S = 90.0


class Application(ABC):
    """A thread that works until `stop`. `is_diligent`: neglects nothing from now on."""

    def __init__(self, bootstrap: str, rng: random.Random, name: str) -> None:
        self.is_diligent = False
        self._bootstrap, self._rng = bootstrap, rng
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the end. Raises what has ended the thread early."""
        self._stop.set()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            raise AssertionError(f"{self._thread.name} did not end")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self._error = error

    @abstractmethod
    def _work(self) -> None:
        """Work until `_stop` is set."""

    def _decide(self, deliveries: int) -> bytes | None:
        """Return what to say of a message, None for nothing."""
        dice = self._rng.random() if not self.is_diligent and deliveries < 3 else 1.0
        return None if dice < 0.04 else b"-NAK" if dice < 0.08 else b"+ACK"


class Traffic(Application):
    """Writes `rate` orders a second to the topics of all streams. `written`: how many; they are numbered from 0."""

    def __init__(self, bootstrap: str, rng: random.Random, rate: float) -> None:
        super().__init__(bootstrap, rng, "traffic")
        self._rate = rate
        self.written = 0

    def _work(self) -> None:
        producer = SureProducer(self._bootstrap, {"linger.ms": 5, "compression.type": "lz4"})
        began = time.monotonic()
        while not self._stop.wait(max(0.0, began + self.written / self._rate - time.monotonic())):
            for _ in range(BURST):
                stream, amount = self._rng.randrange(STREAMS), self._rng.randrange(MOST)
                headers = [
                    ("kind", b"k%d" % self._rng.randrange(KINDS)),
                    ("city", b"c%d" % self._rng.randrange(CITIES)),
                    (NUMBER, b"%d" % self.written),
                ]
                value = json.dumps({"n": self.written, "amount": amount}).encode()
                partition = self._rng.randrange(PARTITIONS)
                producer.produce(name_topic(stream), value, b"%d" % amount, partition, headers=headers)
                self.written += 1
            producer.poll(0)
        producer.flush()


class Acker(Application):
    """Reads output topics of push consumers, and acks by plain records, as any Kafka producer can. `acked`: by stream and
    consumer, the stream sequences that were acked.
    """

    def __init__(self, bootstrap: str, rng: random.Random, topics: Sequence[str]) -> None:
        super().__init__(bootstrap, rng, "acker")
        self._topics = topics
        self.acked: dict[tuple[str, str], set[int]] = defaultdict(set)

    def _work(self) -> None:
        settings = {"group.id": "acker", "isolation.level": "read_committed", "enable.auto.commit": False}
        reader = KafkaConsumer({"bootstrap.servers": self._bootstrap, **settings})
        producer = SureProducer(self._bootstrap, {"linger.ms": 5})
        reader.assign([TopicPartition(topic, 0, 0) for topic in self._topics])
        try:
            while not self._stop.is_set():
                for message in reader.consume(500, 0.2):
                    headers = dict(message.headers() or ()) if not message.error() else {}
                    if (text := headers.get("Nats-Reply-To")) is None:
                        continue
                    token = parse_token(text)
                    if (body := self._decide(token.deliveries)) is not None:
                        if body == b"+ACK":
                            self.acked[token.stream, token.consumer].add(token.sequence)
                        topic = acks_topic(PREFIX, token.stream)
                        producer.produce(topic, body, headers=[("Nats-Reply-To", text)])
                producer.poll(0)
            producer.flush()
        finally:
            reader.close()


class Puller(Application):
    """Pulls the messages of one consumer. `numbers`: of the orders that have come."""

    def __init__(
        self, bootstrap: str, rng: random.Random, open_client: Callable[[], Client], stream: int, consumer: str
    ) -> None:
        super().__init__(bootstrap, rng, f"puller of {name_stream(stream)}/{consumer}")
        self._open_client, self._stream, self._consumer = open_client, name_stream(stream), consumer
        self.numbers: set[int] = set()

    def _work(self) -> None:
        producer = SureProducer(self._bootstrap, {"linger.ms": 5})
        with self._open_client() as client:
            while not self._stop.is_set():
                try:
                    messages = client.control.next(self._stream, self._consumer, PULLED, expires=1.0)
                except OverlayError:
                    self._stop.wait(0.5)  # a service that is away; the next try goes on
                    continue
                for message in messages:
                    body = self._decide(parse_token(message.token.encode()).deliveries)
                    if body is not None:
                        number = next(value for name, value in message.headers if name == NUMBER)
                        self.numbers.add(int(number or b""))
                        topic = acks_topic(PREFIX, self._stream)
                        producer.produce(topic, body, headers=[("Nats-Reply-To", message.token)])
                producer.poll(0)
        producer.flush()
