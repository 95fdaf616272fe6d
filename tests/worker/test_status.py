"""What a worker publishes of itself: its shards, and of its consumers those that changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from overlay.clock import now_ms
from overlay.config import ServiceConfig
from overlay.config.identity import Identity
from overlay.fleet.changes import SHARE
from overlay.fleet.status import EVERY_MS, ShardStatus, Status, decode
from overlay.fleet.timetable import Scope
from overlay.kafka.own_topics import shard_of
from overlay.state.partitions import Sources
from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.worker.rates import Rates
from overlay.worker.round.indexing import Reach
from overlay.worker.round.task import Counts
from overlay.worker.shard_manager import ShardManager
from overlay.worker.status import MOST_REASON, ProcessStart, StatusSource, describe_consumer, name_worker

IDENTITY = Identity("1.0", "p", "h:1", "/folder", "d", "s")


@dataclass
class FakeAssignment:
    stalled: dict[ConsumerId, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Sources] = field(default_factory=dict)
    unindexed: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeCursor:
    position: int
    stable_end: int
    indexed: bool = False


@dataclass
class FakeCursors:
    halts: dict[object, str] = field(default_factory=dict)
    found: dict[StreamPartition, list[FakeCursor]] = field(default_factory=dict)

    def partitions(self) -> Iterable[tuple[StreamPartition, list[FakeCursor]]]:
        return self.found.items()

    def of(self, place: StreamPartition) -> list[FakeCursor]:
        return self.found.get(place, [])


@dataclass(eq=False)
class FakeSession:
    assignment: FakeAssignment = field(default_factory=FakeAssignment)
    cursors: FakeCursors = field(default_factory=FakeCursors)
    reaches: dict[StreamPartition, Reach] = field(default_factory=dict)


@dataclass
class FakeShard:
    trouble: str = ""
    session: FakeSession | None = None


@dataclass
class FakeStream:
    topic_names: tuple[str, ...]


@dataclass
class FakeLoaded:
    served: dict[ConsumerId, None]
    streams: dict[str, FakeStream] = field(default_factory=lambda: {"S": FakeStream(("t", "u"))})


@dataclass
class FakeMembership:
    drained: bool = False


@dataclass
class FakeManager:
    """What a status asks of a shard manager. Counts how often a consumer is described."""

    loaded: FakeLoaded
    count: int = 2
    owned: frozenset[int] = frozenset({0, 1})
    shards: dict[int, FakeShard] = field(default_factory=dict)
    trouble: str = ""
    generation: int = 7
    rates: Rates = field(default_factory=Rates)
    reports: dict[ConsumerId, dict[str, Any]] = field(default_factory=dict)
    described: int = 0
    membership: FakeMembership = field(default_factory=FakeMembership)

    @property
    def sessions(self) -> list[FakeSession]:
        return [shard.session for shard in self.shards.values() if shard.session is not None]

    def report_consumer(self, id: ConsumerId) -> dict[str, Any]:
        self.described += 1
        usual = {"stream": id[0], "name": id[1], "state": "running", "reason": "", "delivered": 0, "rate": 0.0}
        shard = shard_of(id, self.count)
        more = {"lag_records": 0, "lag_seconds": 0.0} | ({} if shard in self.owned else {"state": "elsewhere"})
        return usual | more | self.reports.get(id, {})


def make_manager(consumers: int = 3) -> FakeManager:
    ids = [("S", f"c{number:04}") for number in range(consumers)]
    shards = {0: FakeShard(session=FakeSession()), 1: FakeShard(session=FakeSession())}
    return FakeManager(FakeLoaded(dict.fromkeys(ids)), shards=shards)


@dataclass
class Worker:
    manager: FakeManager
    start: ProcessStart = field(default_factory=ProcessStart)
    source: StatusSource = field(init=False)

    def __post_init__(self) -> None:
        manager = cast("ShardManager", self.manager)
        self.source = StatusSource(lambda: IDENTITY, manager, "w", self.start)

    async def tell(self, *, scope: Scope = Scope.ALL, was_lost: bool = False) -> list[Status]:
        values = await self.source.collect(scope, was_lost)
        read = [decode(b"w", value, "p") for value in values]
        return [status for status in read if isinstance(status, Status)]

    async def list_told(self) -> list[str]:
        return [each.name for status in await self.tell() for each in status.consumers]


async def test_a_status_tells_of_the_worker_and_its_shards() -> None:
    manager = make_manager()
    manager.shards[1] = FakeShard("no leader\n" + "x" * 500)
    worker = Worker(manager)
    (status,) = await worker.tell()
    assert (status.worker, status.prefix, status.version) == ("w", "p", "1.0")
    assert (status.digest, status.settings) == ("d", "s")
    assert (status.shard_count, status.served, status.leaving) == (2, 3, False)
    reason = "no leader " + "x" * (MOST_REASON - 10)
    assert status.shards == (ShardStatus(number=0), ShardStatus(number=1, ready=False, reason=reason))
    assert (status.generation, status.every) == (7, EVERY_MS)
    del manager.shards[1]  # it has neither consumers nor indexes
    manager.owned, manager.trouble, manager.generation = frozenset({1}), "waiting", -1
    (status,) = await worker.tell()
    assert (status.shards, status.trouble) == ((ShardStatus(number=1),), "waiting")
    assert status.generation is None


async def test_records_are_counted_through_memberships() -> None:
    worker = Worker(make_manager())
    first = await worker.tell()
    again = Worker(make_manager(300), worker.start)
    second = await again.tell()
    numbers = [status.number for status in (*first, *second, *await again.tell(scope=Scope.LAST))]
    assert numbers == list(range(len(numbers)))
    assert len(second) == 2
    assert {status.boot for status in (*first, *second)} == {worker.start.boot}


async def test_the_last_status_says_so_and_no_more() -> None:
    (status,) = await Worker(make_manager()).tell(scope=Scope.LAST)
    assert status.leaving
    assert status.consumers == ()


async def test_a_status_of_the_worker_alone_describes_no_consumer() -> None:
    manager = make_manager()
    worker = Worker(manager)
    (status,) = await worker.tell(scope=Scope.WORKER)
    assert (len(status.shards), status.consumers, manager.described) == (2, (), 0)
    assert len(await worker.list_told()) == 3
    manager.loaded = FakeLoaded({("S", "c0000"): None})
    (status,) = await worker.tell(scope=Scope.WORKER)
    assert status.gone == ()
    (status,) = await worker.tell()
    assert status.gone == ("S/c0001", "S/c0002")


PLACES: list[StreamPartition] = [("S", ("t", 0)), ("S", ("u", 0))]


def read_stream(manager: FakeManager) -> None:
    """Both shards read the stream's partitions, and the second one keeps its index."""
    sources = {"S": Sources((("t", 0), ("u", 0)), {})}
    for number, positions in enumerate(((3, 8), (5, 7))):
        session = FakeSession(FakeAssignment(sources=sources))
        session.cursors.found = {
            place: [FakeCursor(0, 10), FakeCursor(position, 10, indexed=bool(number))]
            for place, position in zip(PLACES, positions, strict=True)
        }
        manager.shards[number] = FakeShard(session=session)
    session.reaches = {PLACES[0]: Reach(1, 4), PLACES[1]: Reach(0, 0)}


