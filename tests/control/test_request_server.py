"""Turns of the request server, without Kafka: what it takes up and ends, and how it goes on after an error."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from overlay import errors
from overlay.clock import now_ns
from overlay.config import Loaded
from overlay.control import answering, serve
from overlay.control.records import Definition, Origin, Subject, write_definition, write_drain
from overlay.control.relay import Relay, Taken
from overlay.control.serve import RequestServer
from overlay.control.tail import HEADERS, Tail
from overlay.errors import SourceUnavailable
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
from tests.control.registries import PREFIX, make_config, make_files, take
from tests.control.request_servers import ONE, TWO, Log, Owner, Questions, ask_for, list_answers, read_back, take_turns
from tests.control.request_servers import host as host
from tests.control.request_servers import log as log
from tests.control.request_servers import request_server as request_server
from tests.oracle.batches import Record as Row
from tests.support.batches import build

READ = Tail.read


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
    monkeypatch.setattr(answering, "LOOK_S", 0.0)
    monkeypatch.setattr(answering, "SERVED_S", 3_600.0)
    monkeypatch.setattr(answering, "describe", lambda registry, host, id, now: {"name": id[1]})
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
    assert request_server._answering.tasks
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
