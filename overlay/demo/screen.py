"""The demo's output: progress bars and a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .service import Look

STARTING = "starting the service"
LOADING = (
    "the service loads its kernels; the first time on a machine they are compiled, which takes some tens of seconds"
)
_PATIENCE_S = 2.0
_LINE_EVERY_S = 2.0
_RATE_OVER_S = 1.0


class Screen:
    """The demo's output on a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line without wrapping, so that paths and commands can be copied."""
        self.console.print(text, style=style, soft_wrap=True, markup=False)

    @contextmanager
    def show_publishing(self, total: int) -> Iterator[Callable[[int], None]]:
        """Show during the block how many of `total` records are published. Yields a function that the
        caller calls with the number so far.
        """
        title = "publishing flights"
        if not self.console.is_terminal:
            yield _Steps(self, title, total).step
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=done)

    @contextmanager
    def show_scan(self, total: int) -> Iterator[Callable[[Look], None]]:
        """Show during the block how far the service is with `total` records. Yields a function that the
        caller calls with each Look at the service.
        """
        scan = _Scan(total)
        if not self.console.is_terminal:
            yield _Lines(self, scan).step
            return
        with Live(console=self.console, refresh_per_second=10) as live:

            def step(look: Look) -> None:
                scan.note(look)
                live.update(scan.build_table())

            yield step


class _Steps:
    """Prints a line for each tenth of the work, and every few seconds in between."""

    def __init__(self, screen: Screen, title: str, total: int) -> None:
        self._screen, self._title, self._total = screen, title, total
        self._told, self._told_at = 0, time.monotonic()

    def step(self, done: int) -> None:
        tenth = done * 10 // self._total
        now = time.monotonic()
        if tenth > self._told or now - self._told_at >= _LINE_EVERY_S:
            self._told, self._told_at = tenth, now
            self._screen.say(f"{self._title}: {done:,} of {self._total:,}")


class _Scan:
    """The service's progress in the last second, one Look for each time that it was asked for, and
    the rates per second computed from it. `total`: records to scan.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.began = time.monotonic()
        self.looks: deque[Look] = deque()

    def note(self, look: Look) -> None:
        self.looks.append(look)
        while look.at - self.looks[0].at > _RATE_OVER_S:
            self.looks.popleft()

    @property
    def phase(self) -> str:
        """What the service is doing at the last look, in words for the user. Call `note` first."""
        look = self.looks[-1]
        waited = look.at - self.began
        if not look.is_serving:
            return STARTING
        if look.read or waited < _PATIENCE_S:
            return f"{look.scanned:,} of {self.total:,} records scanned and committed"
        return f"{LOADING} ({waited:.0f} s so far)"

    def rate(self, count: Callable[[Look], int]) -> float:
        """Return by how much a number grew per second over the last second. `count` takes it from a
        look.
        """
        first, last = self.looks[0], self.looks[-1]
        return (count(last) - count(first)) / (last.at - first.at) if last.at > first.at else 0.0

    def build_table(self) -> Table:
        table = Table(caption=self.phase, caption_justify="left", title_justify="left", expand=False)
        table.add_column("consumer", no_wrap=True)
        table.add_column("filters", max_width=50)
        for name in ("delivered", "records/s", "lag"):
            table.add_column(name, justify="right", min_width=9)
        table.add_row("(stream)", "all records", *self._numbers(lambda look: look.scanned), "", end_section=True)
        for i, consumer in enumerate(self.looks[-1].consumers):
            lag = "-" if consumer.lag is None else f"{consumer.lag:,}"
            numbers = self._numbers(functools.partial(_count_delivered, i))
            table.add_row(consumer.name, consumer.selects, *numbers, lag)
        return table

    def _numbers(self, count: Callable[[Look], int]) -> tuple[str, str]:
        return f"{count(self.looks[-1]):,}", f"{self.rate(count):,.0f}"


def _count_delivered(i: int, look: Look) -> int:
    return look.consumers[i].count if look.consumers else 0


class _Lines:
    """Prints a line for each new phase, every few seconds while a phase lasts, and when all is done."""

    def __init__(self, screen: Screen, scan: _Scan) -> None:
        self._screen, self._scan, self._told, self._told_at = screen, scan, "", 0.0

    def step(self, look: Look) -> None:
        self._scan.note(look)
        phase = self._scan.phase
        fresh = phase.split(" (")[0] != self._told.split(" (")[0]
        waited = look.at - self._told_at >= _LINE_EVERY_S
        if (fresh and not look.scanned) or (phase != self._told and waited) or look.has_done(self._scan.total):
            # print the long sentence about kernels only once
            said = phase if fresh or not phase.startswith(LOADING) else "still loading" + phase.removeprefix(LOADING)
            self._told, self._told_at = phase, look.at
            self._screen.say(said)
