"""The traffic of a storm: two idempotent producers and a transactional one that aborts some of its
transactions.

A producer whose client is lost (producers.py) is replaced, and what Kafka has not confirmed is dropped:
whether it was taken, the source topic tells, and a number is never written twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from overlay.local.flights import Headers, read_flights, records
from tests.support.kafka import await_markers
from tests.support.partitions import describe_partitions

from .plan import NUMBER, PARTITIONS
from .producers import ClientLost, WatchedProducer

BURST = 100
CODECS = ("lz4", "zstd")
ABORTED = 0.3
"""Share of the transactions that are aborted."""
PATIENCE_S = 120.0
"""How long a producer tries again: longer than a broker takes to restart."""
MARKERS_S = 10.0
"""How long a marker may take before it counts as lost."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


@dataclass
class Traffic:
    """Writes flights to a topic, `rate` records a second, until it is told to stop. `error` is what ended it early."""

    bootstrap: str
    topic: str
    rate: float
    rng: random.Random
    written: int = 0
    dropped: int = 0
    """Records of lost clients that Kafka had not confirmed."""
    replaced: list[str] = field(default_factory=list)
    """What each lost client said of itself."""
    unmarked: int = 0
    """How often a transaction at the end had lost a marker."""
    error: BaseException | None = None
    _refused: KafkaError | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._flights = _repeat_flights()
        self._plain = {codec: self._open_plain(codec) for codec in CODECS}
        self._transactional = self._open_transactional()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until everything is written. Raises what ended the writing early."""
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        if self._thread.is_alive():
            raise AssertionError(f"the producers did not end\n{self.describe()}")
        if self.error is not None:
            raise self.error
        self._await_markers()

    def describe(self) -> str:
        """Return what each producer waits for, and what the brokers say of the topic."""
        producers = [*self._plain.values(), self._transactional]
        return "\n".join([*(each.describe() for each in producers), describe_partitions(self.bootstrap, self.topic)])

    def _open_plain(self, codec: str) -> WatchedProducer:
        settings = {"compression.type": codec, "on_delivery": self._note}
        return WatchedProducer(codec, {"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})

    def _open_transactional(self) -> WatchedProducer:
        settings = {"transactional.id": f"storm-{self.topic}", "transaction.timeout.ms": 300_000}
        return WatchedProducer("transactional", {"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})

    def _run(self) -> None:
        try:
            self._transactional.init_transactions(PATIENCE_S)
            began = time.monotonic()
            while not self._stop.wait(max(0.0, began + self.written / self.rate - time.monotonic())):
                if self.rng.random() < 0.3:
                    self._write_transaction()
                else:
                    self._write_plain(self.rng.choice(CODECS))
            for codec in CODECS:
                self._drain(codec)
            if self._refused is not None:
                raise KafkaException(self._refused)
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.error = AssertionError(f"the traffic ended early: {error!r}\n{self.describe()}")
            self.error.__cause__ = error

    def _write_plain(self, codec: str) -> None:
        try:
            self._write(self._plain[codec])
        except ClientLost:
            self._replace_plain(codec)

    def _drain(self, codec: str) -> None:
        try:
            if left := self._plain[codec].drain(PATIENCE_S):
                raise AssertionError(f"{left} records of the producer {codec} were not taken")
        except ClientLost:
            self._replace_plain(codec)

    def _replace_plain(self, codec: str) -> None:
        lost, self._plain[codec] = self._plain[codec], self._open_plain(codec)
        self._bury(lost)

    def _bury(self, lost: WatchedProducer) -> None:
        self.replaced.append(lost.describe())
        lost.drop()

    def _write_transaction(self) -> None:
        try:
            self._try_transaction()
        except ClientLost:
            lost, self._transactional = self._transactional, self._open_transactional()
            self._bury(lost)
            # aborts what was open
            self._transactional.init_transactions(PATIENCE_S)

    def _try_transaction(self) -> None:
        self._transactional.begin_transaction()
        try:
            self._write(self._transactional)
            self._transactional.drain(PATIENCE_S)
        except KafkaException as error:
            # a record waited too long for a broker that was away
            if not error.args[0].txn_requires_abort():
                raise
            self._end(self._transactional.abort_transaction)
            return
        is_aborted = self.rng.random() < ABORTED
        self._end(self._transactional.abort_transaction if is_aborted else self._transactional.commit_transaction)

    def _end(self, end: Any) -> None:
        """End the transaction, trying again as often as Kafka allows. Which way it ended, the source topic tells.

        Raises ClientLost.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                end(10)
                return
            except KafkaException as error:
                self._transactional.poll(0)  # takes in the statistics of the meantime
                if self._transactional.is_lost:
                    raise ClientLost from error
                reason = error.args[0]
                if reason.txn_requires_abort():
                    end = self._transactional.abort_transaction
                elif not reason.retriable() or time.monotonic() > deadline:
                    raise

    def _await_markers(self) -> None:
        """Wait until no transaction is open. If Kafka has lost a marker, write another transaction: its markers end
        what its producer has open (overlay/output/lost_markers.py).
        """
        while self.unmarked < 3:
            try:
                return await_markers(self.bootstrap, self.topic, MARKERS_S)
            except AssertionError:
                self.unmarked += 1
                self._write_transaction()
        await_markers(self.bootstrap, self.topic)

    def _write(self, producer: WatchedProducer) -> None:
        """Write a burst. Raises ClientLost."""
        if producer.is_lost:
            raise ClientLost
        for _ in range(BURST):
            self.written += 1
            value, headers = next(self._flights)
            key = self.rng.choice([None, f"key-{self.rng.randrange(40)}"])
            headers = [*headers, (NUMBER, b"%d" % self.written)]
            while True:
                try:
                    producer.produce(self.topic, value, key, self.rng.randrange(PARTITIONS), headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
                    if producer.is_lost:
                        raise ClientLost from None
            producer.poll(0)

    def _note(self, error: KafkaError | None, _: Any) -> None:
        if error is None:
            return
        if error.code() in _PURGED:
            self.dropped += 1
        else:
            self._refused = error
            self._stop.set()


def _repeat_flights() -> Iterator[tuple[bytes, Headers]]:
    """Yield values and headers of the data set, over and over."""
    table = read_flights()
    while True:
        for _, value, headers in records(table):
            yield value, headers
