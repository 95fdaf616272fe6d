"""Partitions without a leader while a transaction of a shard ends: Kafka leaves their markers out.

The decision is the coordinator's, and the producer is told of it. The partition has the transaction open until its
next owner ends it (overlay/output/lost_markers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.errors import SourceUnavailable
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions

from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .kafka.session import Answer
from .kafka.settings import Settings
from .kafka.topics import Partition
from .kafka.transactions import State
from .scenes import await_values, intercept, read_sequences, read_values, until
from .world import World
from .writing import write_under_one_key

END, PRODUCERS, DESCRIBE = 26, 61, 65
"""API keys of EndTxn, DescribeProducers and DescribeTransactions."""
LOADS = 3
LONG_S = 10.0
STATE, OUTPUT, INDEX = ("overlay.state", 0), ("out", 0), ("overlay.S.index", 0)
FIRST = [str(number) for number in range(5)]


def make_world(seed: int, *, brokers: int = 1, **limits: Any) -> World:
    warm_up()
    return World(seed, brokers=brokers, settings=Settings(loses_markers_of="overlay."), limits=limits)


def configure(world: World) -> Loaded:
    """A stream of one topic, of one partition or of several, and a consumer that pushes to `out`."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


def find(world: World, place: tuple[str, int]) -> Partition:
    found = world.cluster.find(*place)
    assert found is not None
    return found


def is_open(world: World, place: tuple[str, int]) -> bool:
    return bool(find(world, place).log.producers.open)


