"""The ledger that a job keeps: one writer at a time, and a service or another job continues it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer
from structlog.testing import capture_logs

from overlay.client.read.indexes import KeptIndex
from overlay.config import load
from overlay.errors import CredentialsRefused, Fenced, OverlayError, SourceUnavailable
from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.entries import encode
from overlay.index.ledger.ledger import Ledger
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, connect
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic
from spark.index import ensure_index
from spark.job import following, keeping
from spark.job.folder import JobFolder, choose_consumers
from spark.job.following import NotNumbered
from spark.job.keeping import CreatedAgain, StreamKeeper
from spark.lease import PATIENCE_S
from spark.options import Ask, read_options
from spark.plan import Planner
from tests.support.kafka import NewTopicFixture, add_partitions, create_again
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, await_caught_up, produce, read_committed, serve
from tests.worker.scenes import scene as scene


def keep(scene: Scene, *, may_lose: bool = False) -> StreamKeeper:
    loaded = load(scene.folder)
    return StreamKeeper(
        loaded.service, loaded.streams["S"], lambda: Planner(ask_for(scene)).look(with_ledger=True), may_lose=may_lose
    )


def read_ledger(scene: Scene) -> Ledger:
    """The ledger as a reader of committed records finds it."""
    stream = load(scene.folder).streams["S"]
    topic = index_topic(scene.prefix, "S")

    async def read() -> Ledger:
        async with connect({"bootstrap.servers": scene.bootstrap}) as (admin, client):
            index = Index(stream)
            await client.add_topic(topic)
            await index.read(client, topic, (await admin.find_bounds([(topic, 0)]))[topic, 0][1])
            assert not index.foreign
            return index.ledger

    return asyncio.run(read())


def list_sequences(ledger: Ledger, ends: Mapping[TopicPartition, int]) -> list[int]:
    return [ledger.sequence_from(source, offset) for source, end in ends.items() for offset in range(end)]


def test_jobs_continue_what_others_have_written(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    p0, p1 = (topic, 0), (topic, 1)
    with keep(scene) as first, keep(scene) as second:
        assert first.extend({p0: 4, p1: 6})
        assert second.extend({p0: 5, p1: 6})
        # it was fenced, and takes the shard again
        assert first.extend({p0: 5, p1: 10})
        assert first.extend({p0: 10, p1: 10})
        # what has a sequence is given no other one
        assert second.extend({p0: 8, p1: 10})
    ledger = read_ledger(scene)
    assert list_sequences(ledger, {p0: 10, p1: 10}) == [
        *range(1, 5), 11, *range(16, 21),
        *range(5, 11), *range(12, 16),
    ]  # fmt: skip
    assert ledger.next_sequence == 21


def test_a_service_keeps_the_ledger_itself_and_continues_it(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    ends = {(topic, 0): 10, (topic, 1): 10}
    with keep(scene) as keeper:
        assert keeper.extend({(topic, 0): 10, (topic, 1): 3})
        with serve(scene) as served:
            await_caught_up(served, "c")
            assert not keeper.extend(ends)
    found = {(seen.partition, seen.token.sequence) for seen in read_committed(scene.bootstrap, output)}
    assert sorted(sequence for _, sequence in found) == list(range(1, 21))
    ledger = read_ledger(scene)
    assert list_sequences(ledger, ends) == list(range(1, 21))


def test_no_record_is_numbered_before_the_ledger_has_come_to_it(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a service runs, a batch ends where its ledger ends, and one that was begun before waits. A worker that was stopped
    is a member of its group for a while, and then the job continues the ledger."""
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends = {source: end for source, (_, end) in fill(scene, topic).items()}
    p0, p1 = ends
    looks, members = list[str](), Admin.count_members

    async def count(self: Admin, group: str) -> int:
        looks.append(group)
        return 1 if len(looks) <= 3 else await members(self, group)

    with keep(scene) as keeper:
        assert keeper.extend({p0: 4, p1: 6})
    with keep(scene) as keeper, monkeypatch.context() as patch:
        patch.setattr(Admin, "count_members", count)
        assert not keeper.extend({p0: 4, p1: 5})
        assert keeper.ledger is not None and keeper.ledger.end_of(p1) == 6
        assert keeper.extend(ends)
        assert len(looks) > 3 and keeper.ledger.end_of(p0) == 10
    assert read_ledger(scene).next_sequence == 21

    async def count_of(self: Admin, groups: Collection[str], *, denied: object = None) -> dict[str, int]:
        return dict.fromkeys(groups, 1)

    monkeypatch.setattr(Admin, "count_members_of", count_of)
    monkeypatch.setattr(following, "FOLLOW_S", 0.0)
    more = {p0: 10, p1: 12}
    with keep(scene) as keeper:
        assert keeper.find_reach(more) == ends
        assert not keeper.extend(more, is_batch=False)
        with pytest.raises(
            NotNumbered, match=rf"{topic}-1: the ledger of stream S has not come to offset 12.*a service"
        ):
            keeper.extend(more)


