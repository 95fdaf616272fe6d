"""Actions of the status page: who may do what, and what the service is asked."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.errors import OverlayError
from overlay.fleet.actions import HEADER, MAX_BODY, Action, Actions, Kind
from overlay.fleet.findings import Expected
from overlay.fleet.http import make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.fleet.page import read_page

from .statuses import NOW, make_status

TOKEN = "an-administrators-secret"
PAUSE: dict[str, Any] = {"action": "pause", "stream": "S", "consumer": "c", "seconds": 60}


class Asked:
    """Notes what the service would be asked. `refusal`: what it answers, if it refuses."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.refusal = ""

    def _note(self, *call: object) -> None:
        if self.refusal:
            raise OverlayError(self.refusal)
        self.calls.append(call)

    def pause(self, stream: str, name: str, until: timedelta) -> bool:
        self._note("pause", stream, name, until)
        return True

    def resume(self, stream: str, name: str) -> None:
        self._note("resume", stream, name)

    def drain(self, worker: str, boot: str) -> None:
        self._note("drain", worker, boot)

    def undrain(self, worker: str) -> None:
        self._note("undrain", worker)

    def plan_reset(self, stream: str, to: str) -> str:
        self._note("plan_reset", stream, to)
        return f"c, t-0: 5 -> 0\nall of {stream} is delivered again"

    def reset(self, stream: str, to: str) -> str:
        self._note("reset", stream, to)
        return f"stream {stream} begins anew at the {to} of its topics"

    def plan_replay(self, stream: str, name: str, to: str | None) -> str:
        self._note("plan_replay", stream, name, to)
        return f"2 dead letters of {stream}/{name} go to topic {to or 't'}:"

    def replay(self, stream: str, name: str, to: str | None) -> str:
        self._note("replay", stream, name, to)
        return f"2 of 2 dead letters of {stream}/{name} are replayed to topic {to or 't'}"


class Page:
    """The pages of a fleet process that knows two workers, and what it asks."""

    def __init__(self) -> None:
        self.asked = Asked()
        self.live = LivePicture(expected=Expected(2, "d1", frozenset()))
        for number, (worker, boot) in enumerate((("v", "b1"), ("w", "b2"))):
            status = make_status(worker=worker, boot=boot, shard_count=2, shards=(number,))
            self.live.memory.fold(status, NOW)
        self.app = make_app(self.live, FleetMetrics(), Actions(lambda: TOKEN, self.asked, self.live))
        self.client: TestClient[Any, Any] | None = None

    async def act(self, body: object, token: str = TOKEN, **headers: str) -> ClientResponse:
        assert self.client is not None
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post("/actions", data=data, headers={HEADER: token, **headers})


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page()
    async with TestClient(TestServer(page.app)) as page.client:
        yield page


async def test_without_a_token_in_the_config_nothing_can_be_done() -> None:
    async with TestClient(TestServer(make_app(LivePicture(), FleetMetrics()))) as client:
        assert (await client.get("/actions")).status == 404
        assert (await client.post("/actions", json=PAUSE, headers={HEADER: ""})).status == 404


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN} x", "\u00e9"])
async def test_a_wrong_token_does_nothing(page: Page, token: str) -> None:
    answer = await page.act(PAUSE, token, Authorization=f"Bearer {TOKEN}")
    assert answer.status == 403
    assert TOKEN not in await answer.text()
    assert page.asked.calls == []


async def test_a_consumer_is_paused_and_resumed(page: Page) -> None:
    answer = await page.act(PAUSE)
    assert (answer.status, await answer.json()) == (200, {"done": "S/c is paused for 0:01:00"})
    assert (await page.act({"action": "resume", "stream": "S", "consumer": "c"})).status == 200
    assert page.asked.calls == [("pause", "S", "c", timedelta(seconds=60)), ("resume", "S", "c")]


async def test_a_worker_is_drained_as_it_was_started(page: Page) -> None:
    """The start is named too, so that the next one is not drained by an old request."""
    early = await page.act({"action": "drain", "worker": "v"})
    assert (early.status, "no picture" in await early.text()) == (409, True)
    page.live.judge(0)
    assert (await page.act({"action": "drain", "worker": "v"})).status == 200
    assert (await page.act({"action": "undrain", "worker": "v"})).status == 200
    assert page.asked.calls == [("drain", "v", "b1"), ("undrain", "v")]
    unknown = await page.act({"action": "drain", "worker": "u"})
    assert (unknown.status, "no worker u" in await unknown.text()) == (409, True)


async def test_a_plan_is_told_and_nothing_is_done(page: Page) -> None:
    reset = {"action": "reset", "stream": "S", "to": "end"}
    replay = {"action": "replay", "stream": "S", "consumer": "c"}
    planned = await page.act({**reset, "dry_run": True})
    assert (planned.status, await planned.json()) == (
        200,
        {"plan": "c, t-0: 5 -> 0\nall of S is delivered again"},
    )
    planned = await page.act({**replay, "dry_run": True})
    assert (await planned.json())["plan"] == "2 dead letters of S/c go to topic t:"
    assert page.asked.calls == [("plan_reset", "S", "end"), ("plan_replay", "S", "c", None)]
    assert (await page.act({**reset, "dry_run": True}, "wrong")).status == 403