async def test_a_status_tells_of_the_streams() -> None:
    manager = make_manager()
    read_stream(manager)
    manager.rates.note_first_reads("S", 50, now_ms())
    (status,) = await Worker(manager).tell()
    (stream,) = status.streams
    assert (stream.name, stream.topic, stream.partitions, stream.state) == ("S", "t, u", 2, "running")
    # by the foremost cursors: 5 and 2 offsets to the ends
    assert (stream.lag, stream.index, stream.index_lag) == (7, "running", 16)
    assert stream.rate > 0


async def test_a_stream_of_which_little_is_known() -> None:
    manager = make_manager()
    (status,) = await Worker(manager).tell()
    assert [(each.state, each.lag, each.index, each.index_lag) for each in status.streams] == [("idle", None, "", None)]
    read_stream(manager)
    session = manager.shards[0].session
    assert session is not None
    # the first response tells where the log ends
    session.cursors.found["S", ("v", 0)] = [FakeCursor(5, -1)]
    session.assignment.unindexed["S"] = "refused"
    session.cursors.halts["S", ("t", 0)] = "corrupt"
    (status,) = await Worker(manager).tell()
    (stream,) = status.streams
    assert (stream.state, stream.reason, stream.lag, stream.index) == ("stopped", "corrupt", None, "stopped")


