"""Requests that go wrong, without Kafka: they are answered and settled, and those behind them are not held up."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from overlay import errors
from overlay.clock import now_ns
from overlay.config import ConsumerConfig, Loaded, LogEnds
from overlay.config.consumer import AckPolicy
from overlay.control import serve, shard_journals
from overlay.control.decide import Body, Decision, Host
from overlay.control.records import Definition, Origin, Subject, split_key, write_definition, write_drain
from overlay.control.registry import Registry
from overlay.control.relay import Relay, Taken
from overlay.control.requests import Request, respond
from overlay.control.serve import RequestServer
from overlay.control.tail import HEADERS, Tail
from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.kafka.admin import TopicFacts
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.own_topics import control_topic, requests_topic
from overlay.kafka.passed_over import PassedOver
from overlay.kafka.records import PlainReader
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from overlay.scan.rows import find_batches
from overlay.waits import until
from tests.control.registries import PREFIX, Worker, make_config, make_files, take
from tests.oracle.batches import Record as Row
from tests.support.batches import build

ONE, TWO = f"{PREFIX}.replies.one", f"{PREFIX}.replies.two"
READ = Tail.read


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
    monkeypatch.setattr(serve, "SLICE_S", 60.0)
    registry = Registry(make_files(make_config()))
    found = RequestServer({"bootstrap.servers": "localhost:1"}, Questions(), registry, "test")  # type: ignore[arg-type]
    found.host = found._journals.host = Owner()
    found._unwritten = []

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

    monkeypatch.setattr(serve, "decide", decide_alone)


async def take_turns(request_server: RequestServer, log: Log) -> None:
    """Settled requests leave the registry, as they do when the log is read."""
    for _ in range(4):
        await request_server._turn()
        await asyncio.gather(*request_server._answering.values())
        for key in log.settled:
            request_server.registry.requests.pop(key.removeprefix("request "), None)


async def test_a_worker_is_told_that_it_is_drained_in_this_start_only(
    request_server: RequestServer, host: Owner, log: Log
) -> None:
    request_server.worker = "east", "boot2"
    registry = request_server.registry
    for record in (None, write_drain("east", "boot1"), write_drain("west", "boot2"), write_drain("east", "boot2")):
        if record is not None:
            take(registry, record)
        await take_turns(request_server, log)
    assert [told for told, _ in itertools.groupby(host.drains)] == [False, True]
    registry.clear()
    await take_turns(request_server, log)
    assert host.drains[-1] is False


@pytest.mark.parametrize("failure", [KeyError("zork"), asyncio.CancelledError()])
async def test_an_unforeseen_error_ends_no_service_and_the_topic_is_read_anew(
    request_server: RequestServer, host: Owner, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """The task is one of a group: if it ended, all shards of the worker would."""
    reads: list[set[Subject]] = [{Subject.CONSUMER}]
    tried: list[Loaded] = []
    reasons: list[str] = []

    async def read(_: object) -> set[Subject]:
        await asyncio.sleep(0)
        return reads.pop() if reads else set()

    async def read_anew(_: object, reason: str) -> None:
        reasons.append(reason)
        reads.append({Subject.CONSUMER})

    async def take_up(_: object, loaded: Loaded, forget: Collection[tuple[str, str]] = ()) -> None:
        tried.append(loaded)
        if len(tried) < 3:
            raise failure

    monkeypatch.setattr("overlay.control.tail.Tail.read", read)
    monkeypatch.setattr("overlay.control.tail.Tail.read_anew", read_anew)
    monkeypatch.setattr(Owner, "take_up", take_up)
    monkeypatch.setattr(serve, "LONG_REST_S", (0.0, 0.0))
    request_server.registry.requests.clear()
    stop = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(request_server.run(host, stop))
        await until(lambda: request_server._taken_up >= 0 and len(tried) == 3 and host.drains, pause_s=0.001)
        stop.set()
    assert len(reasons) == 2
    labels = {"task": "control"}
    assert request_server.metrics.registry.get_sample_value("overlay_unforeseen_errors_total", labels) == 2


@dataclass(slots=True)
class ControlTopic:
    """The control topic as a partition fetch gives it: what was written since the last fetch comes with the next one."""

    records: list[Record] = field(default_factory=list)
    position: int = 0

    @property
    def stable_end(self) -> int:
        return len(self.records)

    end = stable_end

    def take(self) -> Fetched | None:
        if self.position == self.stable_end:
            return None
        position, self.position = self.position, self.stable_end
        rows = [
            Row(offset, now_ns() // 10**6, record.key, record.value)
            for offset, record in enumerate(self.records[position:], position)
        ]
        data = np.frombuffer(build(rows, base_offset=position), np.uint8)
        batches = split(data, find_batches).batches
        after = log_position_after(batches, position)
        return Fetched(position, data, batches, NO_ABORTS, self.stable_end, 0, after)

    def seek(self, position: int) -> None:
        self.position = position

    def go_on(self, _: int) -> None:
        pass


@pytest.fixture
def control_topic_read(request_server: RequestServer, monkeypatch: pytest.MonkeyPatch) -> ControlTopic:
    """The topic that a real tail reads, without kernels, and that journals write to."""
    topic, tail = ControlTopic(), request_server._tail
    monkeypatch.setattr(Tail, "read", READ)
    monkeypatch.setattr("overlay.control.tail.POLL_S", 0.0)
    tail._fetcher = cast(Any, SimpleNamespace(changed=asyncio.Event()))
    tail._partition_fetch = cast(Any, topic)
    tail._rows = PlainReader(HEADERS)

    async def find_bounds(_: object, sources: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        return dict.fromkeys(sources, (0, topic.end))

    async def commit(self: Log, entries: Sequence[Entry]) -> int:
        self.entries += entries
        topic.records += [entry.record for entry in entries if entry.topic == tail.topic]
        return topic.end - 1

    monkeypatch.setattr(Questions, "find_bounds", find_bounds)
    monkeypatch.setattr(Log, "commit", commit)
    return topic


async def test_a_topic_that_is_read_anew_answers_no_create_meanwhile(
    request_server: RequestServer,
    host: Owner,
    log: Log,
    control_topic_read: ControlTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The registry lacks the consumer then, though the topic has it: it was not deleted."""
    monkeypatch.setattr(serve, "LOOK_S", 0.0)
    monkeypatch.setattr(serve, "SERVED_S", 3_600.0)
    monkeypatch.setattr(serve, "describe", lambda registry, host, id, now: {"name": id[1]})
    registry = request_server.registry
    registry.reload(make_files())
    ask_for(registry, ["made"])
    asked = Record(b"request made", registry.requests.pop("made").text.encode())
    control_topic_read.records.append(asked)

    async def make_room(self: Log) -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    # other tasks run after the registry was cleared, and before it is filled again
    monkeypatch.setattr(Log, "make_room", make_room)
    await request_server._turn()
    await request_server._turn()
    assert ("S", "made") in registry.effective().consumers
    assert request_server._answering
    request_server._is_astray = True
    await request_server._turn()
    assert not list_answers(log)
    host.reports["S", "made"] = {"state": "running"}
    async with asyncio.timeout(20):
        while not list_answers(log):
            await request_server._turn()
    assert list_answers(log)["made"]["name"] == "made"