async def test_a_stream_is_reset_and_dead_letters_are_replayed(page: Page) -> None:
    reset = await page.act({"action": "reset", "stream": "S", "to": "start"})
    assert await reset.json() == {"done": "stream S begins anew at the start of its topics"}
    replay = await page.act({"action": "replay", "stream": "S", "consumer": "c", "to": "repaired"})
    assert "are replayed to topic repaired" in (await replay.json())["done"]
    assert page.asked.calls == [("reset", "S", "start"), ("replay", "S", "c", "repaired")]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body"),
        (b"[]", 400, "the body"),
        (b"\xff", 400, "the body"),
        ({"action": "delete", "stream": "S", "consumer": "c"}, 400, "action"),
        ({**PAUSE, "stream": 5}, 400, "stream"),
        ({**PAUSE, "seconds": 0}, 400, "seconds"),
        ({**PAUSE, "seconds": 10**9}, 400, "seconds"),
        ({**PAUSE, "force": True}, 400, "force"),
        ({"action": "pause", "stream": "S", "seconds": 1}, 409, "wants a stream and a consumer"),
        ({"action": "pause", "stream": "S", "consumer": "c"}, 409, "wants seconds"),
        ({"action": "drain"}, 409, "wants a worker"),
        ({"action": "reset", "to": "start"}, 409, "wants a stream"),
        ({"action": "reset", "stream": "S"}, 409, "wants to: start or end"),
        ({"action": "reset", "stream": "S", "to": "middle"}, 409, "wants to: start or end"),
        ({"action": "replay", "stream": "S"}, 409, "wants a stream and a consumer"),
        ({"action": "replay", "stream": "S", "consumer": "c", "to": ""}, 400, "to"),
        ({**PAUSE, "dry_run": True}, 409, "pause has no dry_run"),
        ({**PAUSE, "dry_run": 1}, 400, "dry_run"),
        (b" " * (MAX_BODY + 1), 413, "at most"),
    ],
)
async def test_what_is_no_action_says_why(page: Page, body: object, status: int, words: str) -> None:
    answer = await page.act(body)
    assert answer.status == status
    assert words in (await answer.json())["error"]
    assert page.asked.calls == []


@pytest.mark.parametrize("size", [MAX_BODY, MAX_BODY + 1, 3 << 20])
async def test_a_body_without_a_length_has_the_same_limit(page: Page, size: int) -> None:
    """A chunked body has no Content-Length, and above 1 MiB aiohttp has an answer of its own."""

    async def write() -> AsyncIterator[bytes]:
        body = json.dumps(PAUSE).encode().ljust(size)
        for at in range(0, size, 1_000):
            yield body[at : at + 1_000]

    assert page.client is not None
    answer = await page.client.post("/actions", data=write(), headers={HEADER: TOKEN})
    if size <= MAX_BODY:
        assert (answer.status, len(page.asked.calls)) == (200, 1)
        return
    assert (answer.status, await answer.json()) == (413, {"error": f"an action has at most {MAX_BODY} bytes"})
    assert page.asked.calls == []


@pytest.mark.parametrize(
    ("coding", "body"), [("gzip", b"{}"), ("deflate", b"\xff"), ("gzip", gzip.compress(bytes(1 << 21)))]
)
async def test_a_coded_body_is_refused_as_json(page: Page, coding: str, body: bytes) -> None:
    answer = await page.act(body, **{"Content-Encoding": coding})
    assert answer.status in (400, 413)
    assert (await answer.json())["error"]
    assert page.asked.calls == []


async def test_what_the_service_refuses_is_told(page: Page) -> None:
    page.asked.refusal = "there is no consumer S/c"
    answer = await page.act(PAUSE)
    assert (answer.status, await answer.json()) == (502, {"error": "there is no consumer S/c"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
async def test_no_body_breaks_it(page: Page, body: object) -> None:
    is_large = len(json.dumps(body)) > MAX_BODY
    assert (await page.act(body)).status == (413 if is_large else 400)


async def test_the_page_offers_what_there_is(page: Page) -> None:
    assert page.client is not None
    found = await (await page.client.get("/actions")).json()
    assert found == {"actions": [kind.value for kind in Kind], "header": HEADER}
    html = read_page()[0]
    offered = {word for word in found["actions"] if f'action: "{word}"' in html}
    assert offered == set(found["actions"])
    assert all(f"{name}: r." in html or f"{name}:" in html for name in Action.model_fields if name != "action")
    planned = {kind.value for kind in Kind if kind.has_plan}
    assert {*re.findall(r'action: "(\w+)".*plans: true', html)} == planned