@pytest.mark.parametrize("is_read", [False, True])
async def test_a_stream_waits_unless_something_else_than_a_transaction_stops_it(is_read: bool) -> None:
    manager = make_manager()
    read_stream(manager)
    session = manager.shards[0].session
    assert session is not None
    if is_read:
        session.assignment.held["S"] = "a transaction is open"
    else:
        session.assignment.stopped["S"] = session.assignment.blocked["S"] = "a transaction is open"
    worker = Worker(manager)
    (status,) = await worker.tell()
    assert [(each.state, each.reason) for each in status.streams] == [("waiting", "a transaction is open")]
    session.cursors.halts["S", ("t", 0)] = "corrupt"
    (status,) = await Worker(manager).tell()
    assert [each.state for each in status.streams] == ["stopped"]


async def test_streams_that_are_not_the_workers_any_more_are_named() -> None:
    manager = make_manager()
    manager.loaded.streams["T"] = FakeStream(("t",))
    manager.loaded.streams["U"] = FakeStream(("u",))
    worker = Worker(manager)
    (status,) = await worker.tell()
    assert [each.name for each in status.streams] == ["S", "T", "U"]
    owned = frozenset({shard_of(("T",), 2)})
    manager.owned = owned
    manager.loaded = FakeLoaded({})
    manager.loaded.streams = {"S": FakeStream(("t",)), "T": FakeStream(("t",))}
    (status,) = await worker.tell()
    expected = {"S", "U"} if shard_of(("S",), 2) not in owned else {"U"}
    assert set(status.left) == expected
    (status,) = await worker.tell(was_lost=True)
    assert set(status.left) == expected
    (status,) = await worker.tell()
    assert status.left == ()


async def test_a_stream_at_rest_is_told_in_turn_and_a_change_at_once() -> None:
    manager = make_manager(0)
    manager.loaded.streams = {f"S{number:03}": FakeStream(("t",)) for number in range(150)}
    worker = Worker(manager)
    assert len((await worker.tell())[0].streams) == 100, "the rest is in a second record"
    for _ in range(3):
        await worker.tell()
    (status,) = await worker.tell()
    assert 0 < len(status.streams) <= 150 * SHARE + 1
    for name in ("S001", "S077", "S149"):
        manager.rates.note_first_reads(name, 5, now_ms())
        assert name in {each.name for status in await worker.tell() for each in status.streams}


def change_shards(manager: FakeManager) -> None:
    manager.owned = frozenset({0})


def change_generation(manager: FakeManager) -> None:
    manager.generation += 1


def change_readiness(manager: FakeManager) -> None:
    manager.shards[1].session = None


def change_stalls(manager: FakeManager) -> None:
    manager.shards[1] = FakeShard(session=FakeSession(FakeAssignment({("S", "c0000"): "refused"})))


def change_stops(manager: FakeManager) -> None:
    manager.shards[1] = FakeShard(session=FakeSession(FakeAssignment(stopped={"S": "gone"})))


def change_halts(manager: FakeManager) -> None:
    manager.shards[1] = FakeShard(session=FakeSession(cursors=FakeCursors({("S", ("t", 0)): "corrupt"})))


def exchange_stalls(manager: FakeManager) -> None:
    """As many as before, and others."""
    session = manager.shards[0].session
    assert session is not None
    session.assignment.stalled = {("S", "another"): "refused"}


def exchange_stops(manager: FakeManager) -> None:
    session = manager.shards[0].session
    assert session is not None
    session.assignment.stopped = {"another": "gone"}


def exchange_halts(manager: FakeManager) -> None:
    session = manager.shards[0].session
    assert session is not None
    session.cursors.halts = {("S", ("another", 0)): "corrupt"}


def change_trouble(manager: FakeManager) -> None:
    manager.trouble = "waiting"


def drain(manager: FakeManager) -> None:
    manager.membership.drained = True