def test_records_passed_over_are_counted_by_topic_and_reported(request_server: RequestServer) -> None:
    """Clients with few rights write to the requests topic."""
    told: list[PassedOver] = []
    request_server.on_passed_over = told.append
    found = [
        PassedOver(topic, 0, 7, "size", "too large", count)
        for topic, count in ((control_topic(PREFIX), 2), (requests_topic(PREFIX), 3))
    ]
    for each in found:
        request_server._count_passed_over(each)
    registry = request_server.metrics.registry
    for topic, count in (("control", 2), ("requests", 3)):
        labels = {"topic": topic, "reason": "size"}
        assert registry.get_sample_value("overlay_control_records_unreadable_total", labels) == count
    assert told == found


@pytest.mark.parametrize("at", ["decide", "describe"])
async def test_a_request_that_cannot_be_handled_is_answered(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Also where its answer comes later."""

    def fail(*_: object) -> Body:
        raise OverflowError("too much")

    def decide(request: Request) -> Decision:
        if request.id == "one":
            return Decision(fail()) if at == "decide" else Decision()
        return Decision(respond(request, {"total": 0}))

    decide_by(monkeypatch, decide)
    monkeypatch.setattr(serve, "describe", fail)
    monkeypatch.setattr(serve, "SERVED_S", 0.01)
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    error: Body = log.answers[ONE]["error"]
    assert (error["err_code"], error["description"]) == (10012, "internal error")
    assert log.answers[TWO]["total"] == 0


async def test_an_audit_that_its_topic_does_not_take_holds_up_no_request(
    request_server: RequestServer, log: Log
) -> None:
    log.refuses = {f"{PREFIX}.events"}
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    assert log.answers.keys() == {ONE, TWO}


async def test_a_journal_that_failed_is_not_used_again(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks write one after the other: one that waits must not get the journal that has just failed."""
    opened: list[Once] = []

    class Once(Log):
        """A journal; the first one fails, and is then as aiokafka's producer is after a fatal error."""

        async def commit(self, entries: Sequence[Entry]) -> int:
            await asyncio.sleep(0)
            assert not self.refuses, "used after it failed"
            if opened[0] is self:
                self.refuses = {"everything"}
                raise SourceUnavailable("the transaction did not end")
            return await log.commit(entries)

    def open_one(*_: object) -> Once:
        opened.append(Once())
        return opened[-1]

    monkeypatch.setattr(shard_journals, "Journal", open_one)
    writes = [request_server._journals.write(("S", "c"), [Record(b"request %d" % number, None)]) for number in range(2)]
    failed, written = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(failed, SourceUnavailable)
    assert written is None
    assert log.settled == ["request 1"]


async def test_a_definition_that_the_topic_does_not_take_is_refused(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(request: Request) -> Decision:
        large = Record(b"consumer S c", b"{}" if request.id == "two" else bytes(2_000))
        return Decision(respond(request, {"total": 0}), (large,))

    decide_by(monkeypatch, decide)
    log.largest = 1_000
    await take_turns(request_server, log)
    assert "error" in log.answers[ONE]
    assert log.answers[TWO]["total"] == 0


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


async def test_creates_are_decided_and_answered_together(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"made-{number:02}" for number in range(75)]
    registry = request_server.registry
    ask_for(registry, names)
    await request_server._turn()
    assert log.commits == 1
    monkeypatch.setattr(serve, "describe", lambda registry, host, id, now: {"name": id[1]})
    host.reports |= {("S", name): {"state": "running"} for name in names}
    take(registry, *log.own)
    assert [id[1] for id in registry.definitions] == names
    await asyncio.gather(*request_server._answering.values())
    assert log.commits == 2
    assert {name: answer["name"] for name, answer in list_answers(log).items()} == {name: name for name in names}
    assert sorted(log.settled) == [f"request {name}" for name in names]
    await asyncio.sleep(0)
    assert not request_server._answering


async def test_a_state_that_cannot_be_dropped_delays_no_answer(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else of the change is in effect then (`Host.take_up`)."""
    monkeypatch.setattr(serve, "SERVED_S", 3_600.0)
    monkeypatch.setattr(serve, "describe", lambda registry, host, id, now: {"name": id[1]})
    read_back(monkeypatch, log)
    ask_for(request_server.registry, ["made"])
    await request_server._turn()
    host.reports["S", "made"] = {"state": "running"}
    host.fault = SourceUnavailable("the state cannot be read")
    with pytest.raises(SourceUnavailable):
        await request_server._turn()
    async with asyncio.timeout(20):
        await asyncio.gather(*request_server._answering.values())
    assert list_answers(log)["made"]["name"] == "made"


async def test_the_last_free_places_are_given_out_one_by_one(request_server: RequestServer) -> None:
    """Decided together, all would see the same free places."""
    registry, names = request_server.registry, ["a", "b", "c"]
    limits = registry.files.service.requests.model_copy(update={"consumers": 2})
    registry.reload(replace(registry.files, service=registry.files.service.model_copy(update={"requests": limits})))
    registry.requests.clear()
    ask_for(registry, names)

    def list_groups() -> list[list[str]]:
        return [[request.id for request in requests] for _, requests in request_server._group_requests()]

    assert list_groups() == [[name] for name in names]
    # what takes no place does not count
    registry.requests.pop("c")
    registry.take(b"request info", b'{"op":"consumer.info","stream":"S","consumer":"a"}', dict[str, bytes]().get, 1)
    assert list_groups() == [["a", "b"], ["info"]]


async def test_open_requests_wait_while_many_others_do(request_server: RequestServer) -> None:
    """Clients of the control topic keep half of the room."""
    relay = SimpleNamespace(is_due=True, takes=0)

    async def take_open(_: object) -> Taken:
        relay.takes += 1
        return Taken()

    relay.take = take_open
    registry = request_server.registry
    limits = registry.files.service.requests.model_copy(update={"pending": 4})
    registry.reload(replace(registry.files, service=registry.files.service.model_copy(update={"requests": limits})))
    assert len(registry.requests) == 2
    await request_server._take_open(cast(Relay, relay))
    assert relay.takes == 0
    take(registry, Record(b"request one", None))
    await request_server._take_open(cast(Relay, relay))
    assert relay.takes == 1


async def test_a_create_that_fails_takes_no_other_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are decided anew, one by one, and before those behind them."""
    names = ["a", "b", "c"]
    ask_for(request_server.registry, names)
    later = json.dumps({"op": "consumer.delete", "stream": "S", "consumer": "a"}).encode()
    request_server.registry.take(b"request later", later, dict[str, bytes]().get, now_ns() // 10**6)

    def decide(request: Request) -> Decision:
        large = Record(b"consumer S x", bytes(2_000) if request.id == "b" else b"{}")
        return Decision(respond(request, {"name": request.id}), (large,))

    decide_by(monkeypatch, decide)
    log.largest = 1_000
    await take_turns(request_server, log)
    assert log.settled == [f"request {name}" for name in [*names, "later"]]
    answers = list_answers(log)
    assert {name for name, answer in answers.items() if "error" in answer} == {"b"}
    assert (answers["a"]["name"], answers["c"]["name"]) == ("a", "c")
    await request_server._turn()
    assert not request_server._alone


@pytest.mark.parametrize("at", ["decide", "answer"])
async def test_a_large_audit_takes_no_audit_of_another_request_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Of requests that are decided together, refused at once or answered once the consumers are served."""
    names = ["a", "b", "c"]
    ask_for(request_server.registry, names)
    large = replace(request_server.registry.requests["b"], text="x" * 5_000)
    request_server.registry.requests["b"] = large

    def decide(request: Request) -> Decision:
        return Decision(respond(request, {"name": request.id}) if at == "decide" else None)

    decide_by(monkeypatch, decide)
    monkeypatch.setattr(serve, "SERVED_S", 0.01)
    log.largest_event = 4_000
    await take_turns(request_server, log)
    assert sorted(log.settled) == [f"request {name}" for name in names]
    assert list_answers(log).keys() == set(names)
    audits = [entry.record.value or b"" for entry in log.entries if entry.topic == f"{PREFIX}.events"]
    assert [name for name in names if any(f"out-{name}" in audit.decode() for audit in audits)] == ["a", "c"]


async def test_an_answer_that_cannot_be_described_takes_no_other_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(registry: Registry, host: Host, id: tuple[str, str], now: int) -> Body:
        if id[1] == "b":
            raise OverflowError("too much")
        return {"name": id[1]}

    ask_for(request_server.registry, ["a", "b", "c"])
    await request_server._turn()
    take(request_server.registry, *log.own)
    monkeypatch.setattr(serve, "describe", tell)
    monkeypatch.setattr(serve, "SERVED_S", 0.01)
    await take_turns(request_server, log)
    answers = list_answers(log)
    assert {name: "error" in answer for name, answer in answers.items()} == {"a": False, "b": True, "c": False}


async def test_a_consumer_that_is_not_served_holds_up_no_other_answer(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of its stream's partition may be away, for example."""
    monkeypatch.setattr(serve, "SERVED_S", 600.0)
    names = ["a", "b", "c"]
    registry = request_server.registry
    ask_for(registry, names)
    await request_server._turn()
    take(registry, *log.own)
    monkeypatch.setattr(serve, "describe", lambda registry, host, id, now: {"name": id[1]})
    host.reports |= {("S", name): {"state": "running"} for name in ("b", "c")}
    async with asyncio.timeout(60):
        await until(lambda: list_answers(log).keys() == {"b", "c"}, pause_s=0.01)
    host.reports["S", "a"] = {"state": "running"}
    await asyncio.gather(*request_server._answering.values())
    assert sorted(log.settled) == [f"request {name}" for name in names]


async def test_an_output_that_a_stream_reads_is_decided_alone(request_server: RequestServer, log: Log) -> None:
    ask_for(request_server.registry, ["a", "b"], deliver_subject="source")
    await take_turns(request_server, log)
    assert {answer["error"]["err_code"] for answer in list_answers(log).values()} == {10081}
    assert log.commits == 2


async def test_many_files_are_written_at_once_and_compared_once_each(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work in proportion to their number: thousands of files once kept the event loop for a minute."""
    compared = 0
    compare = ConsumerConfig.__eq__

    def count(config: ConsumerConfig, other: object) -> bool:
        nonlocal compared
        compared += 1
        return compare(config, other)

    names = [f"c{number}" for number in range(300)]
    request_server.registry, request_server._unwritten = Registry(make_files(*map(make_config, names))), None
    monkeypatch.setattr(ConsumerConfig, "__eq__", count)
    await request_server._write_files()
    written = [(record.key or b"").decode() for record in log.own]
    assert [key.split()[-1] for key in written] == names
    assert compared <= 2 * len(names)
    assert not request_server._unwritten


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


@pytest.mark.parametrize("origin", list(Origin))
async def test_consumers_that_lapse_together_cost_one_change(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    """After a pause of the service, for example. The state of each is dropped once."""
    read_back(monkeypatch, log)
    registry = request_server.registry
    registry.requests.clear()
    configs = [make_config(f"c{number}") for number in range(20)]
    take(registry, *(write_definition(Definition(config, 1, origin)) for config in configs))
    registry.reload(make_files(*configs) if origin is Origin.FILE else make_files())
    ids = [config.id for config in configs]
    host.idle = set(ids)
    for _ in range(6):
        await request_server._turn()
    assert [sorted(some) for some in host.forgotten] == [sorted(ids)]
    assert not registry.definitions and not registry.effective().consumers
    assert log.commits == (1 if origin is Origin.FILE else 2)
    assert not request_server._lapsed and not request_server._ended


async def test_consumers_of_files_that_lapse_are_ended_also_if_that_fails_at_first(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_back(monkeypatch, log)
    registry = request_server.registry
    take(registry, write_definition(Definition(make_config(), 1, Origin.FILE)))
    host.idle, host.fault = {("S", "c")}, SourceUnavailable("the state cannot be read")
    with pytest.raises(SourceUnavailable):
        await request_server._turn()
    host.fault = None
    await request_server._turn()
    await request_server._turn()
    assert not registry.definitions


async def test_the_state_of_a_consumer_that_was_deleted_elsewhere_is_dropped_anew(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a former owner knows of a consumer does not hold for its successor of the same name."""
    read_back(monkeypatch, log)
    registry = request_server.registry
    registry.reload(make_files())
    registry.requests.clear()
    config = make_config("made")
    request_server._forgotten.add(config.id)
    request_server._lapsed.add(config.id)
    take(registry, write_definition(Definition(config, 1)))
    await request_server._take_up()
    assert not request_server._forgotten and not request_server._lapsed
    take(registry, write_definition(Definition(config, 1, is_deleted=True)))
    for _ in range(3):
        await request_server._turn()
    assert host.forgotten == [[config.id]]
    assert not registry.definitions


async def test_a_state_that_cannot_be_dropped_holds_up_no_other_deletion(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a request. It is tried again with growing pauses, and told once."""
    read_back(monkeypatch, log)
    world = SimpleNamespace(now=1_000, is_stuck=True, tried=[], told=[])
    stuck, registry = ("S", "stuck"), request_server.registry

    async def take_up(_: object, loaded: Loaded, forget: Collection[tuple[str, str]] = ()) -> None:
        if stuck in forget:
            world.tried.append(world.now)
            if world.is_stuck:
                raise errors.StateKept({stuck: "not authorized to write"})

    monkeypatch.setattr(type(host), "take_up", take_up)
    monkeypatch.setattr("overlay.control.undropped.monotonic", lambda: world.now)
    told = SimpleNamespace(error=lambda event, **more: world.told.append(more["consumer"]))
    monkeypatch.setattr("overlay.control.undropped.log", told)
    registry.reload(make_files())
    registry.requests.clear()
    take(
        registry, *(write_definition(Definition(make_config(name), 1, is_deleted=True)) for name in ("stuck", "other"))
    )
    asked = b'{"op":"consumer.info","stream":"S","consumer":"other"}'
    registry.take(b"request info", asked, dict[str, bytes]().get, now_ns() // 10**6)
    for _ in range(3):
        await request_server._turn()
    assert registry.definitions.keys() == {stuck}
    assert not registry.requests
    for world.now in range(1_000, 1_400):
        await request_server._turn()
    assert [after - before for before, after in itertools.pairwise(world.tried)] == [1, 2, 4, 8, 16, 32, 64, 120, 120]
    assert world.told == ["stuck"]
    world.now, world.is_stuck = world.now + 120, False
    for _ in range(3):
        await request_server._turn()
    assert not registry.definitions


async def test_answers_without_a_record_are_sent(request_server: RequestServer, log: Log) -> None:
    await request_server._journals.write(("S", "c"), [], [Entry(ONE, Record(None, b"{}"))])
    assert log.answers == {ONE: {}}
    # also if what goes with them is refused
    log.refuses = {f"{PREFIX}.events"}
    event = Entry(f"{PREFIX}.events", Record(None, b"{}"))
    await request_server._journals.write(("S", "c"), [], [event, Entry(TWO, Record(None, b"{}"))])
    assert log.answers == {ONE: {}, TWO: {}}


@pytest.mark.parametrize("largest", [None, 64])
async def test_an_events_topic_that_refuses_leaves_groups_together(
    request_server: RequestServer, log: Log, largest: int | None
) -> None:
    """It costs one refusal, not one for each request."""
    names = [f"made-{number:02}" for number in range(75)]
    registry = request_server.registry
    if largest is None:
        log.refuses = {f"{PREFIX}.events"}
    else:
        log.largest_event = largest
        event = Entry(f"{PREFIX}.events", Record(None, bytes(2 * largest)))
        await request_server._journals.write(("S", "c"), [Record(b"pause S c", None)], [event])
    before = log.commits
    ask_for(registry, names)
    await request_server._turn()
    assert log.commits == before + 1
    assert log.refusals == (largest is None)
    take(registry, *log.own)
    assert [id[1] for id in registry.definitions] == names
    assert not request_server._alone


async def test_an_events_topic_that_is_away_holds_up_requests_once(request_server: RequestServer, log: Log) -> None:
    """It may be back soon, as after an election. If it was deleted, it is not."""
    log.refuses, log.is_final = {f"{PREFIX}.events"}, False
    with pytest.raises(SourceUnavailable):
        await take_turns(request_server, log)
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    assert log.refusals == 2


async def test_deletes_that_wait_together_cost_one_change(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an application with many ordered consumers ends, for example."""
    read_back(monkeypatch, log)
    registry = request_server.registry
    registry.reload(make_files())
    registry.requests.clear()
    names = [f"c{number}" for number in range(20)]
    take(registry, *(write_definition(Definition(make_config(name), 1)) for name in names))
    for name in names:
        body = json.dumps({"op": "consumer.delete", "stream": "S", "consumer": name}).encode()
        registry.take(f"request {name}".encode(), body, dict[str, bytes]().get, now_ns() // 10**6)
    for _ in range(4):
        await request_server._turn()
    assert [sorted(id[1] for id in some) for some in host.forgotten] == [sorted(names)]
    assert log.commits == 2
    assert not registry.requests and not registry.definitions
    assert all(answer["success"] for answer in list_answers(log).values())
