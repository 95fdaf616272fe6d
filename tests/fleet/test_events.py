"""`/fleet/events`: the whole picture first, then changes, for as many viewers as there may be, until the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from overlay.config import HttpConfig
from overlay.fleet import events
from overlay.fleet.delta import KEYS
from overlay.fleet.events import FAILED, Events, Viewer
from overlay.fleet.http import STAND_BY, make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.worker.access import make_guard

from .statuses import NOW, make_consumer, make_status

DEADLINE_S = 30
LONG = 32 << 20
Found = tuple[str, dict[str, Any]]


class Source:
    """A picture that a test changes, and how often it was looked at."""

    def __init__(self) -> None:
        self.picture: dict[str, Any] = {"time": 1, "consumers": [{"stream": "S", "name": "c", "lag": 3}]}
        self.looks = 0
        self.fault: Exception | None = None
        self.events = Events(self.look, "away", every=0.01)

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
    source.events.add_routes(app)
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


async def until(is_so: Callable[[], object]) -> None:
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
    written, write = list[int](), web.StreamResponse.write

    async def note(response: web.StreamResponse, data: bytes) -> None:
        written.append(len(data))
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", note)
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        assert await read_event(viewer) == ("picture", source.picture)
        source.set(lag=2)
        assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 2}}
    # the first has the time to wait
    assert max(written[1:]) == 7
    assert sum(written[1:]) > len(json.dumps(source.picture))


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


async def test_a_picture_is_written_beside_the_event_loop_and_changes_meanwhile_come_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, write = Source(), events._write
    gate, threads = threading.Event(), set[int]()

    def wait(name: str, body: Mapping[str, Any]) -> bytes:
        if name == "picture":
            threads.add(threading.get_ident())
            assert gate.wait(DEADLINE_S)
        return write(name, body)

    monkeypatch.setattr(events, "_write", wait)
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await until(lambda: threads)
        first = source.picture
        source.set(lag=2)
        looks = source.looks
        await until(lambda: source.looks > looks + 1)
        gate.set()
        assert await read_event(viewer) == ("picture", first)
        assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 2}}
    assert threading.get_ident() not in threads


async def test_a_picture_of_which_only_the_time_is_new_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 3_600)
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        source.set(lag=3, time=7)
        looks = source.looks
        await until(lambda: source.looks > looks + 2)
        source.set(lag=4, time=8)
        assert await read_event(viewer) == (
            "delta",
            {"time": 8, "consumers": {"gone": [], "rows": {"S/c": {"lag": 4}}}},
        )


async def test_a_heartbeat_has_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.05)
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        source.set(lag=3, time=7)
        while (found := await read_event(viewer)) == ("delta", {"time": 1}):
            """Of before."""
        assert found == ("delta", {"time": 7})


async def test_nothing_is_looked_at_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.02)
    source = Source()
    async with serving(source) as client:
        for _ in range(100):  # a look waits for nothing
            await asyncio.sleep(0)
        assert source.looks == 0
        viewer = await client.get("/fleet/events")
        await read_event(viewer)
        viewer.close()
        await until(lambda: not source.events._has_viewers.is_set())
        looks = source.looks
        source.set(lag=1)
        async with client.get("/fleet/events") as again:
            assert await read_event(again) == ("picture", source.picture), "what was known before is too old"
        assert looks < source.looks


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


async def test_viewers_are_told_that_a_look_has_failed_and_when_one_does_not() -> None:
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        with capture_logs() as logs:
            source.fault = RuntimeError("a fault of the test")
            assert await read_event(viewer) == ("absent", {"error": FAILED})
            looks = source.looks
            await until(lambda: source.looks > looks + 2)
            async with client.get("/fleet/events") as late:
                assert await read_event(late) == ("absent", {"error": FAILED})
            source.fault = None
            source.set(lag=9)
            assert await read_event(viewer) == ("picture", source.picture)
            source.fault = RuntimeError("a fault of the test")
            assert await read_event(viewer) == ("absent", {"error": FAILED})
        assert [entry["reason"] for entry in logs] == ["a fault of the test"] * 2, "once each time, not at each look"


async def test_a_picture_that_is_none_leaves_what_was_known() -> None:
    source = Source()
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        good, source.picture = source.picture, {"time": 5, "consumers": [{"stream": "no name"}]}
        assert await read_event(viewer) == ("absent", {"error": FAILED})
        source.picture = good
        assert await read_event(viewer) == ("picture", good)


async def test_after_a_failure_a_process_that_stands_by_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_S", 0.05)
    source = Source()
    source.fault = RuntimeError("a fault of the test")
    async with serving(source) as client, client.get("/fleet/events") as viewer:
        assert await read_event(viewer) == ("absent", {"error": FAILED})
        source.fault, source.picture = None, {}
        while (found := await read_event(viewer)) == ("absent", {"error": FAILED}):
            """Of before."""
        assert found == ("absent", {"error": "away"})


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


def test_what_waits_for_a_viewer_has_a_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_WAITING_BYTES", 10)
    viewer = Viewer(None, is_behind=False)
    viewer.put(b"one that is larger by itself")
    assert (len(viewer.waiting), viewer.is_behind) == (1, False)
    assert viewer.take() == b"one that is larger by itself"
    viewer.put(b"12345")
    viewer.put(b"67890")
    assert (len(viewer.waiting), viewer.is_behind) == (2, False)
    viewer.put(b"1")
    assert (len(viewer.waiting), viewer.is_behind) == (0, True)


def test_events_are_taken_in_their_order() -> None:
    viewer = Viewer(None, is_behind=False)
    for event in (b"1", b"2"):
        viewer.put(event)
    assert (viewer.take(), viewer.wake.is_set()) == (b"1", True)
    assert (viewer.take(), viewer.wake.is_set()) == (b"2", False)
    assert viewer.take() == b""


def connect_deaf(client: TestClient[web.Request, web.Application]) -> socket.socket:
    """A viewer that asks and reads nothing."""
    deaf = socket.create_connection((client.host, client.port or 0))
    deaf.sendall(b"GET /fleet/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return deaf


def drain(deaf: socket.socket) -> int:
    """How many bytes are still to be had from a connection that was cut."""
    deaf.settimeout(DEADLINE_S)
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while part := deaf.recv(1 << 16):
            count += len(part)
    return count


def make_long(source: Source, time: int = 1) -> None:
    """A picture that the buffers of a connection do not hold."""
    source.picture = {**source.picture, "time": time, "ignored": {"text": "x" * LONG}}


def find_sending(source: Source) -> list[Viewer]:
    return [viewer for viewer in source.events._viewers if len(viewer.message) > LONG]


async def test_a_viewer_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEND_S", 0.2)
    monkeypatch.setattr(events, "MOST_VIEWERS", 1)
    source = Source()
    make_long(source)
    async with serving(source) as client:
        with connect_deaf(client) as deaf:
            await until(lambda: source.looks > 0)
            async with asyncio.timeout(DEADLINE_S):
                while (await client.get("/fleet/events")).status != 200:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.01)
            assert await asyncio.to_thread(drain, deaf) < LONG


async def test_viewers_do_not_hold_more_and_more_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SEND_S", 3_600)
    monkeypatch.setattr(events, "MOST_HELD_BYTES", 2 * LONG)
    source = Source()
    make_long(source)
    async with serving(source) as client:
        with connect_deaf(client) as first, connect_deaf(client) as second:
            await until(lambda: len(find_sending(source)) == 2)
            slow = set(find_sending(source))
            assert len({id(viewer.message) for viewer in slow}) == 1, "they share one"
            make_long(source, time=2)
            looks = source.looks
            await until(lambda: source.looks > looks + 1)
            assert slow == source.events._viewers
            with connect_deaf(client) as third:
                await until(lambda: not source.events._viewers & slow)
                await until(lambda: len(find_sending(source)) == 1)
                for each in (first, second):
                    assert await asyncio.to_thread(drain, each) < LONG
                third.close()


async def test_a_stop_ends_the_responses_of_viewers_at_once() -> None:
    source = Source()
    app = web.Application()
    source.events.add_routes(app)
    server = TestServer(app)
    got = 0

    async def count(viewer: ClientResponse) -> None:
        nonlocal got
        async for part in viewer.content.iter_any():
            got += len(part)

    async with TestClient(server) as client, client.get("/fleet/events") as viewer:
        await read_event(viewer)
        (reader,) = source.events._viewers
        counting = asyncio.create_task(count(viewer))
        make_long(source, time=2)
        await until(lambda: got > LONG)
        with connect_deaf(client):
            # it has the whole picture to take, and the other one has all that there is
            await until(lambda: set(find_sending(source)) - {reader} and not reader.message)
            async with asyncio.timeout(DEADLINE_S):  # aiohttp would wait for 60 s
                await server.close()
            # the response has its end, and does not break off
            await counting


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
            assert KEYS.keys() <= picture.keys()
            live.memory.fold(make_status(number=1, consumers=(make_consumer(lag=0),)), NOW)
            live.judge(0)
            assert (await read_event(viewer))[1]["consumers"]["rows"] == {"S/c": {"lag": 0}}
