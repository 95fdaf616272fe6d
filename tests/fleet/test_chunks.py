"""`/fleet/chunks`: a look at the index on request, one at a time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from overlay.errors import OverlayError
from overlay.fleet import chunks
from overlay.fleet.chunks import ChunkLooks
from overlay.fleet.http import make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics

ASKED = {"stream": "S", "consumer": "c"}
DEADLINE_S = 30


class Drawer:
    """Draws chunks, and notes for which consumers. `gate`: what it waits for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.has_begun = threading.Event()

    def draw(self, stream: str, name: str) -> dict[str, Any]:
        self.calls.append((stream, name))
        self.has_begun.set()
        assert self.gate.wait(DEADLINE_S)
        if name == "unknown":
            raise OverlayError(f"there is no consumer {stream}/{name}")
        return {"partitions": [], "kinds": {}, "text": name}


def serve(drawer: Drawer) -> TestServer:
    return TestServer(make_app(LivePicture(), FleetMetrics(), chunks=ChunkLooks(drawer.draw)))


async def test_a_look_is_made_once_for_all_who_ask_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    drawer = Drawer()
    async with TestClient(serve(drawer)) as client:
        for _ in range(2):
            answer = await client.get("/fleet/chunks", params=ASKED)
            assert (answer.status, (await answer.json())["text"]) == (200, "c")
        assert drawer.calls == [("S", "c")]
        monkeypatch.setattr(chunks, "KEEP_S", 0.0)
        assert (await client.get("/fleet/chunks", params=ASKED)).status == 200
        assert drawer.calls == [("S", "c")] * 2


async def test_only_some_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MOST_KEPT", 2)
    drawer = Drawer()
    async with TestClient(serve(drawer)) as client:
        for name in ("c", "d", "e", "d", "c"):
            await client.get("/fleet/chunks", params={"stream": "S", "consumer": name})
    assert [name for _, name in drawer.calls] == ["c", "d", "e", "c"]


async def test_one_look_runs_at_a_time() -> None:
    drawer = Drawer()
    drawer.gate.clear()
    async with TestClient(serve(drawer)) as client:
        first = asyncio.create_task(client.get("/fleet/chunks", params=ASKED))
        assert await asyncio.to_thread(drawer.has_begun.wait, DEADLINE_S)
        second = await client.get("/fleet/chunks", params={"stream": "S", "consumer": "d"})
        assert (second.status, "under way" in (await second.json())["error"]) == (503, True)
        drawer.gate.set()
        assert (await first).status == 200
        assert (await client.get("/fleet/chunks", params={"stream": "S", "consumer": "d"})).status == 200


async def test_a_look_whose_request_has_ended_still_runs_alone_and_is_kept() -> None:
    drawer = Drawer()
    drawer.gate.clear()
    looks = ChunkLooks(drawer.draw)

    async def ask(name: str) -> int:
        request = make_mocked_request("GET", f"/fleet/chunks?stream=S&consumer={name}")
        return (await looks._serve(request)).status

    first = asyncio.create_task(ask("c"))
    assert await asyncio.to_thread(drawer.has_begun.wait, DEADLINE_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await ask("d") == 503
    drawer.gate.set()
    async with asyncio.timeout(DEADLINE_S):
        while await ask("c") != 200:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    assert drawer.calls == [("S", "c")]


@pytest.mark.parametrize(
    ("params", "status", "words"),
    [
        ({}, 400, "say ?stream="),
        ({"stream": "S"}, 400, "say ?stream="),
        ({"stream": "S", "consumer": "x" * 256}, 400, "say ?stream="),
        ({"stream": "S", "consumer": "unknown"}, 502, "there is no consumer S/unknown"),
    ],
)
async def test_what_cannot_be_answered_says_why(params: dict[str, str], status: int, words: str) -> None:
    async with TestClient(serve(Drawer())) as client:
        answer = await client.get("/fleet/chunks", params=params)
        assert (answer.status, words in (await answer.json())["error"]) == (status, True)


async def test_without_looks_there_is_no_route() -> None:
    async with TestClient(TestServer(make_app(LivePicture(), FleetMetrics()))) as client:
        assert (await client.get("/fleet/chunks", params=ASKED)).status == 404
