"""Topics and plain records for tests, by confluent-kafka: an independent client, so that it can also judge."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from .waiting import wait_until

DEADLINE_S = 30


class NewTopicFixture(Protocol):
    """The fixture `new_topic`: dots of a config name are written as underscores (`retention_ms=1000`)."""

    def __call__(self, partitions: int = 1, **config: object) -> str: ...


def make_topic(
    bootstrap: str,
    name: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    *,
    nodes: Sequence[int] = (),
) -> str:
    """Create a topic and wait until the broker has it. `nodes`: who has each partition, its leader first."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    where: dict[str, Any] = {"replica_assignment": [list(nodes)] * partitions} if nodes else {"replication_factor": 1}
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **where)
    client.create_topics([topic], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    return name


def name_topics(bootstrap: str, prefix: str) -> Callable[..., str]:
    """A maker of uniquely named topics: `make(partitions=3, cleanup_policy="compact")` returns the name."""

    def make(partitions: int = 1, **config: object) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        dotted = {key.replace("_", "."): str(value) for key, value in config.items()}
        return make_topic(bootstrap, name, partitions, dotted)

    return make


class SureProducer(Producer):  # type: ignore[misc]
    """A producer for tests that rely on the order and the number of what they write.

    It is idempotent: without that a batch that is sent again may land behind the next one, or twice. `flush` raises
    AssertionError if records are not acknowledged, or were refused and have no `on_delivery` of their own.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, object] | None = None) -> None:
        refused: list[str] = []

        def note(error: KafkaError | None, record: Message) -> None:
            if error is not None:
                refused.append(f"{record.topic()}: {error.str()}")

        sure = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "on_delivery": note}
        super().__init__({**sure, **(settings or {})})
        self._refused = refused

    def flush(self, timeout: float = DEADLINE_S) -> int:
        """Wait until all is acknowledged; returns 0."""
        left: int = super().flush(timeout)
        if left or self._refused:
            raise AssertionError(
                f"{left} records were not acknowledged, {len(self._refused)} refused: {self._refused[:3]}"
            )
        return left


def produce_values(bootstrap: str, topic: str, values: Iterable[bytes], **settings: object) -> None:
    """Write values to a topic and wait until all are acknowledged."""
    producer = SureProducer(bootstrap, {"linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    producer.flush()


def remove_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Have a partition lose its records below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def await_markers(bootstrap: str, topic: str) -> None:
    """Wait until no transaction on a topic is under way.

    The broker answers commit_transaction and abort_transaction before it writes the markers, so what was just
    committed may not be readable yet.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    partitions = client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}

    def find_ends(isolation: IsolationLevel) -> dict[int, int]:
        found = client.list_offsets(latest, isolation_level=isolation, request_timeout=DEADLINE_S)
        return {place.partition: future.result(DEADLINE_S).offset for place, future in found.items()}

    def is_over() -> bool:
        return find_ends(IsolationLevel.READ_COMMITTED) == find_ends(IsolationLevel.READ_UNCOMMITTED)

    wait_until(is_over, DEADLINE_S, f"all transactions on {topic} have ended")
