"""One history: a loop, a cluster and the network between them, all made from one seed, and what was logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from overlay.logs import ModuleLogger
from tests.sim.kafka.cluster import Cluster
from tests.sim.kafka.settings import Settings

from . import reading
from .clock import simulated
from .faults import Faults
from .loop import Loop
from .network import Network
from .process import PROCESS, Process, State

Result = TypeVar("Result")

LONGEST_S = 86_400.0
"""Virtual seconds that a history may take, unless it says otherwise."""


LIMITS: Mapping[str, Any] = {
    # a fetch for what is not there yet: the broker answers as soon as it is, and each one less saves a third of an idle history
    "overlay.kafka.fetcher.LONG_WAIT_MS": 5_000,
}
"""Constants that differ in every history."""


@contextmanager
def changed(constants: Mapping[str, Any]) -> Iterator[None]:
    """Give constants of modules other values in the block, by full name."""
    places = [(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in constants]
    kept = [getattr(module, name) for module, name in places]
    try:
        for (module, name), value in zip(places, constants.values(), strict=True):
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in zip(places, kept, strict=True):
            setattr(module, name, value)


class World:
    """What a history works with. `story` has its lines: time in virtual seconds, process, event."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        settings: Settings | None = None,
        limits: Mapping[str, Any] | None = None,
        tells: bool = False,
        tells_requests: bool = False,
        longest_s: float = LONGEST_S,
    ) -> None:
        """`limits`: constants of modules that differ in this history, by full name; they add to LIMITS. `tells`: write a
        story; without one no line is ever made. `tells_requests`: with a line for each request as well."""
        self.limits = {**LIMITS, **(limits or {})}
        self.longest_s = longest_s
        self.seed = seed
        self.loop = Loop(seed)
        self.settings = settings if settings is not None else Settings()
        self.cluster = Cluster(brokers, settings=self.settings)
        self.faults = Faults()
        self.network = Network(self.loop, self.cluster, self.faults)
        self.processes: dict[str, Process] = {}
        self.story: list[str] = []
        self.tells = tells
        if tells_requests:
            self.network.log = self.story.append

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for Kafka settings."""
        return ",".join(f"{host}:{port}" for host, port in map(self.cluster.address, self.cluster.brokers))

    def tell(self, event: str) -> None:
        """Add a line to the story."""
        if self.tells and not self.loop.is_over:
            process = PROCESS.get()
            self.story.append(f"{self.loop.now:.6f} {process.name if process is not None else '-'} {event}")

    def run(self, history: Callable[[World], Coroutine[Any, Any, Result]]) -> Result:
        """Run a history to its end and return what it returns. A world runs once."""
        with (
            simulated(self.loop, self.settings.wall_ms0),
            self.network.installed(),
            self._logging(),
            changed(self.limits),
        ):
            try:
                self.network.plan()
                return self.loop.run_until_complete(self._limit(history(self)))
            finally:
                for process in self.processes.values():
                    process.held.clear()
                reading.forget()
                self.loop.discard()

    async def _limit(self, history: Coroutine[Any, Any, Result]) -> Result:
        try:
            async with asyncio.timeout(self.longest_s) as limit:
                return await history
        except TimeoutError as error:
            if limit.expired():
                raise AssertionError(f"the history has not ended after {self.longest_s:g} virtual seconds") from error
            raise

    def start(self, name: str, coro: Coroutine[Any, Any, Any], *, offset_s: float = 0.0) -> Process:
        """Start a process; the task of its coroutine is not waited for. A dead process's name may be used again."""
        before = self.processes.get(name)
        if before is not None and before.state is not State.DEAD:
            raise ValueError(f"a process {name} runs already")
        process = self.processes[name] = Process(name, offset_s)
        self.loop.start(process, coro)
        return process

    def kill(self, name: str) -> None:
        """End a process as `kill -9` does."""
        self.tell(f"{name} is killed")
        self.loop.kill(self.processes[name])

    def freeze(self, name: str) -> None:
        """Let a process stand still until `thaw`."""
        self.tell(f"{name} is frozen")
        self.loop.freeze(self.processes[name])

    def thaw(self, name: str) -> None:
        """Let a frozen process go on."""
        self.tell(f"{name} goes on")
        self.loop.thaw(self.processes[name])

    @contextmanager
    def at_cluster(self, event: str) -> Iterator[Cluster]:
        """Let the history do something to the cluster, which is told as `event`."""
        self.tell(event)
        self.cluster.advance(self.loop.now)
        yield self.cluster
        self.cluster.advance(self.loop.now)
        self.network.plan()

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Have the service's log go into the story, and nothing anywhere else.

        What modules log with is taken over itself: how structlog is configured does not reach a logger that was used before
        under a configuration that binds loggers for good.
        """
        wrapper = structlog.make_filtering_bound_logger(logging.INFO if self.tells else logging.CRITICAL)
        processors: list[Any] = [structlog.processors.format_exc_info, self._render]
        story = structlog.wrap_logger(_Silent(), processors, wrapper, cache_logger_on_first_use=True)
        client_log = logging.getLogger("aiokafka")
        level, find = client_log.level, ModuleLogger.__getattr__
        client_log.setLevel(logging.CRITICAL + 1)
        ModuleLogger.__getattr__ = lambda _, method: getattr(story, method)  # type: ignore[method-assign]
        try:
            yield
        finally:
            client_log.setLevel(level)
            ModuleLogger.__getattr__ = find  # type: ignore[method-assign]

    def _render(self, _: Any, level: str, fields: Any) -> str:
        event = fields.pop("event")
        self.tell(" ".join([f"[{level}] {event}", *(f"{name}={value}" for name, value in fields.items())]))
        return ""


def _keep_quiet(kind: Any) -> None:
    """Let clients of a simulation be forgotten without a warning: killed processes have no time to close them."""
    warn = kind.__del__

    def forget(self: Any) -> None:
        if not isinstance(getattr(self, "_loop", None), Loop):
            warn(self)

    kind.__del__ = forget


for _kind in (AIOKafkaConsumer, AIOKafkaProducer):
    _keep_quiet(_kind)


class _Silent:
    """A logger that writes nothing: the story has the line already."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return _write_nothing


def _write_nothing(*_: Any, **__: Any) -> None:
    return None