def begin_ledger(scene: Scene, ends: Mapping[TopicPartition, int]) -> Producer:
    """A producer whose open transaction has the first round of the ledger of stream S, up to these ends."""
    loaded = load(scene.folder)

    async def create() -> str:
        async with connect({"bootstrap.servers": scene.bootstrap}) as (admin, _):
            return await ensure_index(admin, loaded.streams["S"], loaded.service.topics)

    entry = allocate(Ledger().standing, {source: (0, LogPosition(end)) for source, end in ends.items()})
    assert entry is not None
    key, value = encode("S", entry)
    producer = Producer({"bootstrap.servers": scene.bootstrap, "transactional.id": scene.prefix})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(asyncio.run(create()), value, key)
    assert producer.flush(30) == 0
    return producer


@pytest.mark.parametrize("keeper_is", ["the job", "a service", "none"])
def test_a_ledger_behind_an_open_transaction_is_waited_for(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, keeper_is: str
) -> None:
    """It is not taken for no ledger: no record is without its sequence, and none gets a second one."""
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends = {source: end for source, (_, end) in fill(scene, topic).items()}
    producer = begin_ledger(scene, ends)

    async def count(self: Admin, group: str) -> int:
        return 1

    async def count_of(self: Admin, groups: Collection[str], *, denied: object = None) -> dict[str, int]:
        return dict.fromkeys(groups, 1)

    async def fail(self: StreamKeeper, admin: object, client: object) -> None:
        raise CredentialsRefused("no right")

    if keeper_is == "a service":
        monkeypatch.setattr(Admin, "count_members", count)
        monkeypatch.setattr(Admin, "count_members_of", count_of)
    elif keeper_is == "none":
        monkeypatch.setattr(StreamKeeper, "_take", fail)
    monkeypatch.setattr(following, "BEGIN_S", 0.0)
    monkeypatch.setattr(following, "PATIENCE_S", 0.1)
    place = f"{index_topic(scene.prefix, 'S')}-0@0"
    with keep(scene) as keeper:
        with monkeypatch.context() as patch, pytest.raises(NotNumbered, match=f"waits for .* that began at {place}: "):
            patch.setattr(following, "OPEN_S", 0.0)
            keeper.extend(ends)
        if keeper_is == "a service":
            assert keeper.find_reach(ends) == dict.fromkeys(ends, 0)
        with ThreadPoolExecutor(1) as pool, capture_logs() as logged:
            extended = pool.submit(keeper.extend, ends)
            wait_until(lambda: bool(find_waits(logged, place)), 30, "the job says what it waits for")
            assert not extended.done()
            producer.commit_transaction(30)
            assert extended.result(30) is (keeper_is == "the job")
        assert len(find_waits(logged, place)) == 1
        assert keeper.ledger is not None and list_sequences(keeper.ledger, ends) == list(range(1, 21))
    assert read_ledger(scene).next_sequence == 21


def find_waits(logged: list[MutableMapping[str, Any]], place: str) -> list[str]:
    """The reasons of the lines that say that records wait for a transaction at this place."""
    waits = [each["reason"] for each in logged if each["event"] == "records wait for their sequences"]
    return [reason for reason in waits if place in reason]


