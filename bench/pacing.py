"""Records sent at a steady pace, each with the time at which it was sent, and how long each took to come out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer

from bench.errors import PeerUnavailable
from bench.outputs import Row

RATE = 1_000
"""Records a second."""
LAST_S = 30.0
SENT = "sent-ns"


class Pacer:
    """A producer that writes RATE records a second to a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        # a record that is sent again may not be counted twice
        settings = {"linger.ms": 0, "enable.idempotence": True, "log_level": 3}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings})

    def measure(self, rows: Sequence[Row], reader: Consumer) -> list[float]:
        """Send the rows, and return the delay of each in the order in which `reader` gets them, ms. Raises PeerUnavailable
        when some never come out.
        """
        sender = threading.Thread(target=self._send, args=(rows,), daemon=True)
        sender.start()
        delays = _receive(reader, len(rows))
        sender.join()
        return delays

    def _send(self, rows: Sequence[Row]) -> None:
        """Send a row each 1 / RATE seconds; one that is late does not move those after it."""
        began = time.perf_counter_ns()
        for number, (value, headers) in enumerate(rows):
            wait = began + number * 1_000_000_000 // RATE - time.perf_counter_ns()
            if wait > 0:
                time.sleep(wait / 1e9)  # the pace of the messages
            stamp = (SENT, str(time.perf_counter_ns()).encode())
            self._producer.produce(self._topic, value, headers=[*headers, stamp])
            self._producer.poll(0)
        self._producer.flush(LAST_S)


def _receive(reader: Consumer, count: int) -> list[float]:
    """The delays of the next `count` records, ms."""
    delays: list[float] = []
    while len(delays) < count:
        message = reader.poll(LAST_S)
        now = time.perf_counter_ns()
        if message is None or message.error():
            why = message.error().str() if message else f"nothing more came for {LAST_S:.0f} s"
            raise PeerUnavailable(f"only {len(delays)} of {count} records came out: {why}")
        sent = next(int(value) for name, value in message.headers() if name == SENT)
        delays.append((now - sent) / 1e6)
    return delays
