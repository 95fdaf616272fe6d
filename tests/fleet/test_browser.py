"""The status page in a real browser: what an operator sees and clicks, in both themes, wide and narrow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from overlay.fleet.actions import Actions
from overlay.fleet.findings import Expected
from overlay.fleet.http import make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from tests.support.browser import CHROMIUM, Tab, open_tab

from .statuses import NOW, make_consumer, make_status
from .test_actions import TOKEN, Asked

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH: install it to look at the page")
COUNT = 300


def make_live() -> LivePicture:
    """Two workers with 300 consumers, of which some are paused and some stalled."""
    live = LivePicture(expected=Expected(2, "d1", frozenset()))
    consumers = []
    for number in range(COUNT):
        state = "paused" if number == 100 else "stalled" if number % 100 == 50 else "running"
        told = make_consumer(
            name=f"late-{number}", state=state, lag=number, reason="<b>bold</b>" if state == "stalled" else ""
        )
        consumers.append(told)
    # a status has room for 200
    for number, part in enumerate((consumers[:200], consumers[200:])):
        status = make_status("v", boot="b1", number=number, shard_count=2, shards=(0,), consumers=tuple(part))
        live.memory.fold(status, NOW)
    live.memory.fold(make_status("w", boot="b2", shard_count=2, shards=(1,)), NOW)
    live.judge(0)
    return live


@asynccontextmanager
async def showing(asked: Asked | None) -> AsyncIterator[Tab]:
    """The page, with actions if `asked` is given."""
    live = make_live()
    app = make_app(live, FleetMetrics(), Actions(lambda: TOKEN, asked, live) if asked is not None else None)
    async with TestServer(app) as server, open_tab(str(server.make_url("/"))) as tab:
        await tab.until("document.querySelectorAll('#consumers tbody tr').length > 0")
        yield tab


def click(words: str, part: str) -> str:
    """A script that clicks the first button of a table with this text."""
    return f"[...document.querySelectorAll('#{part} button')].find((b) => b.textContent === '{words}').click()"


def text(selector: str) -> str:
    return f"document.querySelector('{selector}').textContent"


ROWS = "[...document.querySelectorAll('#consumers tbody tr')].map((row) => row.children[1].textContent)"


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
        await tab.run(
            "{ const s = document.querySelector('#search'); s.value = 'stalled'; s.dispatchEvent(new Event('input')) }"
        )
        await tab.until(f"{text('#consumers .count')} === '3 of 300'")
        assert await tab.run(ROWS) == ["late-250", "late-150", "late-50"]
        assert await tab.run("document.querySelectorAll('#consumers b').length") == 0, "foreign texts are no HTML"
        assert [told for told in tab.told if "404" not in told] == [], "but for /actions nothing is missing or refused"


async def test_an_administrator_pauses_and_drains() -> None:
    asked = Asked()
    async with showing(asked) as tab:
        await tab.until("document.querySelectorAll('#consumers button.act').length === 200")
        await tab.run(click("pause", "consumers"))
        assert await tab.run(text("#confirm-title")) == "Pause S/late-0?"
        assert "delivers nothing" in await tab.run(text("#confirm .what"))
        token = "document.querySelector('#confirm .token').value = "
        await tab.run(token + "'wrong'; document.querySelector('#confirm .do').click()")
        await tab.until(f"{text('#confirm .answer')}.includes('is not the http.admin_token')")
        assert asked.calls == []
        await tab.run(token + f"'{TOKEN}'; document.querySelector('#confirm .do').click()")
        await tab.until("!document.querySelector('#confirm').open")
        assert "S/late-0 is paused for 1:00:00" in await tab.run(text("#status"))
        await tab.run(click("resume", "consumers") + "; document.querySelector('#confirm .do').click()")
        await tab.until("!document.querySelector('#confirm').open")
        await tab.run(click("drain", "workers"))
        assert "shards 0 to the other workers" in await tab.run(text("#confirm .what"))
        await tab.run("document.querySelector('#confirm .cancel').click()")
        assert not await tab.run("document.querySelector('#confirm').open")
        await tab.run(click("drain", "workers") + "; document.querySelector('#confirm .do').click()")
        await tab.until("!document.querySelector('#confirm').open")
    assert asked.calls == [
        ("pause", "S", "late-0", timedelta(hours=1)),
        ("resume", "S", "late-100"),
        ("drain", "v", "b1"),
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
async def test_it_fits_and_has_its_theme(width: int, is_dark: bool, tmp_path: Path) -> None:
    async with showing(Asked()) as tab:
        await tab.show_as(width=width, is_dark=is_dark)
        await tab.until(f"window.innerWidth === {width}")
        assert await tab.run("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"
        colour = await tab.run("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(20, 24, 29)" if is_dark else "rgb(255, 255, 255)")
        await tab.run(click("pause", "consumers"))
        box = await tab.run("JSON.parse(JSON.stringify(document.querySelector('#confirm').getBoundingClientRect()))")
        assert box["left"] >= 0 and box["right"] <= width
        await tab.photograph(tmp_path / "page.png")
