"""A progress bar on stderr for reads: offsets read and left, records per second, remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .figures import show_count, show_rate

Numbers = Callable[[], tuple[int, int | None, int, int]]
"""Returns offsets done, total offsets (None: no end), records scanned, records that passed."""


class Gauge(Progress):
    """A progress bar that asks for its numbers whenever it is drawn.

    So it also moves while no record passes.
    """

    def __init__(self, numbers: Numbers, word: str = "found") -> None:
        """Make the bar and start to measure the time. `word` follows the number of records that
        passed, such as `found`.
        """
        self._numbers, self._word, self._began, self._bar = numbers, word, time.monotonic(), TaskID(0)
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        super().__init__(*columns, console=Console(stderr=True), transient=True)
        self._bar = self.add_task("", total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        done, total, scanned, passed = self._numbers()
        elapsed = time.monotonic() - self._began
        rate = show_rate(scanned / elapsed if elapsed > 0 else None)
        left = "" if total is None else f", {show_count(max(0, total - done))} left"
        if self.task_ids:
            self.update(
                self._bar, completed=done, total=total, description=f"{show_count(passed)} {self._word}, {rate}{left}"
            )
        yield from super().get_renderables()
