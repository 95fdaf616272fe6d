"""`/fleet/events`: the whole picture first, then changes, for as many viewers as there may be, until the process ends."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer

from overlay.config import HttpConfig
from overlay.fleet import events
from overlay.fleet.delta import KEYS
from overlay.fleet.events import Events, Viewer
from overlay.fleet.http import STAND_BY, make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.worker.access import make_guard

from .statuses import NOW, make_consumer, make_status

DEADLINE_S = 30
Found = tuple[str, dict[str, Any]]


class Source:
    """A picture that a test changes, and how often it was looked at."""

    def __init__(self) -> None:
        self.picture: dict[str, Any] = {"time": 1, "consumers": [{"stream": "S", "name": "c", "lag": 3}]}
        self.looks = 0
        self.fault: Exception | None = None

    async def look(self) -> dict[str, Any]:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return self.picture

    def set(self, lag: int, time: int = 2) -> None:
        self.picture = {"time": time, "consumers": [{"stream": "S", "name": "c", "lag": lag}]}


@asynccontextmanager
async def serving(source: Source) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    app = web.Application()
    Events(source.look, "away", every=0.01).add_routes(app)
    async with TestClient(TestServer(app)) as client:
        yield client


async def read_event(response: ClientResponse) -> Found:
    """The next event of a response: its name and its data; comments and the time to wait are passed over."""
    name = ""
    async with asyncio.timeout(DEADLINE_S):
        while line := (await response.content.readline()).decode().rstrip("\n"):
            name = line.removeprefix("event: ") if line.startswith("event: ") else name
            if line.startswith("data: "):
                await response.content.readline()
                return name, json.loads(line.removeprefix("data: "))
            if not name:
                await response.content.readline()
    raise AssertionError("the response has ended")


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def test_a_viewer_gets_the_picture_and_then_what_changes() -> None:
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as first:
        assert (first.status, first.content_type) == (200, "text/event-stream")
        assert first.headers["Cache-Control"] == "no-store"
        assert await read_event(first) == ("picture", source.picture)
        source.set(lag=2)
        delta = {"time": 2, "consumers": {"gone": [], "rows": {"S/c": {"lag": 2}}}}
        assert await read_event(first) == ("delta", delta)
        async with client.get("/fleet/events") as second:
            assert await read_event(second) == ("picture", source.picture)
            source.picture = {"time": 3, "consumers": []}
            gone = "delta", {"time": 3, "consumers": {"gone": ["S/c"], "rows": {}}}
            assert await read_event(first) == gone
            assert await read_event(second) == gone


async def test_what_is_long_is_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLICE", 7)
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        assert await read_event(viewer) == ("picture", source.picture)
        source.set(lag=2)
        assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 2}}


async def test_a_change_is_written_once_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    source, written = Source(), list[str]()
    write = events._write

    def note(name: str, body: Mapping[str, Any]) -> bytes:
        written.append(name)
        return write(name, body)

    monkeypatch.setattr(events, "_write", note)
    async with serving(source) as client:
        viewers = [await client.get("/fleet/events") for _ in range(5)]
        assert {(await read_event(viewer))[0] for viewer in viewers} == {"picture"}
        source.set(lag=2)
        assert {(await read_event(viewer))[0] for viewer in viewers} == {"delta"}
        assert written.count("picture") <= 2, "one that comes before the first look, and after it"
        assert written.count("delta") == 1


async def test_a_picture_of_which_only_the_time_is_new_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.05)
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        source.set(lag=3, time=7)
        looks = source.looks
        await until(lambda: source.looks > looks + 2)
        # a heartbeat has the time alone
        found = [await read_event(viewer) for _ in range(3)]
        assert found[-1] == ("delta", {"time": 7})


async def test_nothing_is_looked_at_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.02)
    source = Source()
    async with serving(source) as client:
        await asyncio.sleep(0.1)
        assert source.looks == 0
        viewer = await client.get("/fleet/events")
        await read_event(viewer)
        viewer.close()
        seen = -1

        def has_stopped() -> bool:
            nonlocal seen
            before, seen = seen, source.looks
            return before == seen

        await until(has_stopped)
        source.set(lag=1)
        async with client.get("/fleet/events") as again:
            assert await read_event(again) == ("picture", source.picture), "what was known before is too old"


async def test_viewers_are_told_that_there_is_no_picture_and_when_there_is_one_again() -> None:
    source = Source()
    picture, source.picture = source.picture, {}
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        absent = "absent", {"error": "away"}
        assert await read_event(viewer) == absent
        source.picture = picture
        assert await read_event(viewer) == ("picture", picture)
        source.picture = {}
        assert await read_event(viewer) == absent


async def test_a_look_that_fails_ends_nothing() -> None:
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        source.fault = RuntimeError("a fault of the test")
        looks = source.looks
        await until(lambda: source.looks > looks)
        source.fault = None
        source.set(lag=9)
        assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 9}}


async def test_there_is_a_bound_on_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_VIEWERS", 2)
    monkeypatch.setattr(events, "BEAT_S", 0.02)
    async with serving(Source()) as client:
        viewers = [await client.get("/fleet/events") for _ in range(2)]
        for viewer in viewers:
            await read_event(viewer)
        refused = await client.get("/fleet/events")
        assert refused.status == 503
        assert "2 pages watch already" in (await refused.json())["error"]
        viewers[0].close()
        async with asyncio.timeout(DEADLINE_S):
            # its end is noticed when something is sent to it
            while (await client.get("/fleet/events")).status != 200:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)


def test_a_viewer_that_takes_too_little_gets_the_whole_picture_again() -> None:
    viewer = Viewer(None, is_behind=False)
    for number in range(events.MOST_WAITING):
        viewer.put(b"%d" % number)
    assert (len(viewer.waiting), viewer.is_behind) == (events.MOST_WAITING, False)
    viewer.put(b"one too many")
    assert (len(viewer.waiting), viewer.is_behind) == (0, True)
    viewer.put(b"which the whole picture has")
    assert len(viewer.waiting) == 0
    assert viewer.wake.is_set()


def connect_deaf(client: TestClient[web.Request, web.Application]) -> socket.socket:
    """A viewer that asks and reads nothing."""
    deaf = socket.create_connection((client.host, client.port or 0))
    deaf.sendall(b"GET /fleet/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return deaf


async def test_a_viewer_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEND_S", 0.2)
    monkeypatch.setattr(events, "MOST_VIEWERS", 1)
    source = Source()
    source.picture["ignored"] = {"text": "x" * (32 << 20)}
    async with serving(source) as client:
        deaf = connect_deaf(client)
        await until(lambda: source.looks > 0)
        assert (await client.get("/fleet/events")).status == 503
        async with asyncio.timeout(DEADLINE_S):
            while (await client.get("/fleet/events")).status != 200:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        deaf.close()


async def test_a_stop_ends_the_responses_of_viewers_at_once() -> None:
    source = Source()
    app = web.Application()
    Events(source.look, "away", every=0.01).add_routes(app)
    server = TestServer(app)
    async with TestClient(server) as client:
        async with client.get("/fleet/events") as viewer:
            await read_event(viewer)
            reading = asyncio.create_task(viewer.content.read())
            source.picture = {**source.picture, "ignored": {"text": "x" * (32 << 20)}}
            deaf = connect_deaf(client)
            looks = source.looks
            await until(lambda: source.looks > looks + 1)
            async with asyncio.timeout(10):  # aiohttp would wait for 60 s
                await server.close()
            # the response has its end, and does not break off
            assert await reading
        deaf.close()


async def test_the_fleet_has_events_with_the_rules_of_its_other_pages() -> None:
    live = LivePicture()
    app = make_app(live, FleetMetrics())
    app.middlewares.append(make_guard(HttpConfig(token="a-secret-of-24-characters"), "127.0.0.1"))
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/fleet/events")).status == 401
        bearer = {"Authorization": "Bearer a-secret-of-24-characters"}
        assert (await client.get("/fleet/events", headers={**bearer, "Host": "evil.example"})).status == 403
        async with client.get("/fleet/events", headers=bearer) as viewer:
            assert await read_event(viewer) == ("absent", {"error": STAND_BY})
            live.memory.fold(make_status(consumers=(make_consumer(lag=7),)), NOW)
            live.judge(0)
            name, picture = await read_event(viewer)
            assert (name, picture["consumers"][0]["lag"]) == ("picture", 7)
            assert KEYS.keys() - {"streams"} <= picture.keys()
            live.memory.fold(make_status(number=1, consumers=(make_consumer(lag=0),)), NOW)
            live.judge(0)
            assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 0}}
