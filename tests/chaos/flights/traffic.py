"""Producers of a storm: two idempotent ones and a transactional one that aborts some of its
transactions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer

from overlay.local.flights import Headers, read_flights, records
from tests.support.kafka import await_markers

from .plan import NUMBER, PARTITIONS

BURST = 100
ABORTED = 0.3
"""Share of the transactions that are aborted."""
PATIENCE_S = 120.0
"""How long a producer tries again: longer than a broker takes to restart."""


@dataclass
class Traffic:
    """Writes flights to a topic, `rate` records a second, until it is told to stop. `error` is what ended it early."""

    bootstrap: str
    topic: str
    rate: float
    rng: random.Random
    written: int = 0
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        common = {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0}
        self._plain = [
            Producer({**common, "enable.idempotence": True, "compression.type": codec, "on_delivery": self._note})
            for codec in ("lz4", "zstd")
        ]
        self._transactional = Producer(
            {**common, "transactional.id": f"storm-{self.topic}", "transaction.timeout.ms": 300_000}
        )
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until everything is written. Raises what ended the writing early."""
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)
        if self._thread.is_alive():
            raise AssertionError("the producers did not end")
        if self.error is not None:
            raise self.error
        await_markers(self.bootstrap, self.topic)

    def _run(self) -> None:
        try:
            flights = _repeat_flights()
            self._transactional.init_transactions(PATIENCE_S)
            began = time.monotonic()
            while not self._stop.wait(max(0.0, began + self.written / self.rate - time.monotonic())):
                if self.rng.random() < 0.3:
                    self._write_transaction(flights)
                else:
                    self._write(self.rng.choice(self._plain), flights)
            for producer in self._plain:
                if left := producer.flush(PATIENCE_S):
                    raise AssertionError(f"{left} records of the traffic were not taken")
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.error = error

    def _write_transaction(self, flights: Iterator[tuple[bytes, Headers]]) -> None:
        self._transactional.begin_transaction()
        try:
            self._write(self._transactional, flights)
            self._transactional.flush(PATIENCE_S)
        except KafkaException as error:
            # a record waited too long for a broker that was away
            if not error.args[0].txn_requires_abort():
                raise
            self._end(self._transactional.abort_transaction)
            return
        is_aborted = self.rng.random() < ABORTED
        self._end(self._transactional.abort_transaction if is_aborted else self._transactional.commit_transaction)

    def _end(self, end: Any) -> None:
        """End the transaction, trying again as often as Kafka allows. Which way it ended, the source topic tells."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                end(10)
                return
            except KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    end = self._transactional.abort_transaction
                elif not reason.retriable() or time.monotonic() > deadline:
                    raise

    def _write(self, producer: Producer, flights: Iterator[tuple[bytes, Headers]]) -> None:
        for _ in range(BURST):
            self.written += 1
            value, headers = next(flights)
            key = self.rng.choice([None, f"key-{self.rng.randrange(40)}"])
            headers = [*headers, (NUMBER, b"%d" % self.written)]
            while True:
                try:
                    producer.produce(self.topic, value, key, self.rng.randrange(PARTITIONS), headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)

    def _note(self, error: Any, _: Any) -> None:
        if error is not None:
            self.error = KafkaException(error)
            self._stop.set()


def _repeat_flights() -> Iterator[tuple[bytes, Headers]]:
    """Yield values and headers of the data set, over and over."""
    table = read_flights()
    while True:
        for _, value, headers in records(table):
            yield value, headers
