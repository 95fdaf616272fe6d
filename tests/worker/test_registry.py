"""A service that asks a schema registry for the ids that it meets in values, with real encoders of both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

import overlay
from tests.support.avro import Schema, encode
from tests.support.kafka import NewTopicFixture, SureProducer, produce_values
from tests.support.schema_registry import Registry, serve_registry
from tests.support.service import find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Served,
    await_caught_up,
    await_records,
    produce,
    read_committed,
    serve,
)

pytestmark = pytest.mark.kafka

FIRST: Schema = {"type": "record", "name": "Order", "fields": [{"name": "country", "type": "string"}]}
SECOND: Schema = {**FIRST, "fields": [{"name": "total", "type": "long"}, *FIRST["fields"]]}
SQL = "country = 'DK'"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("overlay.schemas.gate.PAUSE_S", (0.05, 0.2))
    monkeypatch.setattr("overlay.schemas.registry_client.TIMEOUT_S", DEADLINE_S)
    made = Registry()
    made.add("orders-value", 7, FIRST)
    return made


def frame(id: int, value: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + value


def make(id: int, country: str = "DK") -> bytes:
    schema = FIRST if id == 7 else SECOND
    return frame(id, encode(schema, {"country": country, "total": 5}))


def add_stream(
    scene: Scene,
    name: str,
    url: str,
    topic: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    values: Mapping[str, str] = MappingProxyType({}),
    **more: object,
) -> None:
    """A stream whose schemas the registry at `url` has. `settings`: of the registry; `values`: beside it."""
    declared = {"format": "avro", "registry": {"url": url, **settings}, **values}
    properties = {"country": {"type": "string", "from": "{value:country}"}}
    scene.add_stream(name, topic, subject={"template": "t.all"}, values=declared, properties=properties, **more)


def list_waiting(served: Served, stream: str = "S") -> dict[str, Any]:
    found: dict[str, Any] = served.stream(stream)["waiting"]
    return found


def test_a_schema_that_comes_while_the_service_runs(
    scene: Scene, bootstrap: str, new_topic: NewTopicFixture, registry: Registry
) -> None:
    topic = new_topic()
    with serve_registry(registry) as url:
        add_stream(scene, "S", url, topic, index={"terms": ["country"], "chunk_records": 2})
        output = scene.add_consumer("S", "c", filter={"sql": SQL})
        produce_values(bootstrap, topic, [make(7), make(7, "SE")])
        with serve(scene) as served, CommittedReader(bootstrap, output) as reader:
            await_records(reader, 1)
            registry.add("orders-value", 8, SECOND)
            produce_values(bootstrap, topic, [make(8), make(7), make(8, "SE"), make(8)])
            await_records(reader, 4)
            await_caught_up(served, "c")
        assert [record.value for record in reader.seen] == [make(7), make(8), make(7), make(8)]
        assert (registry.count_asked("/schemas/ids/7"), registry.count_asked("/schemas/ids/8")) == (1, 1)
        client = overlay.open(scene.folder)
        assert pa.table(client.read("S", sql=SQL)).num_rows == 4


def produce_to(bootstrap: str, topic: str, partition: int, values: list[bytes]) -> None:
    """Write values to one partition and wait until all are acknowledged."""
    producer = SureProducer(bootstrap)
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush()


def test_records_wait_while_the_registry_is_down_and_other_partitions_go_on(
    scene: Scene, bootstrap: str, new_topic: NewTopicFixture, registry: Registry
) -> None:
    topic, other, port = new_topic(partitions=2), new_topic(), find_free_port()
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{port}"
        add_stream(scene, "S", url, topic)
        scene.add_stream("OTHER", other)
        output = scene.add_consumer("S", "c", filter={"sql": SQL}, delivery="at_least_once")
        free = scene.add_consumer("OTHER", "free")
        stop_registry = stack.enter_context(ExitStack())
        stop_registry.enter_context(serve_registry(registry, port))
        served = stack.enter_context(serve(scene))
        reader = stack.enter_context(CommittedReader(bootstrap, output))
        produce_to(bootstrap, topic, 0, [make(7)])
        await_records(reader, 1)
        stop_registry.close()
        registry.add("orders-value", 8, SECOND)
        produce_to(bootstrap, topic, 0, [make(7), make(8), make(7)])
        wait_until(lambda: f"{topic}-0" in list_waiting(served), DEADLINE_S, "the partition waits")
        produce_to(bootstrap, topic, 1, [make(7)] * 3)
        produce(bootstrap, other, ["x"])
        with CommittedReader(bootstrap, free) as others:
            await_records(others, 1)
        await_records(reader, 4)
        wait = list_waiting(served)[f"{topic}-0"]
        assert wait["schema"] == 8 and "Connection refused" in wait["reason"]
        assert f"{topic}-0 waits for schema 8 of the registry since {wait['since']}" in served.consumer("c")["reason"]
        stop_registry.enter_context(serve_registry(registry, port))
        await_records(reader, 7)
        wait_until(lambda: not list_waiting(served), DEADLINE_S, "nothing waits")
        assert registry.count_asked("/schemas/ids/8") == 1


def test_an_id_that_the_registry_does_not_have_is_null(
    scene: Scene, bootstrap: str, new_topic: NewTopicFixture, registry: Registry
) -> None:
    topic = new_topic()
    registry.add("broken-value", 30, {"type": "recrod"})
    with serve_registry(registry) as url:
        add_stream(scene, "S", url, topic)
        output = scene.add_consumer("S", "c", filter={"sql": "country IS NULL"})
        values = [make(7), *(frame(id, b"\4DK") for id in (99, 30, 99)), make(7)]
        produce_values(bootstrap, topic, values)
        with serve(scene) as served:
            await_caught_up(served, "c")
            metrics = served.service.metrics
            undecoded = metrics.filter_nulls.labels("S", "c", "undecoded")._value.get()
            outcomes = [
                metrics.schemas_asked.labels("S", each)._value.get() for each in ("fetched", "unknown", "unusable")
            ]
        assert [record.value for record in read_committed(bootstrap, output)] == values[1:4]
        assert undecoded == 3 and outcomes == [1, 1, 1]
        assert registry.count_asked("/schemas/ids/99") == 1


def _list_faults() -> Iterator[Any]:
    yield pytest.param((200, {}, b"<html>login"), "none of a schema registry", id="garbage")
    yield pytest.param((200, {}, b'{"status": "ok"}'), "none of a schema registry", id="another-service")
    yield pytest.param((302, {"Location": "http://127.0.0.1:1/"}, b""), "another address (302)", id="redirect")
    yield pytest.param((404, {}, b"<html>"), "404", id="another-server")
    yield pytest.param((500, {}, b""), "status 500", id="error")
    yield pytest.param((200, {"Content-Length": "100"}, b'{"schema":'), "gives no answer", id="cut")


@pytest.mark.parametrize(("answer", "words"), [*_list_faults()])
def test_records_wait_behind_answers_that_are_none(
    scene: Scene,
    bootstrap: str,
    new_topic: NewTopicFixture,
    registry: Registry,
    answer: tuple[int, dict[str, str], bytes],
    words: str,
) -> None:
    topic = new_topic()
    registry.answers["/schemas/ids/7"] = answer
    with serve_registry(registry) as url:
        add_stream(scene, "S", url, topic)
        output = scene.add_consumer("S", "c", filter={"sql": SQL})
        produce_values(bootstrap, topic, [make(7)])
        with serve(scene) as served, CommittedReader(bootstrap, output) as reader:
            found = wait_until(
                lambda: any(words in wait["reason"] for wait in list_waiting(served).values()), DEADLINE_S, words
            )
            assert found and not reader.read()
            del registry.answers["/schemas/ids/7"]
            await_records(reader, 1)


def test_an_answer_that_is_too_large_is_no_schema(
    scene: Scene, bootstrap: str, new_topic: NewTopicFixture, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.schemas.registry_client._MOST_BYTES", 1_000)
    topic = new_topic()
    registry.answers["/schemas/ids/7"] = 200, {}, json.dumps({"schema": "x" * 5_000}).encode()
    with serve_registry(registry) as url:
        add_stream(scene, "S", url, topic)
        output = scene.add_consumer("S", "c", filter={"sql": "country IS NULL"})
        produce_values(bootstrap, topic, [make(7)])
        with serve(scene) as served:
            await_caught_up(served, "c")
        assert len(read_committed(bootstrap, output)) == 1


def test_credentials_and_a_folder_that_keeps_schemas(
    scene: Scene,
    bootstrap: str,
    new_topic: NewTopicFixture,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = new_topic()
    registry.wanted = "Basic bWU6c2VjcmV0LXdvcmQ="
    monkeypatch.setenv("REGISTRY_USER", "me:wrong-word")
    with serve_registry(registry) as url:
        settings = {"basic.auth.user.info": "env:REGISTRY_USER"}
        add_stream(scene, "S", url, topic, settings=settings, values={"schemas": "schemas/orders"})
        output = scene.add_consumer("S", "c", filter={"sql": SQL})
        produce_values(bootstrap, topic, [make(7)])
        with serve(scene) as served, CommittedReader(bootstrap, output) as reader:
            wait_until(
                lambda: any("refuses the credentials" in wait["reason"] for wait in list_waiting(served).values()),
                DEADLINE_S,
                "the credentials are refused",
            )
            monkeypatch.setenv("REGISTRY_USER", "me:secret-word")
            await_records(reader, 1)
        kept = scene.folder / "schemas" / "orders" / "7.avsc"
        assert json.loads(kept.read_text(encoding="utf-8")) == FIRST
    # without the registry, from the file alone
    produce_values(bootstrap, topic, [make(7)])
    with serve(scene) as served, CommittedReader(bootstrap, output) as reader:
        await_records(reader, 2)
    shown = capfd.readouterr()
    assert "secret-word" not in shown.out + shown.err and "wrong-word" not in shown.out + shown.err
