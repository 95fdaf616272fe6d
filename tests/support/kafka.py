"""Topics and plain records for tests, by confluent-kafka: an independent client, so that it can also judge."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from .partitions import describe_partitions, find_ends
from .waiting import wait_until

DEADLINE_S = 30
PATIENT = {"broker.session.timeout.ms": "60000"}
"""For brokers of tests: how long one may get no processor, in ms, before its controller takes it for dead. It then has no
leaders for a moment, which loses transaction markers and clients (docs/exactly-once.md). A broker that is killed cannot
register again for so long; tests that kill brokers leave the embedded broker's own value."""


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
    """Create a topic and wait until the leaders of its partitions answer. `nodes`: who has each partition, its leader first.

    A broker is named as leader some milliseconds before it knows that itself, and then says that it is not.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    where: dict[str, Any] = {"replica_assignment": [list(nodes)] * partitions} if nodes else {"replication_factor": 1}
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **where)
    client.create_topics([topic], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    wait_until(lambda: have_leaders(client, name, partitions), DEADLINE_S, f"the leaders of {name} answer")
    return name


def have_leaders(client: AdminClient, topic: str, partitions: int) -> bool:
    """Whether the leaders of all partitions answer a question for offsets."""
    asked = client.list_offsets({TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)})
    try:
        return all(future.result(DEADLINE_S).offset >= 0 for future in asked.values())
    except KafkaException:
        return False


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Give a topic more partitions, `total` of them, and wait until the broker has their leaders.

    The controller answers before the broker knows of them, and a producer refuses a partition that no broker has named.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_partitions([NewPartitions(topic, total)])[topic].result(DEADLINE_S)

    def are_known() -> bool:
        known = client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return len(known) == total and all(each.leader >= 0 for each in known.values())

    wait_until(are_known, DEADLINE_S, f"{topic} has {total} partitions with leaders")


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


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until the broker does not list it any more."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.delete_topics([topic])[topic].result(DEADLINE_S)
    await_deletion(bootstrap, topic)


def await_deletion(bootstrap: str, topic: str) -> None:
    """Wait until the broker does not list a topic. The controller answers a deletion before its brokers have heard of it."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    wait_until(lambda: topic not in client.list_topics(timeout=DEADLINE_S).topics, DEADLINE_S, f"{topic} is gone")


def create_again(bootstrap: str, topic: str, partitions: int) -> None:
    """Delete a topic, and create one of its name."""
    delete_topic(bootstrap, topic)
    make_topic(bootstrap, topic, partitions)


def await_markers(bootstrap: str, topic: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until no transaction on a topic is under way. The error says where one is.

    The broker answers commit_transaction and abort_transaction before it writes the markers, so what was just
    committed may not be readable yet.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    partitions = client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions

    def is_over() -> bool:
        committed = find_ends(client, topic, partitions, IsolationLevel.READ_COMMITTED)
        written = find_ends(client, topic, partitions, IsolationLevel.READ_UNCOMMITTED)
        return committed == written and None not in written.values()

    try:
        wait_until(is_over, deadline_s, f"all transactions on {topic} have ended")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{describe_partitions(bootstrap, topic)}") from error


def describe_statistics(statistics: str) -> str:
    """Return what stands still in a client, from librdkafka's statistics (JSON, STATISTICS.md)."""
    told = json.loads(statistics)
    brokers = [f"{name} ({each['source']}, {each['state']})" for name, each in told.get("brokers", {}).items()]
    waiting = [
        f"{topic}-{number}: {queued} queued, {each['msgs_inflight']} in flight, leader {each['leader']}"
        for topic, of_topic in told.get("topics", {}).items()
        for number, each in of_topic["partitions"].items()
        if (queued := each["msgq_cnt"] + each["xmit_msgq_cnt"]) or each["msgs_inflight"]
    ]
    eos = told.get("eos", {})
    state = f"idempotence {eos.get('idemp_state')} for {eos.get('idemp_stateage', 0) / 1000:.0f} s"
    transaction = f", transaction {eos['txn_state']}" if eos.get("txn_state", "Init") != "Init" else ""
    return f"brokers {brokers}, {state}{transaction}, waiting {waiting}"
