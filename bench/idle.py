"""The cases of `consumers` about thousands that have nothing to do. `overlay run` is a process of its own.

- idle-memory: the private memory of a service with 5,000 consumers whose stream gets no records, less that of a service with
  one consumer, divided by 4,999; in KB.
- idle-cpu: the processor time of the first service less that of the second, in percent of a core; `many` and `one` are the two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from bench.crowd import Wants, list_each, make_crowd
from bench.errors import PeerUnavailable
from bench.figures import OVERLAY, Case, Unit
from bench.orders import Orders
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings

CASES = ("idle-memory", "idle-cpu")
LIMIT_KB = 20.0
LIMIT_PERCENT = 1.0
OUTPUTS = 32
SETTLE = 2
"""A service is left alone for so many times the measured interval before, until it has told the fleet of all consumers."""


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    consumers: dict[str, Wants]


@dataclass(frozen=True, slots=True)
class _Rest:
    """What an idle process takes: private memory in bytes, and processor time in percent of a core."""

    memory: int
    percent: float


def measure(bootstrap: str, count: int, settings: Settings, progress: Progress) -> Iterator[Case]:
    """Both cases, with so many consumers. Raises PeerUnavailable when a service does not start."""
    orders = Orders(bootstrap, 0, count)
    orders.publish(progress.count("publishing"))
    found: dict[str, list[_Rest]] = {OVERLAY: [], "one": []}

    def run(side: _Side) -> float:
        progress.say(f"consumers idle: {side.name}")
        found[side.name].append(_look(orders, side, settings.latency_s))
        return found[side.name][-1].memory

    runs = take_turns([_Side(OVERLAY, list_each(count)), _Side("one", list_each(1))], settings.rounds, run)
    if runs.skipped:
        raise PeerUnavailable(runs.skipped["one"])
    many, one = found[OVERLAY], found["one"]
    added = [(more.memory - less.memory) / (count - 1) / 1_000 for more, less in zip(many, one, strict=True)]
    percents = [more.percent - less.percent for more, less in zip(many, one, strict=True)]
    limit = {OVERLAY: LIMIT_KB}
    yield Case("idle-memory", Unit.KILOBYTES, statistics.median(added), limit=limit, runs={OVERLAY: added})
    yield Case(
        "idle-cpu",
        Unit.PERCENT,
        statistics.median(percents),
        limit={OVERLAY: LIMIT_PERCENT},
        extra={
            "many": statistics.median(rest.percent for rest in many),
            "one": statistics.median(rest.percent for rest in one),
        },
        runs={OVERLAY: percents},
    )


def _look(orders: Orders, side: _Side, interval_s: float) -> _Rest:
    """Start a service, and look at its process while it has nothing to do, for so many seconds."""
    with make_crowd(orders, side.consumers, OUTPUTS) as crowd, crowd.run() as id:
        process = psutil.Process(id)
        time.sleep(SETTLE * interval_s)  # what it does at its start is not looked at
        before, began = process.cpu_times(), time.perf_counter()
        time.sleep(interval_s)  # the span that is measured
        after, seconds = process.cpu_times(), time.perf_counter() - began
        spent = after.user + after.system - before.user - before.system
        return _Rest(process.memory_full_info().uss, spent / seconds * 100)
