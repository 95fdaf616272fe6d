"""The progress of a download: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function `step(what, done, total)` that shows the progress: what is done now, and how
    many of how many items are done. `total` may grow.

    All output goes to stderr; stdout is for the command's answer.
    """
    if sys.stderr.isatty():
        with _show_bar(title) as step:
            yield step
    else:
        with _show_lines(title) as step:
            yield step


@contextmanager
def _show_bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)

        def step(what: str, done: int, total: int) -> None:
            # the total is known only after all versions have been resolved
            progress.update(task, description=f"{title}: {what}", completed=done, total=total if done else None)

        yield step


@contextmanager
def _show_lines(title: str) -> Iterator[Callable[[str, int, int], None]]:
    last = ("", 0)

    def step(what: str, done: int, total: int) -> None:
        nonlocal last
        tenth = done * 10 // total if total else 0
        if (what, tenth) != last:
            last = (what, tenth)
            print(f"{title}: {what}, {done} of {total}", file=sys.stderr, flush=True)  # noqa: T201

    yield step