class Saboteur:
    """Takes the leaders of partitions away at the end of the next transaction that has records in all of them.

    `is_kept`: whether the request that ends it reaches the coordinator; the worker is killed at it either way.
    """

    def __init__(self, world: World, worker: Worker, places: tuple[tuple[str, int], ...], *, is_kept: bool) -> None:
        self.is_armed, self.has_struck = False, False
        self._world, self._worker, self._places, self._is_kept = world, worker, places, is_kept
        intercept(world, END, self._end)

    def _end(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        if not self.is_armed or not all(is_open(self._world, place) for place in self._places):
            handle(answer)
            return
        self.is_armed, self.has_struck = False, True
        for place in self._places:
            self._world.cluster.remove_leader(*place)
        if self._is_kept:
            handle(answer)
        self._worker.kill()


async def run_as_process(world: World, work: Coroutine[Any, Any, None]) -> None:
    """Run something that connects to brokers. Raises what it raises."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            await work
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            done.set_exception(error)

    world.start("writers", run())
    await done


async def deliver_first(world: World, worker: Worker, partitions: int = 1) -> None:
    world.cluster.create_topic("source", partitions)
    worker.start()
    await write_under_one_key(world, "source", FIRST)
    await await_values(world, "out", FIRST)


async def check_rest(world: World, worker: Worker) -> None:
    """Start the worker again: what comes now, and what came when it was killed, is delivered once and in order."""
    worker.start()
    await write_under_one_key(world, "source", ["last"])
    await await_values(world, "out", ["last"])
    assert read_values(world, "out") == [*FIRST, "lost", "last"]
    sequences = read_sequences(world, "out")
    assert sequences == sorted(set(sequences))
    if len(world.cluster.topics["source"].partitions) == 1:  # a ledger may leave sequences out
        assert sequences == list(range(1, 8))
    await worker.stop()


@contextmanager
def sabotage(world: World, worker: Worker, *places: tuple[str, int], is_kept: bool) -> Iterator[Saboteur]:
    saboteur = Saboteur(world, worker, places, is_kept=is_kept)
    saboteur.is_armed = True
    yield saboteur
    assert saboteur.has_struck


def test_a_commit_whose_markers_were_lost_is_completed_by_the_next_owner() -> None:
    """The worker dies with it. The coordinator has the commit; neither the state nor the output has its marker."""
    world = make_world(1)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker)
        with sabotage(world, worker, STATE, OUTPUT, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
        for place in (STATE, OUTPUT):
            world.cluster.restore_leader(*place)
            assert is_open(world, place)
        await check_rest(world, worker)

    world.run(history)


@pytest.mark.parametrize("places", [(STATE, INDEX, OUTPUT), (INDEX,)], ids=["all", "index"])
def test_a_ledger_whose_marker_was_lost_can_be_read_by_the_next_owner(places: tuple[tuple[str, int], ...]) -> None:
    """The new owner reads the ledger before it writes anything. Nothing can be read behind the open transaction."""
    world = make_world(7)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker, partitions=2)
        with sabotage(world, worker, *places, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
        for place in places:
            world.cluster.restore_leader(*place)
            assert is_open(world, place)
        await check_rest(world, worker)

    world.run(history)


def test_a_coordinator_that_still_loads_is_asked_again() -> None:
    """It will obey the InitProducerId that follows, and then it does not know how the last transaction was decided."""
    world = make_world(6)
    refused: list[str] = []

    def load(answer: Answer, handle: Callable[[Answer], None]) -> None:
        if "overlay.shard.0" not in answer.request.transactional_ids or len(refused) == LOADS:
            handle(answer)
            return
        refused.append(answer.session.client_id)
        rows: list[Any] = [
            (Code.COORDINATOR_LOAD_IN_PROGRESS, name, "", 0, 0, 0, 0, [], {})
            for name in answer.request.transactional_ids
        ]
        answer.give(0, rows, {})

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker)
        with sabotage(world, worker, STATE, OUTPUT, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
        for place in (STATE, OUTPUT):
            world.cluster.restore_leader(*place)
        intercept(world, DESCRIBE, load)
        await check_rest(world, worker)
        assert len(refused) == LOADS

    world.run(history)


def test_a_commit_whose_marker_the_state_alone_has_lost_is_no_second_delivery() -> None:
    """The output shows the records. If the state were aborted, they would be delivered again."""
    world = make_world(2)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker)
        with sabotage(world, worker, STATE, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck and not is_open(world, OUTPUT), "the output alone has its marker")
        assert read_values(world, "out")[-1] == "lost"
        world.cluster.restore_leader(*STATE)
        assert is_open(world, STATE)
        await check_rest(world, worker)

    world.run(history)


def test_an_abort_by_the_timeout_of_which_the_output_lost_the_marker_shows_nothing() -> None:
    """The worker dies before its commit arrives. Its transaction times out while the output has no leader. Without a marker the
    next commit would make its record visible, beside the one that is delivered anew."""
    world = make_world(3)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker)
        with sabotage(world, worker, OUTPUT, is_kept=False) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
            await until(lambda: not is_open(world, STATE), "the coordinator has aborted it", 60.0)
        world.cluster.restore_leader(*OUTPUT)
        assert is_open(world, OUTPUT)
        await check_rest(world, worker)

    world.run(history)


def test_init_producer_id_waits_for_the_leaders_of_what_it_would_abort() -> None:
    """It would make the coordinator forget the transaction, and the marker would be lost."""
    world = make_world(4)
    topics, id = ("state", "out"), "overlay.shard.0"
    places = [(topic, 0) for topic in topics]

    async def write(world: World) -> None:
        kafka = {"bootstrap.servers": world.bootstrap}
        former = Transactions(kafka, id, "state", 0)
        await former.start(topics)
        await former.begin()
        await former.send(press_entries([Entry(topic, Record(None, b"lost"), 0) for topic in topics], 0))
        for place in places:
            world.cluster.remove_leader(*place)
        heir = Transactions(kafka, id, "state", 0)
        starting = asyncio.create_task(heir.start(topics))
        await asyncio.sleep(3.0)
        assert world.cluster.transactions.known[id].state is State.ONGOING
        for place in places:
            world.cluster.restore_leader(*place)
        await starting
        await heir.end_lost(places)
        assert not any(is_open(world, place) for place in places)
        await former.close()
        await heir.close()

    async def history(world: World) -> None:
        for topic in topics:
            world.cluster.create_topic(topic)
        await run_as_process(world, write(world))

    world.run(history)


def test_a_decision_that_is_forgotten_is_said() -> None:
    """A second InitProducerId has made the coordinator forget it. To guess could lose records, or deliver them twice."""
    world = make_world(5)

    async def write(world: World) -> None:
        kafka = {"bootstrap.servers": world.bootstrap}
        former = Transactions(kafka, "overlay.shard.0", "state", 0)
        await former.start(["state"])
        await former.begin()
        await former.send(press_entries([Entry("state", Record(None, b"lost"), 0)], 0))
        world.cluster.remove_leader("state", 0)
        await former.abort()
        await asyncio.sleep(1.0)  # its marker would be written meanwhile
        world.cluster.restore_leader("state", 0)
        for _ in range(2):
            heir = Transactions(kafka, "overlay.shard.0", "state", 0)
            await heir.start(["state"])
            await heir.close()
        heir = Transactions(kafka, "overlay.shard.0", "state", 0)
        await heir.start(["state"])
        with pytest.raises(
            SourceUnavailable, match=r"state-0@0: a transaction of overlay\.shard\.0 ended without its marker"
        ):
            await heir.end_lost([("state", 0)])
        await heir.close()
        await former.close()

    async def history(world: World) -> None:
        world.cluster.create_topic("state")
        await run_as_process(world, write(world))

    world.run(history)


def test_a_commit_whose_marker_is_lost_again_when_it_is_completed_is_completed_later() -> None:
    """The next owner commits it in a transaction of its own, of which the state loses the marker as well."""
    world = make_world(8)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker)
        with sabotage(world, worker, STATE, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["lost"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
        world.cluster.restore_leader(*STATE)
        with sabotage(world, worker, STATE, is_kept=True) as saboteur:
            worker.start()
            await until(lambda: saboteur.has_struck, "its completion ended without leaders")
        world.cluster.restore_leader(*STATE)
        assert is_open(world, STATE)
        await check_rest(world, worker)

    world.run(history)


async def leave_open(world: World, *places: tuple[str, int]) -> Transactions:
    """Abort a transaction with a record in each place, without markers. Return its producer, which has to be closed."""
    former = Transactions({"bootstrap.servers": world.bootstrap}, "overlay.shard.0", "state", 0)
    await former.start([topic for topic, _ in places])
    await former.begin()
    await former.send(press_entries([Entry(topic, Record(None, b"lost"), index) for topic, index in places], 0))
    for place in places:
        world.cluster.remove_leader(*place)
    await former.abort()
    await asyncio.sleep(1.0)  # its markers would be written meanwhile
    for place in places:
        world.cluster.restore_leader(*place)
        assert is_open(world, place)
    return former


def silence(world: World, node: int) -> None:
    """Let a broker take each DescribeProducers and answer none."""
    intercept(world, PRODUCERS, lambda answer, handle: None if answer.session.broker == node else handle(answer))


def end_beside_silence(seed: int, silent: str, end: Callable[[World, Transactions], Coroutine[Any, Any, None]]) -> None:
    """Run a history: a transaction is open in the topics `state` and `out`, the leader of the topic `silent` answers
    nothing, and a new owner ends what is open by `end`."""
    world = make_world(seed, brokers=2)

    async def write(world: World) -> None:
        former = await leave_open(world, ("state", 0), ("out", 0))
        silence(world, find(world, (silent, 0)).leader)
        heir = Transactions({"bootstrap.servers": world.bootstrap}, "overlay.shard.0", "state", 0)
        await heir.start(["state", "out"])
        await end(world, heir)
        await former.close()
        await heir.close()

    async def history(world: World) -> None:
        for node, topic in zip(world.cluster.brokers, ("state", "out"), strict=True):
            world.cluster.create_topic(topic, assignment=[[node]])
        await run_as_process(world, write(world))

    world.run(history)


def test_a_leader_that_does_not_answer_hides_nothing_that_another_one_tells() -> None:
    async def end(world: World, heir: Transactions) -> None:
        await heir.end_lost([("out", 0), ("state", 0)])
        await until(lambda: not is_open(world, ("state", 0)), "the state has its marker")
        assert is_open(world, ("out", 0))

    end_beside_silence(9, "out", end)


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_topic_in_doubt_is_written_to_when_it_has_told(is_hidden: bool) -> None:
    """What a former owner aborted there is not shown by the first commit. `is_hidden`: it has no leader for a while, and
    transactions elsewhere do not wait for it."""
    world = make_world(14)

    async def write(world: World) -> None:
        former = await leave_open(world, ("state", 0), ("letters", 0))
        heir = Transactions({"bootstrap.servers": world.bootstrap}, "overlay.shard.0", "state", 0)
        await heir.start(["state", "letters"])
        await heir.end_lost([("state", 0)])
        if is_hidden:
            world.cluster.remove_leader("letters", 0)
        heir.doubt_topics(["letters"])
        await heir.write(press_entries([Entry("state", Record(None, b"1"), 0)], 0))
        assert is_open(world, ("letters", 0)) == is_hidden
        if is_hidden:
            world.cluster.restore_leader("letters", 0)
            await until(lambda: bool(heir._markers._open), "it has told", 20.0)
        await heir.write(press_entries([Entry(topic, Record(None, b"2"), 0) for topic in ("state", "letters")], 0))
        await until(lambda: read_values(world, "letters") == ["2"], "the commit has its marker", 20.0)
        assert read_values(world, "state") == ["1", "2"]
        await former.close()
        await heir.close()

    async def history(world: World) -> None:
        for topic in ("state", "letters"):
            world.cluster.create_topic(topic)
        await run_as_process(world, write(world))

    world.run(history)


def test_a_leader_of_the_state_that_does_not_answer_is_said() -> None:
    """The shard must not go on as if nothing were open there."""

    async def end(world: World, heir: Transactions) -> None:
        said = r"state-0: it does not say which transactions are open: its leader"
        with pytest.raises(SourceUnavailable, match=said):
            await heir.end_lost([("out", 0), ("state", 0)])

    end_beside_silence(10, "state", end)


def test_a_producer_forgets_the_partitions_of_a_deleted_topic() -> None:
    """A topic that is only without a leader is asked again, since it may tell later."""
    world = make_world(11)
    topics = ("state", "deleted", "waiting")

    async def write(world: World) -> None:
        transactions = Transactions({"bootstrap.servers": world.bootstrap}, "overlay.shard.0", "state", 0)
        await transactions.start(topics)
        await transactions.write(press_entries([Entry(topic, Record(None, b"x"), 0) for topic in topics], 0))
        world.cluster.delete_topic("deleted")
        world.cluster.remove_leader("waiting", 0)
        await until(lambda: transactions._markers.unseen == {("waiting", 0)}, "the others are forgotten", 20.0)
        await asyncio.sleep(LONG_S)
        assert transactions._markers.unseen == {("waiting", 0)}
        world.cluster.restore_leader("waiting", 0)
        assert is_open(world, ("waiting", 0))
        await until(lambda: bool(transactions._markers._open), "it has told", 20.0)
        await transactions.write(press_entries([Entry("state", Record(None, b"y"), 0)], 0))
        assert not is_open(world, ("waiting", 0))
        await transactions.close()

    async def history(world: World) -> None:
        for topic in topics:
            world.cluster.create_topic(topic)
        await run_as_process(world, write(world))

    world.run(history)
