"""A worker with nothing to do: how little it does, and how soon it notices that there is something."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.control.serve import RequestServer
from overlay.worker.round.pipeline import Pipeline

from .host import Worker, read_config, warm_up
from .scenes import await_records
from .world import World
from .writing import New, send

IDLE_S = 50.0


def configure(world: World, *names: str) -> Loaded:
    consumers = [
        {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none"} for name in names
    ]
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}, "index": {"chunk_age": "2s"}}],
        consumers,
    )


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, counts: Counter[str]) -> None:
    """Count the calls of a method by its name."""
    method: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **fields: Any) -> Any:
        counts[name] += 1
        return method(*args, **fields)

    monkeypatch.setattr(owner, name, call)


def test_an_idle_worker_runs_no_rounds_and_looks_for_requests_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up()
    world = World(1)
    counts: Counter[str] = Counter()
    count_calls(monkeypatch, Pipeline, "run", counts)
    count_calls(monkeypatch, RequestServer, "_turn", counts)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        worker = Worker(world, "w", configure(world, "c"))
        worker.start()
        await send(world, "source", [New(0, b"k", b"v")])
        await await_records(world, "out-c", 1)
        await asyncio.sleep(10)  # the chunk is sealed meanwhile
        counts.clear()
        await asyncio.sleep(IDLE_S)
        assert counts["run"] <= 1
        assert IDLE_S * 0.8 < counts["_turn"] < IDLE_S * 1.5
        await send(world, "source", [New(0, b"k", b"w")])
        await await_records(world, "out-c", 2, 2.0)

    world.run(history)


def test_changed_files_are_taken_up_at_once() -> None:
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        worker = Worker(world, "w", configure(world, "c"))
        worker.start()
        await send(world, "source", [New(0, b"k", b"v")])
        await await_records(world, "out-c", 1)
        for number in range(5):
            await asyncio.sleep(7.3)
            names = ("c", "d") if number % 2 == 0 else ("c",)
            worker.reload(configure(world, *names))
            await asyncio.sleep(0.1)
            request_server = worker.service._request_server
            assert request_server is not None
            assert {name for _, name in request_server.registry.files.consumers} == set(names)

    world.run(history)
