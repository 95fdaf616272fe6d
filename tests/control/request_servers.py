"""Request servers without Kafka: what a turn of theirs reads is in the registry, and what they write is in a Log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from overlay.clock import now_ns
from overlay.config import Loaded, LogEnds
from overlay.config.consumer import AckPolicy
from overlay.control import answering, deciding, serve, shard_journals
from overlay.control.decide import Decision, Host
from overlay.control.records import Subject, split_key
from overlay.control.registry import Registry
from overlay.control.requests import Request
from overlay.control.serve import RequestServer
from overlay.control.tail import Tail
from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.kafka.admin import TopicFacts
from overlay.output.entry import Entry
from overlay.output.record import Record
from tests.control.registries import PREFIX, Worker, make_config, make_files, take

ONE, TWO = f"{PREFIX}.replies.one", f"{PREFIX}.replies.two"


@dataclass(slots=True)
class Owner(Worker):
    """A worker that owns everything. `drains`: what it was told about being drained. `idle`: consumers that
    inactive_threshold has ended. `forgotten`: whose state it dropped, by change. `fault`: why it does not."""

    drains: list[bool] = field(default_factory=list)
    idle: set[tuple[str, str]] = field(default_factory=set)
    forgotten: list[list[tuple[str, str]]] = field(default_factory=list)
    fault: SourceUnavailable | None = None

    def find_shard(self, about: tuple[str, str]) -> int | None:
        return 0

    async def is_owner(self, shard: int) -> bool:
        return True

    def tend(self) -> Collection[tuple[str, str]]:
        return list(self.idle)

    def find_kept_policies(self) -> dict[tuple[str, str], AckPolicy]:
        return {}

    async def take_up(self, loaded: Loaded, forget: Collection[tuple[str, str]] = ()) -> None:
        self.idle.intersection_update(loaded.consumers)
        if self.fault is not None:
            raise self.fault
        if forget:
            self.forgotten.append(list(forget))

    def drain(self, *, drained: bool) -> None:
        self.drains.append(drained)


class Questions:
    """Kafka's admin side, where every topic is there and the control topic ends at 0."""

    async def find_bounds(self, sources: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        return dict.fromkeys(sources, (0, 0))

    async def find_topics(self, names: Iterable[str], **_: Any) -> dict[str, TopicFacts]:
        return {name: TopicFacts(name, "id", 1, {}) for name in names}


@dataclass(slots=True)
class Log:
    """What is written, in place of a journal. `refuses`: topics that take nothing."""

    refuses: set[str] = field(default_factory=set)
    is_final: bool = True
    refusals: int = 0
    largest: int = 1_000_000
    """Most bytes of a record."""
    largest_event: int = 1_000_000
    """Most bytes of a record of the events topic."""
    entries: list[Entry] = field(default_factory=list)
    commits: int = 0

    def __call__(self, *_: object) -> Log:
        return self

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def commit(self, entries: Sequence[Entry]) -> int:
        for topic in self.refuses.intersection(entry.topic for entry in entries):
            self.refusals += 1
            raise DeliveryFailed(topic, 0, "not authorized to write", final=self.is_final)
        for entry in entries:
            if entry.size > (self.largest_event if entry.topic == f"{PREFIX}.events" else self.largest):
                raise DeliveryFailed(entry.topic, 0, "MessageSizeTooLargeError: too large", final=True)
        self.entries += entries
        self.commits += 1
        return -1

    async def make_room(self) -> None:
        pass

    def put(self, answers: Iterable[Entry]) -> None:
        """In place of what sends answers."""
        self.entries += answers

    @property
    def own(self) -> list[Record]:
        """Records of the control topic."""
        return [entry.record for entry in self.entries if entry.topic == f"{PREFIX}.control"]

    @property
    def settled(self) -> list[str]:
        """Requests that have ended."""
        return [(record.key or b"").decode() for record in self.own if record.value is None]

    @property
    def answers(self) -> dict[str, Any]:
        return {
            entry.topic: json.loads(entry.record.value or b"")
            for entry in self.entries
            if entry.topic not in (f"{PREFIX}.control", f"{PREFIX}.events")
        }


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()
    monkeypatch.setattr(shard_journals, "Journal", found)
    monkeypatch.setattr(serve, "ReplySender", found)
    return found


@pytest.fixture
def request_server(monkeypatch: pytest.MonkeyPatch, log: Log) -> RequestServer:
    """With two requests that wait in the registry, the first of which is a create. Nothing else runs within a turn."""
    monkeypatch.setattr(answering, "SLICE_S", 60.0)
    registry = Registry(make_files(make_config()))
    found = RequestServer({"bootstrap.servers": "localhost:1"}, Questions(), registry, "test")  # type: ignore[arg-type]
    found._attach(Owner())
    found._files._unwritten = []

    async def read(_: object) -> set[object]:
        return set()

    monkeypatch.setattr("overlay.control.tail.Tail.read", read)
    for name, op in (("one", "consumer.create"), ("two", "stream.list")):
        headers = {"Overlay-Reply-Topic": f"{PREFIX}.replies.{name}".encode()}
        body = json.dumps({"op": op, "stream": "S", "consumer": "c"}).encode()
        registry.take(f"request {name}".encode(), body, headers.get, now_ns() // 10**6)
    return found


@pytest.fixture
def host(request_server: RequestServer) -> Owner:
    return cast(Owner, request_server.host)


def decide_by(monkeypatch: pytest.MonkeyPatch, decide: Callable[[Request], Decision]) -> None:
    """Have requests decided by a function of them alone."""

    def decide_alone(
        registry: Registry, host: Host, request: Request, now: int, ends: LogEnds | None, *, lacks_output: bool
    ) -> Decision:
        return decide(request)

    monkeypatch.setattr(deciding, "decide", decide_alone)


async def take_turns(request_server: RequestServer, log: Log) -> None:
    """Settled requests leave the registry, as they do when the log is read."""
    for _ in range(4):
        await request_server._turn()
        await asyncio.gather(*request_server._answering.tasks.values())
        for key in log.settled:
            request_server.registry.requests.pop(key.removeprefix("request "), None)


def ask_for(registry: Registry, names: Iterable[str], **fields: str) -> None:
    """Have requests to create consumers in the registry, without others."""
    registry.requests.clear()
    for name in names:
        config = {"durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none", **fields}
        body = json.dumps({"op": "consumer.create", "stream": "S", "config": config}).encode()
        registry.take(f"request {name}".encode(), body, dict[str, bytes]().get, now_ns() // 10**6)


def list_answers(log: Log) -> dict[str, Any]:
    """The answers in the overlay's own reply topic, by request."""
    answers = [entry.record for entry in log.entries if entry.topic == f"{PREFIX}.replies"]
    return {(record.key or b"").decode(): json.loads(record.value or b"") for record in answers}


def read_back(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    """Have each turn read what was written before it. Only then is more decided."""
    read = 0

    async def commit(self: Log, entries: Sequence[Entry]) -> int:
        self.commits += 1
        self.entries += entries
        return len(self.entries) - 1

    async def take_new(tail: Tail) -> set[Subject]:
        nonlocal read
        new, read = log.entries[read:], len(log.entries)
        records = [entry.record for entry in new if entry.topic == f"{PREFIX}.control"]
        take(tail.registry, *records)
        tail.seen = read
        return {split_key(record.key)[0] for record in records}

    monkeypatch.setattr(Log, "commit", commit)
    monkeypatch.setattr(Tail, "read", take_new)
