"""A schema registry that does not answer for a while: what waits, what goes on, and what the next worker makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.config.values import ValueFormat
from overlay.errors import OverlayError
from overlay.schemas.registry_client import FetchedSchema, RegistryError, SchemaRegistry
from tests.support.avro import encode

from .host import Worker, _load, read_config, warm_up
from .reading import read_topic
from .scenes import read_sequences, until
from .world import World
from .writing import New, send

FIRST: Any = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "country", "type": "string"}, {"name": "name", "type": "string"}],
}
SECOND: Any = {**FIRST, "fields": [{"name": "total", "type": "long"}, *FIRST["fields"]]}
SCHEMAS = {7: FIRST, 8: SECOND}


class Registry:
    """Stands for a registry over HTTP. `known`: the ids that it has. It answers unless it `is_down`."""

    def __init__(self) -> None:
        self.known, self.is_down, self.asked = {7}, False, list[int]()

    def fetch(self, id: int, format: ValueFormat) -> FetchedSchema | None:
        if self.is_down:
            raise RegistryError("it is down")
        self.asked.append(id)
        schema = SCHEMAS[id] if id in self.known else None
        return None if schema is None else FetchedSchema(schema, json.dumps(schema).encode())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    made = Registry()
    monkeypatch.setattr(SchemaRegistry, "fetch", lambda _, id, format: made.fetch(id, format))
    monkeypatch.setattr("overlay.schemas.gate.run_apart", run_here)
    return made


def run_here(function: Callable[[], Any], name: str) -> Future[Any]:
    """Run a function on the loop: a simulation has no threads."""
    future: Future[Any] = Future()
    try:
        future.set_result(function())
    except OverlayError as error:
        future.set_exception(error)
    return future


def configure(world: World, **more: object) -> Loaded:
    """Return the config of a new process, which knows no schema."""
    _load.cache_clear()
    stream = {
        "name": "S",
        "topics": ["source"],
        "subject": {"template": "s.{value:name}"},
        "properties": {"country": {"type": "string", "from": "{value:country}"}},
        "values": {"format": "avro", "registry": {"url": "http://registry:8081"}},
    }
    consumers = {"plain": {"ack_policy": "none"}, "acked": {"ack_policy": "explicit", "ack_wait": "3600s"}}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [stream, {"name": "OTHER", "topics": ["other"], "subject": {"template": "o.{key}"}}],
        [
            {"stream": "S", "durable_name": out, "deliver_subject": out, "filter": {"sql": "country = 'DK'"}, **each}
            for out, each in consumers.items()
        ]
        + [{"stream": "OTHER", "durable_name": "free", "deliver_subject": "free", "ack_policy": "none"}],
    )


def make(id: int, name: str) -> bytes:
    schema = SCHEMAS.get(id, FIRST)
    return b"\0" + id.to_bytes(4, "big") + encode(schema, {"country": "DK", "name": name, "total": 5})


def list_subjects(world: World, topic: str) -> list[str]:
    return [(record.header("Nats-Subject") or b"").decode() for record in read_topic(world.cluster, topic)]


async def await_subjects(world: World, topic: str, names: str) -> None:
    wanted = {f"s.{name}" for name in names.split()}
    await until(lambda: wanted <= set(list_subjects(world, topic)), f"{topic} has {names}")


def check_each_once(world: World, topic: str, names: str) -> None:
    assert sorted(list_subjects(world, topic)) == sorted(f"s.{name}" for name in names.split())
    sequences = read_sequences(world, topic)
    assert sequences == sorted(set(sequences))


async def write(world: World, partition: int, *records: tuple[int, str]) -> None:
    """Write each record as a batch of its own. `records`: ids of schemas and names."""
    for id, name in records:
        await send(world, "source", [New(partition, name.encode(), make(id, name))])


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("is_killed", [False, True])
def test_records_wait_for_the_registry_and_are_delivered_once(
    registry: Registry, partitions: int, is_killed: bool
) -> None:
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        for topic in ("source", "other"):
            world.cluster.create_topic(topic, partitions)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await write(world, 0, (7, "a0"), (7, "a1"))
        for output in ("plain", "acked"):
            await await_subjects(world, output, "a0 a1")
        registry.is_down = True
        registry.known.add(8)
        await write(world, 0, (7, "b0"), (8, "b1"), (7, "b2"), (8, "b3"))
        await write(world, partitions - 1, *([(7, "c0")] if partitions > 1 else []))
        await send(world, "other", [New(0, b"x", b"x")])
        went_on = "a0 a1 b0 c0" if partitions > 1 else "a0 a1 b0"
        for output in ("plain", "acked"):
            await await_subjects(world, output, went_on)
        await until(lambda: len(read_topic(world.cluster, "free")) == 1, "the other stream goes on")
        await asyncio.sleep(100)
        for output in ("plain", "acked"):
            check_each_once(world, output, went_on)
        assert registry.asked == [7]
        if is_killed:
            worker.kill()
            worker = Worker(world, "v", configure(world))
            worker.start()
            await asyncio.sleep(100)
        registry.is_down = False
        for output in ("plain", "acked"):
            await await_subjects(world, output, f"{went_on} b1 b2 b3")
            check_each_once(world, output, f"{went_on} b1 b2 b3")
        assert sorted(set(registry.asked)) == [7, 8] and registry.asked.count(8) == 1
        await worker.stop()

    world.run(history)


def test_an_id_that_the_registry_does_not_have_has_no_fields_until_it_is_asked_again(registry: Registry) -> None:
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        world.cluster.create_topic("other", 1)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await write(world, 0, (8, "a0"), (7, "a1"), (8, "a2"))
        await await_subjects(world, "plain", "a1")
        assert registry.asked.count(8) == 1
        registry.known.add(8)
        await asyncio.sleep(11)
        await write(world, 0, (8, "b0"))
        await await_subjects(world, "plain", "b0")
        check_each_once(world, "plain", "a1 b0")
        assert registry.asked.count(8) == 2
        await worker.stop()

    world.run(history)