@pytest.mark.parametrize("is_there", [False, True], ids=["without a ledger", "with a ledger"])
def test_a_job_that_may_not_write_the_ledger(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Where records have sequences, none is delivered without one. A stream without a ledger has none for any record."""
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends = {source: end for source, (_, end) in fill(scene, topic).items()}
    if is_there:
        read_after(scene, dict.fromkeys(ends, 7))

    async def fail(self: StreamKeeper, admin: object, client: object) -> None:
        raise CredentialsRefused("no right")

    monkeypatch.setattr(StreamKeeper, "_take", fail)
    with keep(scene) as keeper:
        if not is_there:
            assert not keeper.extend(ends) and keeper.ledger is None
            return
        assert not keeper.extend(dict.fromkeys(ends, 7)) and keeper.ledger is not None
        with pytest.raises(NotNumbered, match="the job does not give sequences itself: no right"):
            keeper.extend(ends)


@pytest.mark.parametrize("is_served", [False, True], ids=["by the job", "by the service before"])
def test_a_stream_that_gets_a_second_partition(scene: Scene, new_topic: NewTopicFixture, is_served: bool) -> None:
    """Sequences stay those by which records were delivered. What the service has numbered it extends itself."""
    topic = new_topic(1)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c")
    produce(scene.bootstrap, topic, ["a"] * 10, partition=0)
    if is_served:
        with serve(scene) as served:
            await_caught_up(served, "c")
    add_partitions(scene.bootstrap, topic, 2)
    produce(scene.bootstrap, topic, ["a"] * 5, partition=1)
    ends = {(topic, 0): 10, (topic, 1): 5}
    with keep(scene) as keeper:
        if is_served:
            with pytest.raises(OverlayError, match="run `overlay stream extend S`"):
                keeper.extend(ends, ((topic, 0), 7))
            assert read_ledger(scene).next_sequence == 1
        else:
            assert keeper.extend(ends, ((topic, 0), 7))
            assert list_sequences(read_ledger(scene), ends) == list(range(1, 16))


@pytest.mark.parametrize("place", ["while the driver runs", "between two drivers"])
def test_a_topic_that_is_created_again_restarts_in_the_ledger(
    scene: Scene, new_topic: NewTopicFixture, place: str
) -> None:
    """Its records get sequences above all former ones, whichever job comes next; those of the other topic keep theirs."""
    again, other = new_topic(2), new_topic(1)
    scene.add_stream("S", again, other)
    sources = [(again, 0), (again, 1), (other, 0)]
    for topic, partition in sources:
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    kept = list_sequences(read_after(scene, dict.fromkeys(sources, 10)), {(other, 0): 10})
    with keep(scene, may_lose=True) as keeper:
        if place == "while the driver runs":
            assert keeper.extend(dict.fromkeys(sources, 10))
        create_again(scene.bootstrap, again, 1)
        produce(scene.bootstrap, again, ["a"] * 4, partition=0)
        assert keeper.extend({(again, 0): 3, (other, 0): 10})
        assert keeper.ledger is not None and keeper.ledger.end_of((again, 1)) == 0
    # the restart takes up sequence 31
    assert list_sequences(read_ledger(scene), {(again, 0): 3, (other, 0): 10}) == [32, 33, 34, *kept]
    # another driver, which may lose nothing, does not restart them once more
    with keep(scene) as keeper:
        assert keeper.extend({(again, 0): 4, (other, 0): 10})
    assert list_sequences(read_ledger(scene), {(again, 0): 4, (other, 0): 10}) == [32, 33, 34, 35, *kept]


def read_after(scene: Scene, ends: Mapping[TopicPartition, int]) -> Ledger:
    """The ledger once a job has extended it to these ends."""
    with keep(scene) as keeper:
        assert keeper.extend(ends)
    return read_ledger(scene)


@pytest.mark.parametrize("is_served", [False, True], ids=["the loss is not allowed", "the service has positions"])
def test_a_topic_that_is_created_again_and_may_not_restart(
    scene: Scene, new_topic: NewTopicFixture, is_served: bool
) -> None:
    """No record gets the sequence of another one: no batch is delivered."""
    topic = new_topic(2)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c")
    ends = {source: end for source, (_, end) in fill(scene, topic).items()}
    if is_served:
        with serve(scene) as served:
            await_caught_up(served, "c")
    with keep(scene, may_lose=is_served) as keeper:
        assert keeper.extend(ends)
        before = read_ledger(scene).next_sequence
        create_again(scene.bootstrap, topic, 2)
        fill(scene, topic)
        with pytest.raises(CreatedAgain) as caught:
            keeper.extend(ends)
        assert keeper.ledger is not None and keeper.ledger.next_sequence == 1
    assert f"topic {topic} of stream S was deleted and created again" in str(caught.value)
    assert ("overlay stream reset S" if is_served else "failOnDataLoss=false") in str(caught.value)
    assert read_ledger(scene).next_sequence == before > 20


def ask_for(scene: Scene, columns: str = "sequence,offset") -> Ask:
    return read_options({"config": str(scene.folder), "stream": "S", "columns": columns})


def fill(scene: Scene, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Ten records in each of two partitions; returns first and next offset of each."""
    for partition in (0, 1):
        produce(scene.bootstrap, topic, ["a"] * 10, partition=partition)
    return {(topic, partition): (0, 10) for partition in (0, 1)}


def test_a_reading_finds_a_ledger_that_was_missing_a_moment_before(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends, planner = fill(scene, topic), Planner(ask_for(scene))
    assert planner.find_ledger() is None
    with keep(scene) as keeper:
        assert keeper.extend({source: end for source, (_, end) in ends.items()})
    assert [part.ledger is not None for part in planner.plan_between(ends)] == [True]


def test_a_batch_is_numbered_by_the_ledger_that_the_job_keeps(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a broker does not know the index topic yet: nothing is looked up that the job knows."""
    topic = new_topic(2)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c", engine="spark", deliver_policy="by_start_sequence", opt_start_seq=15)
    scene.add_consumer("S", "d", ">", engine="spark", deliver_policy="last_per_subject")
    ends = fill(scene, topic)

    async def find_nothing(self: KeptIndex, line: object) -> bool:
        return False

    monkeypatch.setattr(KeptIndex, "_find", find_nothing)
    with keep(scene) as keeper:
        assert keeper.extend({source: end for source, (_, end) in ends.items()})
        chosen = choose_consumers(load(scene.folder))
        folder = JobFolder(chosen, "S", (), ask_for(scene), PATIENCE_S, lambda: keeper.ledger)
        try:
            folder.own()
            consumers = folder.prepare(None)
        finally:
            folder.close()
        ledger = read_ledger(scene)
        assert consumers.begins["c"].floors == ledger.positions_at(15)
        assert consumers.begins["d"].snapshot == {source: end for source, (_, end) in ends.items()}
        for part in consumers.plan(ends, [0, 1]):
            assert part.ledger is not None
            assert [part.ledger.end_of(each.source) >= each.stop for each in part.offset_ranges] == [True, True]
        found = consumers.find_lasts(1, dict.fromkeys(ends, 0), consumers.begins["d"].snapshot)
        (last,) = [(source, offset) for source, offsets in found.items() for offset in offsets.tolist()]
        assert ledger.sequence_from(*last) == 20


@pytest.mark.parametrize("kind", [SourceUnavailable, Fenced])
def test_a_fault_that_passes_ends_the_attempt_with_its_reason(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, kind: type[OverlayError]
) -> None:
    """No record is delivered without a sequence because of it: the next attempt begins at once."""
    monkeypatch.setattr(keeping, "EXTEND_S", 0.0)
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends = {source: end for source, (_, end) in fill(scene, topic).items()}

    async def fail(self: StreamKeeper, admin: object, client: object) -> None:
        raise kind("not now")

    with keep(scene) as keeper:
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(StreamKeeper, "_take", fail)
            for _ in range(2):
                with pytest.raises(kind, match="not now"):
                    keeper.extend(ends)
        assert [(each["log_level"], each["reason"]) for each in logged if "reason" in each] == [("warning", "not now")]
        before = keeper.ledger
        assert before is None and keeper.extend(ends)
        assert keeper.ledger is not None and keeper.ledger.next_sequence == 21


@pytest.mark.parametrize("columns", ["sequence,offset", "offset"])
def test_a_ledger_that_cannot_be_read_now_ends_the_readings_that_give_sequences(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    topic = new_topic(2)
    scene.add_stream("S", topic)
    ends, planner = fill(scene, topic), Planner(ask_for(scene, columns))

    async def fail(self: KeptIndex, line: object, bounds: object) -> bool:
        raise SourceUnavailable("no answer")

    monkeypatch.setattr(KeptIndex, "_read_on", fail)
    if columns == "offset":
        assert [part.ledger for part in planner.plan_between(ends)] == [None]
        return
    with pytest.raises(SourceUnavailable, match=r"the ledger of stream 'S' cannot be read: no answer"):
        planner.plan_between(ends)
