"""The status page in a real browser: what an operator sees and clicks, in both themes, wide and narrow."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from overlay.fleet import events
from overlay.fleet.actions import Actions
from overlay.fleet.chunks import ChunkLooks
from overlay.fleet.findings import Expected
from overlay.fleet.http import STAND_BY, make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.worker import http
from tests.support.browser import CHROMIUM, Tab, open_tab

from .statuses import NOW, make_consumer, make_status
from .test_actions import TOKEN, Asked

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH: install it to look at the page")
COUNT = 300


PAINT_S, SORT_MS = 20.0, 2_000
"""Limits for 5,000 rows, with a lot of room for slow machines."""


class FullPicture(LivePicture):
    """A picture with streams, and with dead letters by their causes."""

    def describe(self, monotonic: int) -> dict[str, Any]:
        found = super().describe(monotonic)
        return found and {
            **found,
            "streams": [
                {"name": "S", "topic": "flights", "partitions": 6, "rate": 1234.5, "lag": 4_200, "owners": ["v", "w"],
                 "state": "running", "reason": "", "index": "running", "index_lag": 3},
                {"name": "T", "topic": "trips", "partitions": 1, "rate": 0.0, "lag": None, "owners": [], "state": "stopped",
                 "reason": "", "index": "", "index_lag": None},
            ],
            "consumers": [
                {**row, "dead_letters": {"max_deliver": 3, "term": 1} if row["name"] == "late-50" else {}}
                for row in found["consumers"]
            ],
        }  # fmt: skip


def make_live(count: int = COUNT) -> LivePicture:
    """Two workers with consumers of which some are paused and some stalled."""
    live = FullPicture(expected=Expected(2, "d1", frozenset()))
    consumers = []
    for number in range(count):
        state = "paused" if number == 100 else "stalled" if number % 100 == 50 else "running"
        reason = "<b>bold</b>" if state == "stalled" else ""
        consumers.append(make_consumer(f"late-{number}", state=state, lag=number, reason=reason, positions={"t-0": 7}))
    # a status has room for 200
    for number in range(0, count, 200):
        part = tuple(consumers[number : number + 200])
        status = make_status("v", boot="b1", number=number, shard_count=2, shards=(0,), consumers=part)
        live.memory.fold(status, NOW)
    live.memory.fold(make_status("w", boot="b2", shard_count=2, shards=(1,)), NOW)
    live.judge(0)
    return live


def tell(live: LivePicture, number: int, **fields: Any) -> None:
    """Have worker v tell of one more consumer, or tell something else of it."""
    told = (make_consumer(**fields),)
    live.memory.fold(make_status("v", boot="b1", number=number, shard_count=2, shards=(0,), consumers=told), NOW)
    live.judge(0)


def draw_some(stream: str, name: str) -> dict[str, Any]:
    kinds = {"skipped": "skipped", "read": "read", "unindexed": "not indexed, read", "matched": "matched"}
    cells = ["skipped"] * 40 + ["read"] * 10 + ["matched"] * 4 + ["skipped"] * 20 + ["unindexed"] * 6
    part = {"partition": "flights-0", "first": 0, "end": 8_000, "cells": cells, "text": "80 chunks: 60 have no match"}
    return {"partitions": [part], "kinds": kinds, "text": f"A read for {stream}/{name} fetches 20 of 80 chunks."}


@asynccontextmanager
async def showing(asked: Asked | None, live: LivePicture | None = None) -> AsyncIterator[Tab]:
    """The page, with actions if `asked` is given."""
    live = live or make_live()
    actions = Actions(lambda: TOKEN, asked, live) if asked is not None else None
    app = make_app(live, FleetMetrics(), actions, ChunkLooks(draw_some))
    async with TestServer(app) as server, open_tab(str(server.make_url("/"))) as tab:
        await tab.until("document.querySelectorAll('#consumers tbody tr').length > 0")
        yield tab


def click(words: str, part: str) -> str:
    """A script that clicks the first button of a part with this text."""
    return f"[...document.querySelectorAll('#{part} button')].find((b) => b.textContent === '{words}').click()"


def text(selector: str) -> str:
    return f"document.querySelector('{selector}').textContent"


def search(words: str) -> str:
    """A script that searches for words."""
    return (
        f"{{ const s = document.querySelector('#search'); s.value = '{words}'; s.dispatchEvent(new Event('input')) }}"
    )


ROWS = "[...document.querySelectorAll('#consumers tbody tr')].map((row) => row.children[1].textContent)"
TOKEN_FIELD = "document.querySelector('#confirm .token').value = "
DO = "document.querySelector('#confirm .do').click()"
LAG = "document.querySelector('#consumers tbody tr [data-label=lag]').textContent"
ASKED_PATHS = "performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)"


async def test_rows_are_searched_sorted_and_shown_in_portions() -> None:
    async with showing(None) as tab:
        assert await tab.run("document.querySelectorAll('button.act').length") == 0, (
            "without a token nothing can be done"
        )
        assert len(await tab.run(ROWS)) == 200
        await tab.run("document.querySelector('#consumers .more').click()")
        assert len(await tab.run(ROWS)) == COUNT
        await tab.run(click("lag", "consumers"))
        assert (await tab.run(ROWS))[:2] == ["late-299", "late-298"]
        await tab.run(search("stalled"))
        await tab.until(f"{text('#consumers .count')} === '3 of 300'")
        assert await tab.run(ROWS) == ["late-250", "late-150", "late-50"]
        assert await tab.run("document.querySelectorAll('#consumers b').length") == 0, "foreign texts are no HTML"
        lines = "[...document.querySelectorAll('#streams tbody tr')]"
        assert await tab.run(f"{lines}.map((line) => [...line.children].map((cell) => cell.textContent))") == [
            ["S", "running", "flights", "6", "1,235", "4,200", "running", "3", "v, w"],
            ["T", "stopped", "trips", "1", "0", "-", "", "-", ""],
        ]
        await tab.run(click("dead letters", "consumers"))
        letters = "document.querySelector('#consumers tbody tr [data-label=\"dead letters\"]').textContent"
        assert await tab.run(letters) == "4 (max_deliver 3, term 1)"
        assert [told for told in tab.told if "404" not in told] == [], "but for /actions nothing is missing or refused"


async def test_a_picture_without_streams_and_dead_letters_has_neither_part() -> None:
    live = LivePicture(expected=Expected(1, "d1", frozenset()))
    live.memory.fold(make_status(consumers=(make_consumer(),)), NOW)
    live.judge(0)
    async with showing(None, live) as tab:
        assert await tab.run("document.querySelector('#streams').hidden")
        titles = await tab.run("[...document.querySelectorAll('#consumers th')].map((cell) => cell.textContent)")
        assert "lag" in titles and "dead letters" not in titles


async def test_advisories_and_dead_letters_are_shown_by_cause() -> None:
    live = make_live()
    async with showing(None, live) as tab:
        assert await tab.run("document.querySelector('#advisories').hidden")
        for kind in ("MSG_NAKED", "MSG_NAKED", "MAX_DELIVERIES"):
            live.tallies.take_event(f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.S.late-1".encode(), NOW, NOW)
        live.judge(0)
        await tab.until("!document.querySelector('#advisories').hidden")
        lines = "[...document.querySelectorAll('#advisories tbody tr')]"
        cells = f"{lines}.map((line) => [...line.children].slice(0, 5).map((cell) => cell.textContent))"
        assert await tab.run(cells) == [
            ["S", "late-1", "max deliveries", "1", "1"],
            ["S", "late-1", "msg naked", "2", "2"],
        ]
        await tab.run(click("last hour", "advisories"))
        assert (await tab.run(cells))[0][2] == "msg naked"


async def test_changes_come_by_themselves_and_leave_the_rest_alone() -> None:
    live = make_live()
    async with showing(None, live) as tab:
        await tab.run("kept = document.querySelector('#consumers tbody tr'); kept.querySelector('button.open').focus()")
        tell(live, 1_000, name="late-0", lag=777)
        await tab.until(f"{LAG} === '777'")
        assert await tab.run("kept.isConnected && kept.contains(document.activeElement)"), "the focus stays"
        tell(live, 1_001, name="a-new-one")
        await tab.until(f"{text('#consumers .count')} === '301'")
        assert await tab.run(ROWS + "[0]") == "a-new-one"
        assert await tab.run("document.querySelectorAll('#consumers tbody tr').length") == 200
        live.memory.fold(
            make_status("v", boot="b1", number=1_002, shard_count=2, shards=(0,), gone=("S/a-new-one",)), NOW
        )
        live.judge(0)
        await tab.until(f"{text('#consumers .count')} === '300'")
        assert await tab.run(ROWS + "[0]") == "late-0"
        asked = await tab.run(ASKED_PATHS)
        assert "/fleet" not in asked, "nothing is asked again and again"
        assert "live, as of" in await tab.run(text("#status"))


async def test_without_events_the_page_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_VIEWERS", 0)
    live = make_live()
    async with showing(None, live) as tab:
        assert "/fleet" in await tab.run(ASKED_PATHS)
        tell(live, 1_000, name="late-0", lag=777)
        await tab.until(f"{LAG} === '777'")
        monkeypatch.setattr(events, "MOST_VIEWERS", 10)
        await tab.until(f"{text('#status')}.startsWith('live, ')")


async def test_a_process_that_stands_by_says_so() -> None:
    live = make_live()
    async with showing(None, live) as tab:
        live.stand_by()
        await tab.until(f"{text('#status')}.includes('not refreshed: {STAND_BY[:24]}')")
        assert await tab.run("document.querySelector('#status').className") == "bad"
        assert len(await tab.run(ROWS)) == 200, "what was known stays to be seen"
        live.judge(0)
        await tab.until(f"{text('#status')}.startsWith('live, ')")


async def test_an_administrator_pauses_and_drains() -> None:
    asked = Asked()
    async with showing(asked) as tab:
        await tab.until("document.querySelectorAll('#consumers button.act').length === 200")
        await tab.run(click("pause", "consumers"))
        assert await tab.run(text("#confirm-title")) == "Pause S/late-0?"
        assert "delivers nothing" in await tab.run(text("#confirm .what"))
        await tab.run(TOKEN_FIELD + "'wrong'; " + DO)
        await tab.until(f"{text('#confirm .answer')}.includes('is not the http.admin_token')")
        assert asked.calls == []
        await tab.run(TOKEN_FIELD + f"'{TOKEN}'; " + DO)
        await tab.until("!document.querySelector('#confirm').open")
        assert "S/late-0 is paused for 1:00:00" in await tab.run(text("#said"))
        await tab.run(click("resume", "consumers") + "; " + DO)
        await tab.until("!document.querySelector('#confirm').open")
        await tab.run(click("drain", "workers"))
        assert "shards 0 to the other workers" in await tab.run(text("#confirm .what"))
        await tab.run("document.querySelector('#confirm .cancel').click()")
        assert not await tab.run("document.querySelector('#confirm').open")
        await tab.run(click("drain", "workers") + "; " + DO)
        await tab.until("!document.querySelector('#confirm').open")
    assert asked.calls == [
        ("pause", "S", "late-0", timedelta(hours=1)),
        ("resume", "S", "late-100"),
        ("drain", "v", "b1"),
    ]


async def test_a_reset_and_a_replay_show_first_what_they_do() -> None:
    asked = Asked()
    async with showing(asked) as tab:
        await tab.until("document.querySelectorAll('#streams button.act').length === 2")
        await tab.run(click("reset", "streams"))
        assert "begin anew at the start or the end" in await tab.run(text("#confirm .what"))
        assert await tab.run(text("#confirm .do")) == "see what it does"
        await tab.run(TOKEN_FIELD + f"'{TOKEN}'; " + DO)
        await tab.until(f"{text('#confirm .plan')}.includes('c, t-0: 5 -> 0')")
        assert await tab.run(text("#confirm .do")) == "reset"
        # a plan for the start says nothing of the end
        where = "document.querySelector('#confirm .where select')"
        await tab.run(f"{where}.value = 'end'; {where}.dispatchEvent(new Event('input'))")
        assert await tab.run(text("#confirm .plan")) == ""
        await tab.run(DO)
        await tab.until(f"{text('#confirm .do')} === 'reset'")
        await tab.run(DO)
        await tab.until("!document.querySelector('#confirm').open")
        assert "stream S begins anew at the end" in await tab.run(text("#said"))
        await tab.run(click("late-50", "consumers"))
        assert await tab.run(text("#details-title")) == "S/late-50"
        assert "max_deliver 3, term 1" in await tab.run(text("#details dl"))
        await tab.run(click("replay dead letters", "details") + "; " + DO)
        await tab.until(f"{text('#confirm .plan')} === '2 dead letters of S/late-50 go to topic t:'")
        await tab.run(DO)
        await tab.until("!document.querySelector('#confirm').open")
        assert await tab.run("document.querySelector('#details').open")
    assert asked.calls == [
        ("plan_reset", "S", "start"),
        ("plan_reset", "S", "end"),
        ("reset", "S", "end"),
        ("plan_replay", "S", "late-50", None),
        ("replay", "S", "late-50", None),
    ]


async def test_the_details_follow_and_show_chunks() -> None:
    live = make_live()
    async with showing(None, live) as tab:
        await tab.run(click("late-0", "consumers"))
        assert await tab.run("document.querySelectorAll('#details .actions button').length") == 0
        tell(live, 1_000, name="late-0", lag=777, positions={"t-0": 1_234})
        await tab.until(f"{text('#details dl')}.includes('t-0: 1,234')")
        await tab.run("document.querySelector('#details .look').click()")
        await tab.until("document.querySelectorAll('#details .cells i').length === 80")
        assert "A read for S/late-0 fetches 20 of 80 chunks." in await tab.run(text("#details .chunks .answer"))
        assert "80 chunks" in await tab.run("document.querySelector('#details .cells').getAttribute('aria-label')")
        wide = "Math.min(...[...document.querySelectorAll('#details .cells i')].map((cell) => cell.offsetWidth))"
        assert await tab.run(wide) > 0
        await tab.run("document.querySelector('#details').close()")
        await tab.run(click("late-1", "consumers"))
        assert await tab.run("document.querySelectorAll('#details .cells').length") == 0


class OwnReports:
    """A worker with one consumer."""

    def report(self) -> Mapping[str, Any]:
        return {}

    def report_readiness(self) -> Mapping[str, Any]:
        return {"ready": True, "reasons": []}

    async def look(self) -> Mapping[str, Any]:
        live = make_live(1)
        found = live.describe(0)
        return {**found, "findings": [{"kind": "trouble", "about": "S/late-0", "text": "no leader", "since": None}]}

    async def set_gauges(self) -> None:
        """There are none."""


async def test_a_worker_shows_itself_and_nothing_can_be_done() -> None:
    app: web.Application = http.make_app(None, OwnReports())
    async with TestServer(app) as server, open_tab(str(server.make_url("/"))) as tab:
        await tab.until("document.querySelectorAll('#consumers tbody tr').length === 1")
        assert await tab.run(text("h1")) == await tab.run("document.title") == "Overlay worker"
        assert "trouble S/late-0 no leader" in await tab.run(text("#findings li"))
        await tab.run(click("late-0", "consumers"))
        assert await tab.run("document.querySelector('#details .chunks').hidden")
        assert await tab.run("document.querySelectorAll('button.act').length") == 0
        assert tab.told == [], "not even /actions is asked for"


async def test_five_thousand_rows_are_fast(record_property: Callable[[str, object], None]) -> None:
    began = time.monotonic()
    async with showing(None, make_live(5_000)) as tab:
        painted = time.monotonic() - began
        timed = "{ const began = performance.now(); %s; document.body.offsetHeight; performance.now() - began }"
        sorts = [await tab.run(timed % click(title, "consumers")) for title in ("lag", "consumer", "state", "lag")]
        await tab.run(search("late-49"))
        await tab.until(f"{text('#consumers .count')} === '111 of 5,000'")
        record_property("seconds until 5,000 rows are shown, with the browser's start", painted)
        record_property("milliseconds to sort them", sorts)
        assert painted < PAINT_S
        assert max(sorts) < SORT_MS
        assert len(await tab.run(ROWS)) == 111


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_it_fits_and_has_its_theme(width: int, is_dark: bool, tmp_path: Path) -> None:
    async with showing(Asked()) as tab:
        await tab.show_as(width=width, is_dark=is_dark)
        await tab.until(f"window.innerWidth === {width}")
        await tab.until("document.querySelectorAll('#consumers button.act').length === 200")
        assert await tab.run("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
        colour = await tab.run("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(20, 24, 29)" if is_dark else "rgb(255, 255, 255)")
        await tab.photograph(tmp_path / "page.png")
        await tab.run(click("late-50", "consumers") + "; document.querySelector('#details .look').click()")
        await tab.until("document.querySelectorAll('#details .cells i').length === 80")
        await tab.photograph(tmp_path / "details.png")
        await tab.run("document.querySelector('#details').close(); " + click("reset", "streams"))
        await tab.run(TOKEN_FIELD + f"'{TOKEN}'; " + DO)
        await tab.until(f"{text('#confirm .do')} === 'reset'")
        await tab.photograph(tmp_path / "reset.png")
        for dialog in ("confirm", "details"):
            await tab.run(
                f"document.querySelector('#{dialog}').open || document.querySelector('#{dialog}').showModal()"
            )
            box = await tab.run(
                f"JSON.parse(JSON.stringify(document.querySelector('#{dialog}').getBoundingClientRect()))"
            )
            assert box["left"] >= 0 and box["right"] <= width
