"""/metrics: the same text as the client library's, but for `_created`, and its cost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from overlay.metrics import Metrics
from overlay.state.lag import Lags, Place
from overlay.worker import metrics_page
from overlay.worker.gauges import Gauges
from overlay.worker.metric_series import TURN, Series
from overlay.worker.metrics_page import MetricsPage, Writer
from tests.fuzz.budget import count_lines

CONSUMERS = 5_000
ODD = ('a"b\\c\nd', "é")


def make_metrics() -> Metrics:
    """Metrics with series of each kind, and numbers of each form."""
    metrics = Metrics()
    numbers = iter([0.0, 0.5, 3, 1234567, 12345678.5, 1e300, float("inf")])
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames:
            for values in (ODD * 2, ("S", "c", "true", "4")):
                series = metric.labels(*values[: len(metric._labelnames)])
                number = next(numbers, 7.25)
                if isinstance(series, Histogram):
                    series.observe(number)
                    series.observe(0.001)
                else:
                    series.inc(number)
    metrics.clock_ahead_seconds.set(-1.5)
    metrics.consumer_lag_seconds.labels("S", "c").set(float("nan"))
    return metrics


def list_lines(text: bytes) -> list[str]:
    """The lines that say something, without those of `_created` and those that measure the process."""
    lines = text.decode().splitlines()
    return sorted(line for line in lines if "_created" not in line and not line.startswith("process_"))


def test_the_page_says_what_the_client_library_says() -> None:
    metrics = make_metrics()
    page = Writer(metrics).write()
    assert list_lines(page) == list_lines(generate_latest(metrics.registry))
    assert b"_created" not in page
    assert b"process_resident_memory_bytes" in page


def test_lines_of_a_metric_follow_its_head() -> None:
    name = ""
    for line in Writer(make_metrics()).write().decode().splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2].removesuffix("_total").removesuffix("_info")
        elif not line.startswith("#"):
            assert line.startswith(name), line


def test_a_second_page_has_present_numbers_and_no_series_that_is_gone() -> None:
    metrics = make_metrics()
    writer = Writer(metrics)
    writer.write()
    metrics.records_lost.labels("S").inc(41)
    metrics.acks_lost.remove("S")
    page = writer.write()
    assert list_lines(page) == list_lines(generate_latest(metrics.registry))
    assert all(len(known) == len(metric._metrics) for metric, known in list_known(writer))


def test_a_series_takes_few_lines_to_write() -> None:
    """How long a page takes is measured by `python -m bench sizing`. The library's classes are dear to ask for."""
    metrics, count = Metrics(), 2_000
    ids = [("S", f"c{number}") for number in range(count)]
    Series(metrics).open_consumers(ids, ids)
    writer = Writer(metrics)
    page = writer.write()
    series = page.count(b"\n") - page.count(b"\n#")
    assert series > 10 * count
    assert count_lines(lambda _: writer.write(), b"") < 14 * series


def list_known(writer: Writer) -> list[tuple[Counter | Gauge | Histogram, metrics_page.Texts]]:
    return [(metric, writer._texts[metric._name]) for metric in writer._labelled]


@dataclass
class Setting:
    """Counts how often gauges are set, and waits for `go` each time."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    times: int = 0

    async def __call__(self) -> None:
        self.times += 1
        await self.go.wait()


async def test_requests_at_the_same_time_share_one_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "REUSE", 0)
    setting = Setting()
    page = MetricsPage(Metrics(), setting)
    reading = [asyncio.create_task(page.read()) for _ in range(20)]
    await asyncio.sleep(0)
    reading.pop().cancel()  # a client that goes away
    setting.go.set()
    texts = await asyncio.gather(*reading)
    assert setting.times == 1
    assert len(set(texts)) == 1
    assert await page.read() is not texts[0]
    assert setting.times == 2


async def test_a_page_is_used_again_for_ten_times_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 12.0, 31.9, 32.1, 32.1, 32.2])
    monkeypatch.setattr(metrics_page, "monotonic", lambda: next(clock))
    setting = Setting()
    setting.go.set()
    page = MetricsPage(Metrics(), setting)
    first = await page.read()  # at 0; written from 10 to 12
    assert await page.read() is first  # at 31.9
    assert await page.read() is not first  # at 32.1
    assert setting.times == 2


async def test_an_error_is_not_kept() -> None:
    failures = [RuntimeError("gauges")]

    async def set_gauges() -> None:
        if failures:
            raise failures.pop()

    page = MetricsPage(Metrics(), set_gauges)
    with pytest.raises(RuntimeError, match="gauges"):
        await page.read()
    assert b"overlay_ready 0.0" in await page.read()


async def test_the_event_loop_goes_on_while_a_page_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing waits for what only the event loop can do."""
    seen = threading.Event()

    def write(_: Writer) -> bytes:
        assert seen.wait(60)
        return b"written"

    async def set_gauges() -> None:
        pass

    monkeypatch.setattr(Writer, "write", write)
    reading = asyncio.create_task(MetricsPage(Metrics(), set_gauges).read())
    asyncio.get_running_loop().call_later(0.01, seen.set)
    assert await reading == b"written"


async def test_the_event_loop_does_other_work_while_gauges_of_5000_consumers_are_set() -> None:
    """How long a page takes is measured by `python -m bench sizing`."""
    metrics, lags, ids = Metrics(), Lags(), [("S", f"consumer-{number}") for number in range(CONSUMERS)]
    Series(metrics).open_consumers(ids)
    lags.note({id: {("t", 0): Place(100, 250, 1, is_live=True)} for id in ids}, 1_000)
    gauges = Gauges(metrics, lags, ids)
    reading = asyncio.create_task(MetricsPage(metrics, lambda: gauges.set_consumers(lambda: set(ids[::100]))).read())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    text = await reading
    assert turns >= CONSUMERS / TURN
    assert text.count(b"\n") > 6 * CONSUMERS
    assert b'overlay_consumer_lag_records{consumer="consumer-4999",stream="S"} 150.0' in text
    assert text.count(b"overlay_consumer_stalled{") == CONSUMERS
