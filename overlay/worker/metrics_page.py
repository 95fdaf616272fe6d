"""The page /metrics, for services with thousands of consumers.

The client library makes an object and a text of each sample, which takes seconds for 100,000
series. Here the names and labels of a sample are written once, and its number for each page. The
page is written in a thread, by one request for all that wait for it. It has no `_created` series,
which would double the counters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from prometheus_client import Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from overlay.clock import monotonic
from overlay.metrics import Metrics
from overlay.waits import finish_in_thread

Labelled = Counter | Gauge | Histogram
Texts = dict[tuple[str, ...], tuple[str, ...]]
"""By label values, what a series' lines begin with."""

REUSE = 10
"""A page answers further requests for this many times the time that it took. So however many ask,
at most about a tenth of a core is spent on it."""


@dataclass(slots=True)
class MetricsPage:
    """The text of /metrics. `set_gauges` is awaited before each writing; it sets what no event
    sets."""

    metrics: Metrics
    set_gauges: Callable[[], Awaitable[None]]
    _writer: Writer = field(init=False)
    _page: bytes = b""
    _fresh_until: float = float("-inf")
    """In monotonic seconds."""
    _writing: asyncio.Task[bytes] | None = None

    def __post_init__(self) -> None:
        self._writer = Writer(self.metrics)

    async def read(self) -> bytes:
        """Return the page. Calls while it is being written share that writing. Later calls get the same
        page until its age is REUSE times the time that it took to write."""
        if monotonic() < self._fresh_until:
            return self._page
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="metrics")
        # a client that goes away must not take the page from the others
        return await asyncio.shield(self._writing)

    async def _write(self) -> bytes:
        began = monotonic()
        await self.set_gauges()
        self._page = await finish_in_thread(self._writer.write)
        ended = monotonic()
        self._fresh_until = ended + REUSE * (ended - began)
        return self._page


class Writer:
    """Writes metrics in Prometheus' text format. Not for two threads at once."""

    def __init__(self, metrics: Metrics) -> None:
        self._labelled = [
            metric
            for metric in vars(metrics).values()
            # the library says nowhere in public whether a metric has labels, and which series it has
            if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames
        ]
        self._others = Others(metrics, self._labelled)
        self._texts: dict[str, Texts] = {}

    def write(self) -> bytes:
        """Return the page as UTF-8."""
        parts = [generate_latest(self._others).decode()]
        for metric in self._labelled:
            parts.append(_write_head(metric))
            parts += self._write_series(metric)
        return "".join(parts).encode()

    def _write_series(self, metric: Labelled) -> Iterator[str]:
        """Yield the lines of all series of one metric."""
        with metric._lock:
            series = cast("dict[tuple[str, ...], Labelled]", metric._metrics.copy())
        known = self._texts.get(metric._name, {})
        # those of series that are gone are left behind
        texts = self._texts[metric._name] = {
            values: known.get(values) or _write_texts(metric, values) for values in series
        }
        if not isinstance(metric, Histogram):
            # thousands for each metric: the library's classes are dear to ask for
            for (text,), one in zip(texts.values(), series.values(), strict=True):
                yield f"{text}{_write_number(cast('Counter | Gauge', one)._value.get())}\n"
            return
        for values, one in series.items():
            for text, number in zip(texts[values], _list_numbers(cast("Histogram", one)), strict=True):
                yield f"{text}{_write_number(number)}\n"


@dataclass(frozen=True, slots=True)
class Others:
    """A collector of the metrics that are not in `labelled`: those without labels, and those of the
    process. It leaves out their `_created` samples, the times at which they were made."""

    metrics: Metrics
    labelled: Sequence[Collector]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the library calls this."""
        for collector in self.metrics.list_collectors():
            if collector not in self.labelled:
                for family in collector.collect():
                    family.samples = [each for each in family.samples if each.name != family.name + "_created"]
                    yield family


def _write_head(metric: Labelled) -> str:
    name = metric._name + ("_total" if isinstance(metric, Counter) else "")
    text = metric._documentation.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {metric._type}\n"


def _write_texts(metric: Labelled, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the lines of a series begin with, in the order of `_list_numbers`."""
    name, labels = metric._name, dict(zip(metric._labelnames, map(_escape, values), strict=True))

    def write(suffix: str, **more: str) -> str:
        pairs = ",".join(f'{label}="{value}"' for label, value in sorted({**labels, **more}.items()))
        return f"{name}{suffix}{{{pairs}}} "

    if isinstance(metric, Histogram):
        bounds = [write("_bucket", le=_write_number(bound)) for bound in metric._upper_bounds]
        return (*bounds, write("_count"), write("_sum"))
    return (write("_total" if isinstance(metric, Counter) else ""),)


def _list_numbers(one: Histogram) -> Sequence[float]:
    """Return the numbers of a series of a histogram: its cumulative buckets, count and sum."""
    total, numbers = 0.0, []
    for bucket in one._buckets:
        total += bucket.get()
        numbers.append(total)
    return (*numbers, total, one._sum.get())


def _write_number(number: float) -> str:
    # most are zero
    return cast("str", floatToGoString(number)) if number else "0.0"  # type: ignore[no-untyped-call]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
