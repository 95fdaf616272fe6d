"""The status page: what it shows is there, it fetches nothing from elsewhere, and texts of others stay texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from aiohttp.test_utils import TestClient, TestServer

from overlay.fleet.delta import KEYS
from overlay.fleet.findings import Expected
from overlay.fleet.http import STAND_BY, make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.fleet.page import PageScope, read_page
from overlay.fleet.status import ShardStatus

from .statuses import NOW, make_consumer, make_status, make_stream

PAGE, POLICY = read_page()
VOID = {"meta", "link", "input", "br"}


class Outline(HTMLParser):
    """Elements with their attributes, and which are open; fails at an end that closes another element."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


@pytest.fixture(scope="module")
def outline() -> Outline:
    outline = Outline()
    outline.feed(PAGE)
    outline.close()
    return outline


def make_live() -> LivePicture:
    live = LivePicture(expected=Expected(2, "d1", frozenset({("S", "c"), ("S", "lost")})))
    told = make_consumer(positions={"t-0": 7}, pending=3, pending_is="estimate", reason="<b>bold</b>")
    status = make_status(shard_count=2, consumers=(told,), streams=(make_stream(),), trouble="t")
    failing = ShardStatus(number=1, ready=False, reason="no leader")
    live.memory.fold(status.model_copy(update={"shards": (ShardStatus(number=0), failing)}), NOW)
    live.tallies.take_event(b"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.c", NOW, NOW)
    for now in (0, 90_000, 100_000):  # a finding opens after a while
        live.judge(now)
    return live


def test_the_page_is_sound(outline: Outline) -> None:
    assert outline.open == []
    assert PAGE.startswith("<!doctype html>")
    ids = [attributes["id"] for _, attributes in outline.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {*KEYS, "search", "status", "details", "confirm"} <= set(ids)
    labelled = {attributes["aria-labelledby"] for tag, attributes in outline.found if tag == "section"}
    assert labelled <= set(ids)


def test_it_is_made_for_phones_and_both_themes(outline: Outline) -> None:
    metas = {attributes.get("name"): attributes.get("content") for tag, attributes in outline.found if tag == "meta"}
    assert "width=device-width" in str(metas["viewport"])
    style = outline.texts["style"]
    assert "prefers-color-scheme: dark" in style
    assert "color-scheme: light dark" in style
    assert "max-width: 40rem" in style
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = [set(re.findall(r"(--[a-z]+): #[0-9a-f]{6}", theme)) for theme in (light, dark)]
    assert colours[0] == colours[1]
    assert set(re.findall(r"var\((--[a-z]+)\)", style)) <= colours[0]


def luminance(colour: str) -> float:
    """Relative luminance as of WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(outline: Outline, theme: int) -> None:
    text = re.findall(r":root \{(.*?)\}", outline.texts["style"], re.DOTALL)[theme]
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", text))
    for behind in ("page", "card"):
        for front in ("text", "dim", "bad", "warn", "good", "link"):
            high, low = sorted((luminance(colours[front]), luminance(colours[behind])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, f"{front} on {behind}"


def test_nothing_comes_from_elsewhere(outline: Outline) -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(", PAGE.replace("// ", ""))
    sources = [attributes.get("src") or attributes.get("href") for _, attributes in outline.found]
    assert {source for source in sources if source} == {"data:,", "fleet"}
    asked = re.findall(r"\b(?:fetch|read|EventSource)\(([\"`'][^?\"`']+)", PAGE)
    assert {path[1:] for path in asked} == {"actions", "fleet", "fleet/chunks", "fleet/events"}
    assert len(re.findall(r"\bfetch\(", PAGE)) == 2, "one in the function for all, one that may find nothing"


def test_texts_of_others_never_become_html() -> None:
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", PAGE)
    assert not re.search(r"<[^>]+ on[a-z]+=", PAGE)


def test_the_policy_allows_its_own_script_and_style_alone(outline: Outline) -> None:
    for part in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(outline.texts[part].encode()).digest()).decode()
        assert f"{part}-src 'sha256-{digest}'" in POLICY
    assert POLICY.startswith("default-src 'none'")
    assert "unsafe" not in POLICY


def test_the_fields_that_it_reads_exist() -> None:
    found = make_live().describe(100_000)
    assert found["findings"]
    for part in KEYS.keys() - {"findings"}:
        columns = re.search(rf"^  {part}: \[\n(.*?)^  \],", PAGE, re.DOTALL | re.MULTILINE)
        assert columns is not None
        fields = set(re.findall(r"\br\.(\w+)", columns[1]))
        assert len(fields) > 4
        assert found[part]
        for row in found[part]:
            assert fields <= row.keys()
    assert set(re.findall(r"\brow\.(\w+)", PAGE)) <= found["consumers"][0].keys()
    assert set(re.findall(r"\bfound\.(\w+)", PAGE)) <= found["findings"][0].keys()
    assert set(re.findall(r"\bmembers\.(\w+)", PAGE)) <= found.keys()


def test_rows_have_the_keys_of_the_events() -> None:
    keys = re.search(r"^const KEYS = (\{.*?\});$", PAGE, re.DOTALL | re.MULTILINE)
    assert keys is not None
    assert json.loads(re.sub(r"(\w+):", r'"\1":', keys[1])) == {part: [*names] for part, names in KEYS.items()}


def test_a_worker_has_the_same_page_and_says_whose_it_is() -> None:
    own, policy = read_page(PageScope.WORKER)
    assert policy == POLICY
    assert own.replace('data-scope="worker"', 'data-scope="fleet"') == PAGE != own


async def test_the_pages_are_served() -> None:
    live, metrics = make_live(), FleetMetrics()
    async with TestClient(TestServer(make_app(live, metrics))) as client:
        page = await client.get("/")
        assert (page.status, page.content_type, await page.text()) == (200, "text/html", PAGE)
        assert page.headers["Content-Security-Policy"] == POLICY
        fleet = await client.get("/fleet")
        assert (fleet.status, fleet.content_type) == (200, "application/json")
        found = await fleet.json()
        assert found.keys() == {
            "time",
            "workers",
            "shards",
            "consumers",
            "streams",
            "findings",
            "advisories",
            "ignored",
        }
        assert found == json.loads(json.dumps(live.describe(100_000)))
        assert {row["name"]: row["reason"] for row in found["consumers"]} == {"c": "<b>bold</b>", "lost": ""}
        assert (await client.get("/readyz")).status == (await client.get("/healthz")).status == 200
        assert "overlay_fleet_active 1.0" in await (await client.get("/metrics")).text()
        live.stand_by()
        standing_by = await client.get("/fleet")
        assert (standing_by.status, await standing_by.json()) == (503, {"error": STAND_BY})
        assert (await client.get("/readyz")).status == 503
        assert (await client.get("/")).status == 200
        assert "overlay_fleet_active 0.0" in await (await client.get("/metrics")).text()
