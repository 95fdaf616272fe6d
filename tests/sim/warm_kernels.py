"""`python -m tests.sim.warm_kernels FIRST COUNT`: run histories, and search for last messages, of which few histories
have any. Print each kernel that was loaded after the warm-up, with its caller.

A process of its own: what one test has loaded, the next one would no longer load.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import click
from numba.core.dispatcher import Dispatcher
from numba.core.types import Type

from overlay.index.pending.last_per_subject import LastPerSubject
from overlay.index.skip.chunks import Chunks
from overlay.logs import set_up_logs
from overlay.subject import Pattern
from tests.index.partitions import Record, forget, load, seal, stream

from .host import warm_up
from .many import run


class Watch:
    """Notes the kernels that numba loads for a call from Python, for each list of types."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], str] = {}
        """By kernel and types: the functions of the product that called it."""
        self._depth = 0

    def install(self) -> None:
        """Watch all kernels from now on."""
        load = Dispatcher.compile

        def watch(dispatcher: Any, types: tuple[Type, ...]) -> object:
            # a kernel that another one calls is loaded with it
            if self._depth == 0:
                name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}"
                self.found.setdefault((name, str(types)), " < ".join(self._list_callers()))
            self._depth += 1
            try:
                return load(dispatcher, types)
            finally:
                self._depth -= 1

        setattr(Dispatcher, "compile", watch)  # noqa: B010 - mypy knows another type of it

    @staticmethod
    def _list_callers() -> list[str]:
        frames = reversed(traceback.extract_stack())
        return [f"{each.filename}:{each.name}" for each in frames if "/overlay/" in each.filename][:4]


def make_chunks() -> Chunks:
    """Return the headers of two chunks, the second without counts of its subjects."""
    config = stream(subject={"template": "{header:to}"})
    headers = [seal(config, [Record(offset, "a.b")], offset, offset + 1) for offset in (0, 1)]
    return load(config, [headers[0], forget(headers[1], "counts")])


def search_lasts(chunks: Chunks) -> None:
    """Ask which chunks a consumer with `deliver_policy: last_per_subject` has to read when it begins."""
    for pattern in (">", "a.b"):
        search = LastPerSubject(chunks, [Pattern(pattern)], 0, 3)
        while search.next():
            search.take([("a.b", 1)])


def main(first: int, count: int) -> int:
    """Search for last messages, and run the histories `first` up to `first + count - 1`. Return 1 if a kernel was
    loaded or a history has failed, else 0."""
    set_up_logs(level=50)
    warm_up()
    chunks = make_chunks()
    watch = Watch()
    watch.install()
    search_lasts(chunks)
    failed = [ended for ended in map(run, range(first, first + count)) if ended.failure]
    for ended in failed:
        click.echo(f"history {ended.seed}: {ended.failure}")
    for (kernel, types), callers in sorted(watch.found.items()):
        click.echo(f"{kernel} {types}\n    {callers}")
    return 1 if watch.found or failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
