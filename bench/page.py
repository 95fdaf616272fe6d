"""The cases of `consumers` about the status page: `overlay run` with 5,000 consumers and `overlay fleet run`, each a process of
its own, and Debian's Chromium without a window. Without Chromium on PATH the cases are left out.

- page-5000: milliseconds from a tab's navigation to the page until its first rows of consumers are painted. `first` is when
  anything was painted (first-contentful-paint). The browser runs before, and each round has a tab of its own.
- page-cpu: processor time of `overlay fleet run` while one tab watches the page, in percent of a core. `unwatched` is that of
  the same process before. The consumers have nothing to do.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.crowd import Crowd, list_each, make_crowd
from bench.errors import PeerUnavailable
from bench.figures import OVERLAY, Case, Unit
from bench.orders import Orders
from bench.progress import Progress
from bench.settings import Settings
from overlay.local.ports import find_free
from overlay.waits import comes_true
from tests.support.browser import CHROMIUM, open_tab

CASES = ("page-5000", "page-cpu")
LIMIT_MS = 1_000.0
LIMIT_PERCENT = 5.0
OUTPUTS = 32
SHOWN_S = 300.0
"""Seconds in which the fleet has to know of all consumers: it is told of idle ones within a minute."""
STOP_S = 60.0
HOST = "127.0.0.1"
WATCH = """
window.painted = new Promise((resolve) => {
  const look = () => document.querySelector("#consumers tbody tr")
    ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now()), 0)) : requestAnimationFrame(look);
  look();
});
"""
"""Before the page's own script: when the frame with the first rows has been painted, in ms after the navigation."""
FIRST = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def measure(bootstrap: str, count: int, settings: Settings, progress: Progress) -> Iterator[Case]:
    """Those of both cases that are wanted, with so many consumers. Raises PeerUnavailable if a process does not start."""
    if not CHROMIUM:
        if settings.cases:
            raise PeerUnavailable("there is no Chromium on PATH, in which the page is looked at. Install it")
        progress.say("consumers page: left out, there is no Chromium on PATH")
        return
    orders = Orders(bootstrap, 0, count)
    orders.publish(progress.count("publishing"))
    with make_crowd(orders, list_each(count), OUTPUTS) as crowd:
        port = find_free(HOST, 1)[0]
        _add_fleet(crowd.folder, port)
        progress.say("consumers page: starting the service and the fleet")
        with crowd.run(), _run_fleet(crowd, f"http://{HOST}:{port}", count) as process:
            url = f"http://{HOST}:{port}/"
            if settings.wants("page-5000"):
                yield _measure_paint(url, settings, progress)
            if settings.wants("page-cpu"):
                yield _measure_cpu(url, process, settings, progress)


def _add_fleet(folder: Path, port: int) -> None:
    file = folder / "overlay.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fleet": {"listen": f"{HOST}:{port}"}}))


@contextmanager
def _run_fleet(crowd: Crowd, url: str, count: int) -> Iterator[psutil.Process]:
    """`overlay fleet run`, which knows of so many consumers within the block."""
    log = crowd.folder / "fleet.log"
    command = [sys.executable, "-m", "overlay", "fleet", "run", "--config", str(crowd.folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        if not comes_true(lambda: process.poll() is not None or _count_running(url) == count, SHOWN_S, pause_s=1.0):
            raise PeerUnavailable(f"the fleet knows of {_count_running(url)} of {count} consumers after {SHOWN_S:g} s")
        if process.poll() is not None:
            raise PeerUnavailable(f"overlay fleet run has ended. It said: {log.read_text(errors='replace')[-500:]}")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _count_running(url: str) -> int:
    """Return how many consumers run, by the fleet's picture."""
    try:
        with urllib.request.urlopen(f"{url}/fleet", timeout=STOP_S) as answer:
            return sum(row["state"] == "running" for row in json.load(answer)["consumers"])
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0


def _measure_paint(url: str, settings: Settings, progress: Progress) -> Case:
    rows, first = [], []
    for number in range(settings.rounds):
        progress.say(f"consumers page-5000: round {number + 1}")
        found = asyncio.run(_paint(url))
        rows.append(found[0])
        first.append(found[1])
    return Case(
        "page-5000",
        Unit.MILLISECONDS,
        statistics.median(rows),
        limit={OVERLAY: LIMIT_MS},
        extra={"first": statistics.median(first)},
        runs={OVERLAY: rows},
    )


async def _paint(url: str) -> tuple[float, float]:
    """Return when the first rows were painted, and when anything was; ms after the navigation."""
    async with open_tab("about:blank") as tab:
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        await tab.call("Page.navigate", url=url)
        await tab.until("location.href !== 'about:blank' && 'painted' in window")
        return float(await tab.run("painted")), float(await tab.run(FIRST))


def _measure_cpu(url: str, process: psutil.Process, settings: Settings, progress: Progress) -> Case:
    watched, unwatched = [], []
    for number in range(settings.rounds):
        progress.say(f"consumers page-cpu: round {number + 1}")
        unwatched.append(_look(process, settings.latency_s))
        watched.append(asyncio.run(_watch(url, process, settings.latency_s)))
    return Case(
        "page-cpu",
        Unit.PERCENT,
        statistics.median(watched),
        limit={OVERLAY: LIMIT_PERCENT},
        extra={"unwatched": statistics.median(unwatched)},
        runs={OVERLAY: watched},
    )


async def _watch(url: str, process: psutil.Process, seconds: float) -> float:
    async with open_tab(url) as tab:
        await tab.until("document.querySelectorAll('#consumers tbody tr').length > 0")
        return await asyncio.to_thread(_look, process, seconds)


def _look(process: psutil.Process, seconds: float) -> float:
    """Return the processor time of a process in the next seconds, in percent of a core."""
    before, began = process.cpu_times(), time.perf_counter()
    time.sleep(seconds)  # the span that is measured
    after, took = process.cpu_times(), time.perf_counter() - began
    spent: float = after.user + after.system - before.user - before.system
    return spent / took * 100