@pytest.mark.parametrize(
    "change",
    [
        change_shards,
        change_generation,
        change_readiness,
        change_stalls,
        change_stops,
        change_halts,
        exchange_stalls,
        exchange_stops,
        exchange_halts,
        change_trouble,
        drain,
    ],
)
async def test_what_is_told_at_once(change: Callable[[FakeManager], None]) -> None:
    def make_session() -> FakeSession:
        assignment = FakeAssignment({("S", "one"): "refused"}, {"one": "gone"})
        return FakeSession(assignment, FakeCursors({("S", ("one", 0)): "corrupt"}))

    manager = make_manager()
    manager.shards[0] = FakeShard(session=make_session())
    source = Worker(manager).source
    before = source.mark()
    manager.rates.note(Counts(delivered={("S", "c0001"): 5}), manager.rates.began)
    # another session of the same shard, with the same troubles
    manager.shards[0] = FakeShard(session=make_session())
    assert source.mark() == before
    change(manager)
    assert source.mark() != before


async def test_only_consumers_of_the_workers_shards_are_told() -> None:
    manager = make_manager(20)
    manager.owned = frozenset({1})
    mine = [name for stream, name in manager.loaded.served if shard_of((stream, name), 2) == 1]
    assert 0 < len(mine) < 20
    assert await Worker(manager).list_told() == mine


async def test_what_changed_is_told_and_idle_consumers_cost_a_share() -> None:
    manager = make_manager(600)
    worker = Worker(manager)
    assert len(await worker.list_told()) == 600
    for _ in range(3):
        await worker.list_told()
    manager.described = 0
    manager.rates.note(Counts(delivered={("S", "c0599"): 5}), manager.rates.began)
    manager.reports["S", "c0599"] = {"delivered": 5}
    assert "c0599" in await worker.list_told()
    assert manager.described <= 600 * SHARE + 1


@pytest.mark.parametrize("change", ["session", "owned", "config"])
async def test_after_a_change_everything_is_looked_at(change: str) -> None:
    manager = make_manager(60)
    worker = Worker(manager)
    for _ in range(3):
        await worker.list_told()
    manager.described = 0
    if change == "session":
        manager.shards[0] = FakeShard(session=FakeSession())
    elif change == "owned":
        manager.owned = frozenset({0})
    else:
        manager.loaded = FakeLoaded(dict(manager.loaded.served))
    await worker.list_told()
    assert manager.described == sum(shard_of(id, 2) in manager.owned for id in manager.loaded.served)


async def test_deleted_consumers_are_named() -> None:
    manager = make_manager()
    worker = Worker(manager)
    await worker.tell()
    manager.loaded = FakeLoaded({("S", "c0000"): None})
    (status,) = await worker.tell()
    assert status.gone == ("S/c0001", "S/c0002")
    # a status that could not be written has told nothing; one of them was created again meanwhile
    manager.loaded = FakeLoaded({("S", "c0000"): None, ("S", "c0002"): None})
    (status,) = await worker.tell(was_lost=True)
    assert status.gone == ("S/c0001",)
    (status,) = await worker.tell(was_lost=True)
    assert status.gone == ("S/c0001",)
    (status,) = await worker.tell()
    assert status.gone == ()


async def test_what_a_lost_status_described_is_told_again() -> None:
    manager, changed = make_manager(150), ("S", "c0149")
    manager.loaded.streams |= {f"S{number:03}": FakeStream(("t",)) for number in range(150)}
    worker = Worker(manager)
    for _ in range(3):
        await worker.tell()
    manager.reports[changed] = {"state": "stalled", "reason": "refused"}
    manager.rates.note(Counts(delivered={changed: 1}), now_ms())
    session = manager.shards[0].session
    assert session is not None
    session.cursors.halts["S149", ("t", 0)] = "corrupt"
    (status,) = await worker.tell()
    assert "S149" in {each.name for each in status.streams}
    assert "c0149" in {each.name for each in status.consumers}
    for scope in (Scope.ALL, Scope.WORKER):
        await worker.tell(was_lost=True, scope=scope)
        (status,) = await worker.tell(was_lost=scope is Scope.ALL)
        assert "S149" in {each.name for each in status.streams}
        (told,) = [each for each in status.consumers if each.name == "c0149"]
        assert told.state == "stalled"


