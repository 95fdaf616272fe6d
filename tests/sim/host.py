"""Workers of the service as simulated processes: the product's own `Service`, without HTTP and without files to follow."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlay.config import Loaded, load
from overlay.waits import is_set_within
from overlay.worker.service import Service
from overlay.worker.warmup import load_kernels

from .process import Process, State
from .world import World

STOP_S = 60.0
"""Longest time from SIGTERM to the end of a worker, while Kafka answers."""


@functools.cache
def warm_up() -> None:
    """Load the kernels, which the first history of a Python process waits for.

    What is loaded stays until the process ends, so the garbage collector need not look at it after each history.
    """
    load_kernels()
    gc.collect()
    gc.freeze()


def read_config(
    service: Mapping[str, Any], streams: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]
) -> Loaded:
    """Return a config folder with these contents, as the service reads it. Raises AssertionError if it has problems."""
    # statuses for the fleet would draw from the chance that decides what happens in a history
    files: list[tuple[str, Mapping[str, Any]]] = [("overlay.yaml", {"fleet": {"publish": False}, **service})]
    files += [(f"streams/{each['name']}.yaml", each) for each in streams]
    files += [(f"consumers/{each['stream']}-{each['durable_name']}.yaml", each) for each in consumers]
    return _load(tuple((name, json.dumps(content)) for name, content in files))


@functools.lru_cache(maxsize=100)  # workers and histories read the same folder again and again
def _load(files: tuple[tuple[str, str], ...]) -> Loaded:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("streams", "consumers"):
            (folder / part).mkdir()
        for path, content in files:
            (folder / path).write_text(content)
        loaded = load(folder, environment={})
    assert not loaded.problems, loaded.problems
    return loaded


@dataclass(slots=True)
class Worker:
    """One worker. `ended`: how `Service.serve` ended, None while it runs or if it was killed."""

    world: World
    name: str
    loaded: Loaded
    offset_s: float = 0.0
    service: Service = field(init=False)
    process: Process = field(init=False)
    ended: BaseException | str | None = None
    _stop: asyncio.Event = field(init=False)
    _done: asyncio.Event = field(init=False)

    def start(self) -> None:
        """Start it, or start it again after its end."""
        self.world.tell(f"{self.name} starts")
        self.ended = None
        self._stop, self._done = asyncio.Event(), asyncio.Event()
        self.process = self.world.start(self.name, self._serve(), offset_s=self.offset_s)

    async def _serve(self) -> None:
        self.service = Service(self.loaded)
        try:
            await self.service.serve(self._stop)
            self.ended = "stopped"
        except Exception as error:
            if self.world.loop.is_over:
                raise
            self.ended = error
            self.world.tell(f"ended: {error!r}")
        self._done.set()
        self.process.state = State.DEAD

    def reload(self, loaded: Loaded) -> None:
        """Change the files; a worker that does not run reads them when it starts."""
        self.loaded = loaded
        if self.process.state is not State.DEAD:
            self.world.loop.call_soon(self.service.reload, loaded, context=self.process.context)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.world.kill(self.name)

    def freeze(self) -> None:
        """Let it stand still."""
        self.world.freeze(self.name)

    def thaw(self) -> None:
        """Let it go on."""
        self.world.thaw(self.name)

    def check_end(self) -> None:
        """Raise AssertionError if it has ended by itself: it waits for Kafka however long that takes."""
        assert not isinstance(self.ended, BaseException), f"{self.name} has ended by itself: {self.ended!r}"

    def ask_to_stop(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        self.world.tell(f"{self.name} is asked to stop")
        self.world.loop.call_soon(self._stop.set, context=self.process.context)

    async def stop(self) -> None:
        """Ask it to stop and wait for its end. Raises AssertionError if that takes longer than STOP_S."""
        self.ask_to_stop()
        if not await is_set_within(self._done, STOP_S):
            raise AssertionError(f"{self.name} has not stopped within {STOP_S:g} s")
