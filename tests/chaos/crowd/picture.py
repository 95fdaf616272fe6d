"""Whether the picture of `overlay fleet run` agrees with the workers' group in Kafka, looked at all the time."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from overlay.kafka.own_topics import workers_group

LOOK_S = 0.3
ANSWER_S = 5.0

Owners = dict[int, str]
"""The worker of each shard."""


@dataclass
class Watch:
    """Looks until `stop`. A disagreement lasts from when Kafka's group has dealt out all shards, and the fleet answers, until
    both say the same. `longest`: the longest one, in seconds; `absent`: for how long the fleet gave no answer at most.
    """

    bootstrap: str
    prefix: str
    url: str
    shards: int
    longest: float = 0.0
    absent: float = 0.0
    looks: int = 0
    """How often both could be compared."""
    example: str = ""
    """What both said at the end of the longest disagreement."""
    error: BaseException | None = None
    _since: float | None = None
    _away: float | None = None
    _kafka: Owners = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._thread = threading.Thread(target=self._run, name="picture", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more. Raises what a look has raised."""
        self._stop.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def find_difference(self) -> str:
        """Return what Kafka and the fleet say now if that differs or is not known, "" if both say the same."""
        kafka, fleet = self._ask_kafka(), self._ask_fleet()
        return "" if kafka is not None and kafka == fleet else f"Kafka: {kafka}; the fleet: {fleet}"

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S):
                self._look()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.error = error

    def _look(self) -> None:
        kafka, fleet, now = self._ask_kafka(), self._ask_fleet(), time.monotonic()
        self._away = None if fleet is not None else self._away or now
        self.absent = max(self.absent, now - (self._away or now))
        if kafka is None or fleet is None or kafka != self._kafka:
            # what the group is about to change says nothing yet, and a change begins a new span
            self._kafka, self._since = kafka or {}, None
            return
        self.looks += 1
        if kafka == fleet:
            self._since = None
            return
        self._since = self._since or now
        if now - self._since > self.longest:
            self.longest, self.example = now - self._since, f"Kafka: {kafka}; the fleet: {fleet}"

    def _ask_kafka(self) -> Owners | None:
        """Return who has which shard by the group, None while it is not settled."""
        group = workers_group(self.prefix)
        try:
            found = self._admin.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result(2 * ANSWER_S)
        except KafkaException:
            return None
        owners = {
            place.partition: member.client_id
            for member in found.members
            for place in (member.assignment.topic_partitions if member.assignment else ())
        }
        return owners if found.state == ConsumerGroupState.STABLE and len(owners) == self.shards else None

    def _ask_fleet(self) -> Owners | None:
        """Return who has which shard by `/fleet`, None if there is no picture. Several workers of a shard are one text."""
        try:
            with urllib.request.urlopen(f"{self.url}/fleet", timeout=ANSWER_S) as answer:
                found = json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return {row["shard"]: " and ".join(row["workers"]) for row in found["shards"]}
