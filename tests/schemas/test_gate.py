"""Waits for a schema registry, against a small one over HTTP: what is asked, how often, and what is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from overlay.config import StreamConfig
from overlay.config.values import ValuesConfig, read_schemas
from overlay.schemas.gate import SchemaGate, open_gate
from overlay.waits import until
from tests.support.schema_registry import Registry, serve_registry

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "country", "type": "string"}]}
SOURCE = ("orders", 0)
DEADLINE_S = 60.0


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("overlay.schemas.gate.PAUSE_S", (0.01, 0.05))
    monkeypatch.setattr("overlay.schemas.registry_client.TIMEOUT_S", DEADLINE_S)
    made = Registry()
    made.add("orders-value", 7, FIRST)
    return made


class Opened:
    """A gate, and the outcomes of its questions."""

    def __init__(self, url: str, folder: Path | None = None, **settings: str) -> None:
        given: dict[str, Any] = {"format": "avro", "registry": {"url": url, **settings}}
        if folder is not None:
            given["schemas"] = folder.name
        values = ValuesConfig.model_validate(given)
        if folder is not None:
            values = read_schemas(values, folder.parent)
        stream = StreamConfig.model_validate({"name": "S", "topics": ("orders",)})
        self.stream = stream.model_copy(update={"values": values})
        self.outcomes: list[str] = []
        gate = open_gate(self.stream, self.outcomes.append)
        assert gate is not None
        self.gate: SchemaGate = gate

    async def settle(self, *ids: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(self.gate.settle(("orders", number), id, 5) for number, id in enumerate(ids)))


async def test_an_id_is_asked_for_once_however_many_partitions_and_gates_wait(registry: Registry) -> None:
    with serve_registry(registry) as url:
        opened = Opened(url)
        other = open_gate(opened.stream)
        assert other is not None and other.book is opened.gate.book
        await asyncio.gather(opened.settle(7, 7, 99, 7), other.settle(SOURCE, 7, 0), other.settle(SOURCE, 99, 0))
    assert (registry.count_asked("/schemas/ids/7"), registry.count_asked("/schemas/ids/99")) == (1, 1)
    assert dict(opened.gate.book.known) == {7: FIRST}
    assert not opened.gate.waits and not other.waits


async def test_a_registry_that_is_down_is_asked_until_it_answers(registry: Registry) -> None:
    registry.answers["/schemas/ids/7"] = 503, {}, b""
    with serve_registry(registry) as url:
        opened = Opened(url)
        waiting = asyncio.create_task(opened.settle(7))
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: len(opened.outcomes) > 2, pause_s=0.005)
        wait = opened.gate.waits[SOURCE]
        assert (wait.id, wait.offset) == (7, 5) and "status 503" in wait.trouble
        assert opened.gate.trouble == wait.trouble
        del registry.answers["/schemas/ids/7"]
        await waiting
    assert set(opened.outcomes[:-1]) == {"failed"} and opened.outcomes[-1] == "fetched"
    assert not opened.gate.waits


async def test_what_the_registry_cannot_give_is_settled_as_well(registry: Registry) -> None:
    registry.add("other-value", 30, {"type": "recrod"})
    registry.add("json-value", 31, {}, schemaType="JSON")
    registry.add("lost-value", 32, FIRST, references=[{"name": "x", "subject": "gone", "version": 1}])
    with serve_registry(registry) as url:
        opened = Opened(url)
        await opened.settle(99, 30, 31, 32)
    assert sorted(opened.outcomes) == ["unknown", "unusable", "unusable", "unusable"]
    assert not opened.gate.book.known


async def test_a_wait_that_is_cancelled_lets_the_next_one_ask(registry: Registry) -> None:
    registry.answers["/schemas/ids/7"] = 503, {}, b""
    with serve_registry(registry) as url:
        opened = Opened(url)
        first = asyncio.create_task(opened.settle(7))
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: opened.outcomes, pause_s=0.005)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not opened.gate.waits
        del registry.answers["/schemas/ids/7"]
        await opened.settle(7)


async def test_schemas_are_kept_in_the_folder_and_found_there(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    with serve_registry(registry) as url:
        await Opened(url, folder).settle(7)
        assert json.loads((folder / "7.avsc").read_text(encoding="utf-8")) == FIRST
        opened = Opened(url, folder)
        assert dict(opened.gate.book.known) == {7: FIRST}
        (folder / "8.avsc").write_text(json.dumps(FIRST), encoding="utf-8")
        await opened.settle(8)
    assert registry.count_asked("/schemas/ids/7") == 1 and registry.count_asked("/schemas/ids/8") == 0


async def test_a_folder_that_cannot_be_written_keeps_nothing_back(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    with serve_registry(registry) as url:
        opened = Opened(url, folder)
        folder.write_text("a file in its place", encoding="utf-8")
        await opened.settle(7)
    assert dict(opened.gate.book.known) == {7: FIRST}


async def test_ids_beyond_the_limit_of_a_minute_wait(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.config.schema_book.ASKED_A_MINUTE", 3)
    with serve_registry(registry) as url:
        opened = Opened(url)
        waiting = asyncio.create_task(opened.settle(*range(100, 110)))
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: len(opened.outcomes) >= 3, pause_s=0.005)
        await asyncio.sleep(0.2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(registry.asked) == 3


async def test_an_id_that_the_registry_cannot_answer_keeps_no_other_back(registry: Registry) -> None:
    registry.add("orders-value", 8, FIRST)
    registry.answers["/schemas/ids/7"] = 500, {}, b""
    with serve_registry(registry) as url:
        opened = Opened(url)
        stuck = asyncio.create_task(opened.settle(7))
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: opened.outcomes, pause_s=0.005)
            await opened.gate.settle(("orders", 1), 8, 0)
        assert not stuck.done()
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
