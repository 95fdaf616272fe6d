"""Producers of a storm, which know when librdkafka has lost its brokers (overlay/kafka/confluent.py, Contact).

In a storm the only broker restarts, and on a busy machine the controller misses its heartbeats as well.
Either way metadata may name no broker for a moment. About one client in a hundred then forgets its own
for good, and keeps its records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Producer

from overlay.kafka.confluent import Contact
from tests.support.kafka import describe_statistics

STATISTICS_MS = 1_000
FLUSH_S = 0.5
DROP_S = 10.0
"""Reports of purged records come at once; this long at most."""


class ClientLost(Exception):
    """The Kafka client of a producer knows no broker any more. Only another client helps."""


class WatchedProducer(Producer):  # type: ignore[misc]
    """An idempotent producer that can say whether it is lost, and what it waits for. `name`: for messages.

    Both are known from librdkafka's statistics, which arrive with `poll` and `flush`.
    """

    def __init__(self, name: str, settings: Mapping[str, object]) -> None:
        self.name = name
        self._contact = Contact()
        self._statistics = "{}"
        watched = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._hear, "log_level": 0}
        super().__init__({"enable.idempotence": True, **settings, **watched})

    def _hear(self, statistics: str) -> None:
        self._statistics = statistics
        self._contact.hear(statistics)

    @property
    def is_lost(self) -> bool:
        return self._contact.is_lost

    def drain(self, timeout_s: float) -> int:
        """Wait until Kafka has every record. Return how many it has not taken after `timeout_s` seconds.

        Raises ClientLost as soon as that is known.
        """
        end = time.monotonic() + timeout_s
        while left := int(self.flush(FLUSH_S)):
            if self.is_lost:
                raise ClientLost(self.describe())
            if time.monotonic() > end:
                return left
        return 0

    def drop(self) -> None:
        """Drop the records that Kafka has not confirmed. Each is reported to its `on_delivery`. Some of them may be in
        the log all the same.
        """
        self.purge()
        self.flush(DROP_S)

    def describe(self) -> str:
        """Return which brokers the client knows, and which partitions keep records waiting."""
        return f"producer {self.name}: {describe_statistics(self._statistics)}"
