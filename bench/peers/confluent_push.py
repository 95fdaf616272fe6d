"""A consume-test-produce loop in transactions with confluent-kafka: exactly once as most Python users would write it.

Read committed batches, test headers, produce what matches with its key, value and headers and one header more (the
overlay adds two), hand the consumer's offsets to the transaction and commit, then go on. Output is LZ4 as ours. With
one transaction per `COMMIT_EVERY` records read, commits are a small part of the time. The tail's loop is the same
with a short wait for more.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.errors import PeerUnavailable
from bench.peers.confluent_scan import make_pick, open_consumer, take
from bench.sides import Tally, Work

COMMIT_EVERY = 100_000
DEADLINE_S = 60.0
TAIL_BATCH = 1_000
TAIL_WAIT_S = 0.01
"""How long the tail's loop collects: the same pause that the overlay makes after a commit."""

Pick = Callable[[Sequence[Message]], Sequence[Message]]

# librdkafka's threads do not survive a fork
_SPAWN = multiprocessing.get_context("spawn")


class ConfluentPush:
    name = "confluent"
    warm = True

    def run(self, work: Work, out_topic: str, expected: int) -> Tally:
        pick = make_pick(work)
        producer = open_producer(work.bootstrap, transactional=True)
        began = time.perf_counter()
        with open_consumer(work.bootstrap, work.topic) as consumer:
            read = matched = 0
            while read < work.records:
                producer.begin_transaction()
                until = min(work.records, read + COMMIT_EVERY)
                while read < until:
                    messages = take(consumer, work, read)
                    read += len(messages)
                    picked = pick(messages)
                    matched += len(picked)
                    copy(producer, picked, out_topic)
                commit(producer, consumer, work.topic, read)
            seconds = time.perf_counter() - began
        return Tally(read, matched, seconds)

    def close(self) -> None:
        """Nothing is kept between runs."""


def open_producer(bootstrap: str, *, transactional: bool, linger_ms: int = 5, idempotent: bool = False) -> Producer:
    """A producer with room for much; a transactional one is initialised.

    `idempotent`: for data whose order and count are checked. A peer that is measured keeps librdkafka's default.
    """
    settings: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "compression.type": "lz4",
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1 << 20,
        "batch.num.messages": 100_000,
        "linger.ms": linger_ms,
        "enable.idempotence": transactional or idempotent,
        "log_level": 3,
    }
    if not transactional:
        return Producer(settings)
    producer = Producer({**settings, "transactional.id": f"bench-{uuid.uuid4().hex}"})
    producer.init_transactions(DEADLINE_S)
    return producer


def copy(producer: Producer, messages: Sequence[Message], out_topic: str) -> None:
    """Hand messages to the producer, with one header more that says where each came from."""
    for message in messages:
        headers = [*(message.headers() or ()), ("source-offset", str(message.offset()))]
        while True:
            try:
                producer.produce(out_topic, message.value(), message.key(), headers=headers)
                break
            except BufferError:
                # the queue is full: as fast as Kafka takes them
                producer.poll(0.1)
    producer.poll(0)


def commit(producer: Producer, consumer: Consumer, topic: str, position: int) -> None:
    """End the transaction with the consumer's position in it."""
    offsets = [TopicPartition(topic, 0, position)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
    producer.commit_transaction(DEADLINE_S)


@contextmanager
def run_follower(work: Work, out_topic: str, delivery: str) -> Iterator[None]:
    """The tail's loop in a process of its own, following within the block."""
    stop = _SPAWN.Event()
    transactional = delivery == "exactly_once"
    process = _SPAWN.Process(target=follow, args=(work, out_topic, stop, transactional), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(DEADLINE_S)
        process.kill()


def follow(work: Work, out_topic: str, stop: Event, transactional: bool) -> None:
    """Copy what comes until `stop`. Raises PeerUnavailable when Kafka reports an error."""
    pick = make_pick(work)
    producer = open_producer(work.bootstrap, transactional=transactional, linger_ms=0)
    try:
        with open_consumer(work.bootstrap, work.topic, **{"fetch.wait.max.ms": 100}) as consumer:
            while not stop.is_set():
                messages = consumer.consume(TAIL_BATCH, TAIL_WAIT_S)
                if not messages:
                    continue
                if failed := next((error for message in messages if (error := message.error())), None):
                    raise PeerUnavailable(f"confluent-kafka stopped at {work.topic}-0: {failed.str()}")
                if transactional:
                    producer.begin_transaction()
                copy(producer, pick(messages), out_topic)
                if transactional:
                    commit(producer, consumer, work.topic, messages[-1].offset() + 1)
    finally:
        producer.flush(DEADLINE_S)
