"""The whole service against a broker of its own: TLS and SASL, wrong passwords, a broker that is away, damage on disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlay.errors import CredentialsRefused
from overlay.kafka.admin import Admin
from overlay.kafka.confluent import check_reachable
from overlay.kafka.connection import open_client, reach
from overlay.local import Broker, start
from tests.support.kafka import PATIENT, make_topic
from tests.support.security import Security, add_scram_user, make_security
from tests.support.service import StartService, find_free_port
from tests.support.tokens import serve_tokens
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    await_records,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return make_security(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory, security: Security) -> Iterator[Broker]:
    """A broker that tests may stop; it compacts at once."""
    properties = {**security.properties, **PATIENT, "log.cleaner.backoff.ms": "100"}
    with start(tmp_path_factory.mktemp("private"), properties=properties) as broker:
        yield broker


@pytest.fixture
def own(private: Broker, tmp_path: Path) -> Scene:
    return Scene(tmp_path / "config", private.bootstrap)


def name_topic(own: Scene, **config: str) -> str:
    return make_topic(own.bootstrap, f"{own.prefix}-source", 1, {k.replace("_", "."): v for k, v in config.items()})


def set_kafka(own: Scene, kafka: dict[str, Any]) -> None:
    """Other Kafka settings in overlay.yaml."""
    settings = {
        "kafka": {name: str(value) for name, value in kafka.items()},
        "topics": {"prefix": own.prefix},
        "http": {"listen": f"127.0.0.1:{find_free_port()}"},
    }
    (own.folder / "overlay.yaml").write_text(json.dumps(settings))  # JSON is YAML


def test_everything_over_tls_and_sasl(own: Scene, private: Broker, security: Security) -> None:
    topic = name_topic(own)
    own.add_stream("S", topic)
    outputs = {"c": own.add_consumer("S", "c"), "plain": own.add_consumer("S", "plain", delivery="at_least_once")}
    produce(own.bootstrap, topic, ["a", None, "b"] * 50)
    set_kafka(own, security.client("SASL_SSL", private))
    with serve(own):
        for name, output in outputs.items():
            with CommittedReader(own.bootstrap, output) as reader:
                await_records(reader, 100)
                check_output(reader.seen, expect(read_committed(own.bootstrap, topic)), consumer=name)


def test_wrong_credentials_end_the_service(
    own: Scene, private: Broker, security: Security, running_service: StartService
) -> None:
    own.add_stream("S", name_topic(own))
    own.add_consumer("S", "c")
    set_kafka(own, security.client("SASL_SSL", private, password="not-this"))
    service = running_service(own.folder, wait=False)
    assert service.process.wait(DEADLINE_S) == 1
    log = service.read_log()
    assert private.listeners["SASL_SSL"] in log and "sasl" in log.lower() and "not-this" not in log
    assert "Traceback" not in log


def test_tokens_of_a_token_endpoint(own: Scene, private: Broker) -> None:
    """The service has them from aiokafka's side, programs from librdkafka's."""
    topic = name_topic(own)
    own.add_stream("S", topic)
    output = own.add_consumer("S", "c")
    produce(own.bootstrap, topic, ["a", None, "b"] * 5)
    with serve_tokens() as endpoint:
        address = {"bootstrap.servers": private.listeners["SASL_PLAINTEXT"], "security.protocol": "SASL_PLAINTEXT"}
        kafka = address | endpoint.kafka | {"sasl.oauthbearer.extensions": "traceId=t1"}
        set_kafka(own, kafka)
        with serve(own), CommittedReader(own.bootstrap, output) as reader:
            await_records(reader, 10)
        check_reachable(kafka)
        # one that has expired
        endpoint.lifetime_s = -60.0
        with pytest.raises(CredentialsRefused, match="Kafka refused the connection"):
            asyncio.run(reach(kafka))
        endpoint.status, endpoint.body = 401, b'{"error": "invalid_client"}'
        with pytest.raises(CredentialsRefused, match="answers 401: invalid_client"):
            asyncio.run(reach(kafka))


def test_a_password_that_changes(private: Broker, security: Security, tmp_path: Path) -> None:
    """New connections of clients that are open have what is in the file now."""
    file = tmp_path / "password"

    def change(password: str) -> None:
        add_scram_user(private.bootstrap, "rotated", password)
        (tmp_path / "new").write_text(f"{password}\n")
        (tmp_path / "new").rename(file)

    change("first")
    client = security.client(
        "SASL_PLAINTEXT", private, mechanism="SCRAM-SHA-256", user="rotated", password=f"file:{file}"
    )
    kafka = {name: str(value) for name, value in client.items()}

    def is_welcome() -> bool:
        try:
            asyncio.run(reach(kafka))
        except CredentialsRefused:  # brokers learn of accounts by and by
            return False
        return True

    async def run() -> None:
        opened = await open_client(kafka)
        try:
            async with Admin(kafka) as admin:
                await opened.fetch_all_metadata()
                await admin.find_cluster()
                change("second")
                await asyncio.to_thread(wait_until, is_welcome, DEADLINE_S, "the broker knows the new password")
                for connection in opened._conns.values():
                    connection.close()
                await opened.fetch_all_metadata()
                await admin.close()  # it has no connections now, and opens new ones
                await admin.find_cluster()
        finally:
            await opened.close()

    wait_until(is_welcome, DEADLINE_S, "the broker knows the password")
    asyncio.run(run())


def test_kafka_away_at_the_start(own: Scene, private: Broker, running_service: StartService) -> None:
    """The service waits, says for what, and begins when the broker comes up."""
    topic = name_topic(own)
    own.add_stream("S", topic)
    output = own.add_consumer("S", "c")
    produce(own.bootstrap, topic, ["a"] * 5)
    address = private.bootstrap
    private.stop()
    try:
        service = running_service(own.folder, wait=False)
        wait_until(
            lambda: address in service.read_log() and "cannot be reached" in service.read_log(),
            DEADLINE_S,
            "it says so",
        )
        assert not service.is_ready()
        assert service.process.poll() is None
    finally:
        private.restart()
    assert private.bootstrap == address
    wait_until(service.is_ready, DEADLINE_S, "the service is ready")
    with CommittedReader(own.bootstrap, output) as reader:
        await_records(reader, 5)


def test_a_broker_that_restarts_under_way(own: Scene, private: Broker) -> None:
    topic = name_topic(own)
    own.add_stream("S", topic)
    output = own.add_consumer("S", "c")
    produce(own.bootstrap, topic, ["a", "b"] * 500)
    address = private.bootstrap
    with serve(own) as served:
        with CommittedReader(own.bootstrap, output) as reader:
            await_records(reader, 1_000)
        private.restart()
        assert private.bootstrap == address
        produce(own.bootstrap, topic, ["a", "b"] * 500)
        with CommittedReader(own.bootstrap, output) as reader:
            await_records(reader, 2_000)
            check_output(reader.seen, expect(read_committed(own.bootstrap, topic)))
        served.await_ready()


def test_compaction_below_the_position(own: Scene, private: Broker) -> None:
    """The batch before the position is rewritten or gone at the next start, and yet it is the same log."""
    topic = name_topic(own, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")
    own.add_stream("S", topic)
    output = own.add_consumer("S", "c")
    produce(own.bootstrap, topic, ["a"] * 40, **{"batch.num.messages": 10})
    with serve(own), CommittedReader(own.bootstrap, output) as reader:
        await_records(reader, 40)

    def is_compacted() -> bool:
        produce(own.bootstrap, topic, ["b"] * 14)  # new segments, all keys again
        return min(record.offset for record in read_committed(own.bootstrap, topic)) >= 40

    wait_until(is_compacted, DEADLINE_S, "nothing is left of what was read")
    with serve(own) as served, CommittedReader(own.bootstrap, output) as reader:
        left = expect(read_committed(own.bootstrap, topic))
        wait_until(
            lambda: left[-1].offset + 1 in {r.token.sequence for r in reader.read()}, DEADLINE_S, "the end is read"
        )
        assert served.report()["reasons"] == []
        assert {record.offset + 1 for record in left} <= {record.token.sequence for record in reader.seen}


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_batch_that_rots_on_disk(own: Scene, private: Broker, policy: str) -> None:
    """One partition stops at it, or passes over it and counts; the other goes on."""
    topic = make_topic(own.bootstrap, f"{own.prefix}-source", 2)
    for to in ("a", "b", "c"):
        for partition in (0, 1):
            produce(own.bootstrap, topic, [to] * 5, partition=partition)
    private.stop()
    damage(private.home, topic, batch=1)
    private.restart()
    own.add_stream("S", topic, on_corrupt=policy)
    output = own.add_consumer("S", "c")
    with serve(own) as served, CommittedReader(own.bootstrap, output) as reader:
        found = await_records(reader, 20 if policy == "stop" else 25)
        subjects = sorted({(record.subject, record.header(b"Nats-Reply-To") is not None) for record in found})
        assert [subject for subject, _ in subjects] == ["t.a", "t.b", "t.c"]
        if policy == "stop":
            reason = wait_until(lambda: served.stream("S")["reason"], DEADLINE_S, "the stop has a reason")
            assert f"{topic}-0@5" in reason and "on_corrupt" in reason
        produce(own.bootstrap, topic, ["d"] * 3, partition=1)
        await_records(reader, 23 if policy == "stop" else 28)
        registry, labels = served.service.metrics.registry, {"stream": "S", "action": policy}
        wait_until(
            lambda: registry.get_sample_value("overlay_corrupt_batches_total", labels), DEADLINE_S, "it is counted"
        )
        assert registry.get_sample_value("overlay_corrupt_batches_total", labels) == 1


def damage(home: Path, topic: str, *, batch: int) -> None:
    """Flip a byte in one batch of partition 0, in a broker's data folder."""
    (segment,) = home.rglob(f"{topic}-0/*.log")
    data, at = bytearray(segment.read_bytes()), 0
    for _ in range(batch):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at + 70] ^= 0xFF
    segment.write_bytes(data)