async def test_what_was_described_when_a_status_failed_is_told_by_the_next_one() -> None:
    manager = make_manager(3)
    worker = Worker(manager)
    manager.reports["S", "c0002"] = {"delivered": "none"}
    with pytest.raises(ValueError, match="delivered"):
        await worker.tell()
    del manager.reports["S", "c0002"]
    (status,) = await worker.tell(was_lost=True)
    assert sorted(each.name for each in status.consumers) == ["c0000", "c0001", "c0002"]


REPORT = {
    "stream": "S",
    "name": "c",
    "state": "catching up",
    "reason": "",
    "delivered": 9,
    "rate": 1.23456,
    "consumer_sequence": 8,
    "positions": {"t-0": 7},
    "lag_records": 6,
    "lag_seconds": 5.0,
    "num_pending": 4,
    "num_pending_is": "estimate",
    "acks": {"num_ack_pending": 3, "num_redelivered": 2},
    "dead_letters": {"max_deliver": 5, "term": 1},
}


def test_a_consumer_as_the_service_reports_it() -> None:
    found = describe_consumer(REPORT)
    assert (found.id, found.state, found.delivered, found.rate, found.sequence) == ("S/c", "catching up", 9, 1.235, 8)
    assert (found.lag, found.lag_s, found.pending, found.pending_is) == (6, 5.0, 4, "estimate")
    assert (found.unacked, found.redelivered, found.positions) == (3, 2, {"t-0": 7})
    assert found.dead_letters == {"max_deliver": 5, "term": 1}


def test_odd_reports_fit_too() -> None:
    odd = {
        "lag_seconds": 9e18,
        "reason": "a\nb" * 500,
        "positions": {f"t-{n}": n for n in range(17)},
        "lag_records": None,
    }
    found = describe_consumer(REPORT | odd)
    assert (found.positions, found.lag, found.reason[:3]) == ({}, None, "a b")
    bare = describe_consumer({"stream": "S", "name": "c", "state": "starting", "reason": "", "delivered": 0, "rate": 0.0,
                              "lag_seconds": 0.0})  # fmt: skip
    assert (bare.lag, bare.sequence, bare.unacked, bare.dead_letters) == (None, 0, 0, {})


async def test_a_dead_letter_alone_is_told() -> None:
    manager, busy = make_manager(150), ("S", "c0149")
    worker = Worker(manager)
    manager.reports[busy] = {"acks": {"num_ack_pending": 1}}
    for _ in range(3):
        await worker.list_told()
    for found in ({"term": 1}, {"max_deliver": 1}):
        manager.reports[busy] = {"dead_letters": found}
        (status,) = await worker.tell()
        assert [each.dead_letters for each in status.consumers if each.id == "S/c0149"] == [found]


def make_service(**fleet: Any) -> ServiceConfig:
    return ServiceConfig.model_validate({"kafka": {"bootstrap.servers": "h:1"}, "fleet": fleet})


@pytest.mark.parametrize(
    ("fleet", "host", "name"),
    [
        ({}, "box-1.example", "box-1.example:8222"),
        ({}, "büx_1 ", "b-x_1-:8222"),
        ({}, "x" * 300, "x" * 90 + ":8222"),
        ({"worker": "east-1"}, "box", "east-1"),
    ],
)
def test_the_name_of_a_worker(fleet: dict[str, str], host: str, name: str) -> None:
    assert name_worker(make_service(**fleet), host, 8222) == name


@pytest.mark.parametrize("name", ["a b", "x" * 101, "ü", "a/b"])
def test_names_that_the_config_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="a worker's name has 1 to 100"):
        make_service(worker=name)


def test_active_consumers_are_those_of_the_last_ten_seconds() -> None:
    rates = Rates(began=0)
    ids: Sequence[ConsumerId] = [("S", str(number)) for number in range(3)]
    for id, now in zip(ids, itertools.count(0, 6_000), strict=False):
        rates.note(Counts(delivered={id: 1}), now)
    assert rates.list_active(12_001) == set(ids[1:])
    assert rates.list_active(60_000) == set()
