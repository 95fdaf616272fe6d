"""`delivery: at_least_once` on a real broker: acks of deliveries that were never committed settle none of the next owner's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from overlay.client.subscribe.acking import Head, write_acks
from overlay.kafka.own_topics import acks_topic
from tests.support.kafka import NewTopicFixture, SureProducer, remove_records
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    AckClock,
    CommittedReader,
    Scene,
    Seen,
    Served,
    await_records,
    await_state,
    produce,
    serve,
)

MARKER_BYTES = 90
"""A batch with the end of a transaction is smaller than this, and one with state is larger."""
PLAIN: dict[str, Any] = {
    "ack_policy": "explicit",
    "delivery": "at_least_once",
    "interest": "always",
    "ack_wait": "600s",
}
ACK_WAIT_S = 601


def ack(scene: Scene, records: Sequence[Seen]) -> None:
    """Ack deliveries as the client library does."""
    producer = SureProducer(scene.bootstrap)
    for record in write_acks(Head("S", "c"), [seen.header(b"Nats-Reply-To") or b"" for seen in records]):
        producer.produce(acks_topic(scene.prefix, "S"), record.value, record.key, headers=list(record.headers))
    assert producer.flush(DEADLINE_S) == 0


def limit_records(scene: Scene, size: int) -> None:
    """Have Kafka take no larger batches for the state topic."""
    admin = AdminClient({"bootstrap.servers": scene.bootstrap})
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, scene.state_topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)

    def is_told() -> bool:
        found = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, scene.state_topic)])
        return all(future.result(30)["max.message.bytes"].value == str(size) for future in found.values())

    wait_until(is_told, DEADLINE_S, "the state topic has its limit")


def count_refused(served: Served) -> float:
    return float(served.service.metrics.acks_refused.labels("incarnation")._value.get())


def await_pending(served: Served, count: int) -> None:
    await_state(
        served, "c", lambda found: found.get("acks", {}).get("num_ack_pending") == count, f"has {count} pending"
    )


def list_rows(records: Sequence[Seen]) -> list[tuple[int, int]]:
    """Stream and consumer sequence of each delivery."""
    return [(seen.token.sequence, seen.token.consumer_sequence) for seen in records]


def test_a_range_of_uncommitted_deliveries(scene: Scene, new_topic: NewTopicFixture, ack_clock: AckClock) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **PLAIN)
    produce(scene.bootstrap, topic, ["a"])
    with CommittedReader(scene.bootstrap, output) as reader:
        with serve(scene) as served:
            await_records(reader, 1)
            (session,) = served.service.sessions
            state = session.commits.state
            wait_until(lambda: state.consumers["S", "c"].sequence == 1, DEADLINE_S, "the first delivery is committed")
            limit_records(scene, MARKER_BYTES)
            produce(scene.bootstrap, topic, ["a"] * 3)
            former = list(await_records(reader, 4))[:4]
            assert list_rows(former) == [(1, 1), (2, 2), (3, 3), (4, 4)]
        limit_records(scene, 1 << 20)
        remove_records(scene.bootstrap, topic, 0, 2)
        # a session that began anew behind the refused commit may have delivered 2 to 4 again, in vain as well
        before = len(reader.read())
        with serve(scene) as served:
            produce(scene.bootstrap, topic, ["a"])
            found = await_records(reader, before + 3)[before:]
            assert list_rows(found) == [(3, 2), (4, 3), (5, 4)]
            # these name 1 to 4 by the former owner's sequences: only the first was committed
            ack(scene, former)
            await_pending(served, 3)
            assert count_refused(served) == 1
            ack(scene, found[:2])
            await_pending(served, 1)
            # 5 was never acked, and comes again
            ack_clock.advance(ACK_WAIT_S)
            again = await_records(reader, before + 4)[before + 3]
            assert (again.token.sequence, again.token.deliveries) == (5, 2)
            ack(scene, [again])
            await_pending(served, 0)


def test_killed_between_deliveries_and_commits(
    scene: Scene, running_service: StartService, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **PLAIN | {"ack_wait": "2s"})
    acked: set[int] = set()
    with CommittedReader(scene.bootstrap, output) as reader:
        for _ in range(3):
            service = running_service(scene.folder)
            held: list[Seen] = []
            for burst in range(4):
                before = len(reader.read())
                produce(scene.bootstrap, topic, ["a"] * 20)
                fresh = list(await_records(reader, before + 20)[before:])
                # of what came the application acks half at once, and holds the rest for its next worker
                held += fresh[10:]
                acked |= {seen.token.sequence for seen in fresh[:10]}
                ack(scene, fresh[:10])
                if burst == 3:
                    service.kill()
            late = [seen for seen in held if seen.token.sequence % 3]
            acked |= {seen.token.sequence for seen in late}
            ack(scene, late)
        with serve(scene) as served:
            seen_before = len(reader.read())
            total = 3 * 4 * 20
            never = set(range(1, total + 1)) - acked

            def came_again() -> bool:
                return never <= {seen.token.sequence for seen in reader.read()[seen_before:]}

            wait_until(came_again, DEADLINE_S, f"{sorted(never)} come again")
            ack(scene, reader.read())
            await_pending(served, 0)
