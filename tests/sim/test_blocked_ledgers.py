"""Index topics with an open transaction: the stream waits for its end, and the other streams of the shard do not."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded
from overlay.kafka.own_topics import shard_of
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import DEADLINE_S, Transactions
from overlay.worker.kept.blocked import PATIENCE_S

from .host import Worker, read_config
from .scenes import await_values, read_sequences, read_values, until
from .test_earlier_markers import hide
from .test_index_cut import find_reason
from .test_lost_markers import INDEX, find, is_open, make_world, run_as_process, sabotage
from .world import World
from .writing import write_under_one_key

FIRST = ["0", "1"]
TIMEOUT_S = 60


def configure(world: World) -> Loaded:
    """A stream S with a ledger, which is delivered to `out`, and a stream T without one, to `other`. One shard has both."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [
            {"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}},
            {"name": "T", "topics": ["plain"], "subject": {"template": "t.{key}"}},
        ],
        [
            {"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"},
            {"stream": "T", "durable_name": "d", "deliver_subject": "other", "ack_policy": "none"},
        ],
    )


async def deliver_first(world: World) -> Worker:
    world.cluster.create_topic("source", 2)
    world.cluster.create_topic("plain")
    worker = Worker(world, "w", configure(world))
    worker.start()
    await write_under_one_key(world, "source", FIRST)
    await await_values(world, "out", FIRST)
    return worker


def find_state(worker: Worker) -> str:
    """Return the state of stream S, as /streams has it."""
    manager = worker.service.shard_manager
    assert manager is not None
    return str(manager.report_stream("S")["state"])


async def check_wait(world: World, worker: Worker, value: str) -> None:
    """The stream with the ledger waits, and says where. The other one is delivered: `value` is."""
    await write_under_one_key(world, "plain", [value])
    await await_values(world, "other", [value], 2 * PATIENCE_S)
    assert f"{INDEX[0]}-0@{find(world, INDEX).log.last_stable}" in find_reason(worker)
    assert find_state(worker) == "waiting"


async def check_rest(world: World, worker: Worker) -> None:
    """The stream goes on soon. What came while it waited, and what comes now, is delivered once, with rising sequences."""
    await until(lambda: find_state(worker) == "running", "the stream goes on", 10.0)
    await write_under_one_key(world, "source", ["last"])
    await await_values(world, "out", ["last"], 10.0)
    assert sorted(read_values(world, "out")) == sorted([*FIRST, "later", "last"])
    sequences = read_sequences(world, "out")
    assert sequences == sorted(set(sequences))
    await worker.stop()


async def keep_open(world: World, end: str, begun: asyncio.Event, over: asyncio.Event) -> None:
    """Have a producer with an id of its own keep a transaction open in the index topic from `begun` on, until `over` is set."""
    kafka = {"bootstrap.servers": world.bootstrap}
    former = Transactions(kafka, "former", *INDEX, timeout_ms=TIMEOUT_S * 1000)
    await former.start([INDEX[0]])
    await former.begin()
    await former.send(press_entries([Entry(INDEX[0], Record(b"?", b"?"), 0)], 0))
    begun.set()
    await over.wait()
    if end == "commit":
        await former.commit([])
    elif end == "new producer":
        heir = Transactions(kafka, "former", *INDEX)
        await heir.start([INDEX[0]])
        await heir.close()
    await former.close()


@pytest.mark.parametrize("end", ["commit", "new producer", "timeout"])
def test_a_ledger_behind_an_open_transaction_is_waited_for(end: str) -> None:
    """The transaction is of an owner with another transactional id, as before a change of the number of shards."""
    world = make_world(1)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        await worker.stop()
        begun, over = asyncio.Event(), asyncio.Event()
        former = asyncio.create_task(run_as_process(world, keep_open(world, end, begun, over)))
        await asyncio.wait({former, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not former.done(), former.result()
        await write_under_one_key(world, "source", ["later"], partition=1)
        worker.start()
        await check_wait(world, worker, "soon")
        (session,) = worker.service.sessions
        await asyncio.sleep(TIMEOUT_S / 2)
        await check_wait(world, worker, "still")
        assert worker.service.sessions == [session]  # the wait begins no session
        if end != "timeout":
            over.set()
        await until(lambda: not is_open(world, INDEX), "the transaction has ended", TIMEOUT_S)
        over.set()
        await former
        await check_rest(world, worker)

    world.run(history)


def test_a_ledger_whose_partition_does_not_tell_of_a_lost_marker_is_waited_for() -> None:
    """The next owner ends the transaction as soon as the partition tells."""
    world = make_world(7)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        (session,) = worker.service.sessions
        reveal = await hide(world, session.commits.transactions, INDEX)
        with sabotage(world, worker, INDEX, is_kept=True) as saboteur:
            await write_under_one_key(world, "source", ["later"])
            await until(lambda: saboteur.has_struck, "a transaction ended without leaders")
        world.cluster.restore_leader(*INDEX)
        worker.start()
        await asyncio.sleep(DEADLINE_S + PATIENCE_S)
        await check_wait(world, worker, "t")
        assert is_open(world, INDEX)
        reveal()
        await until(lambda: not is_open(world, INDEX), "the transaction is ended")
        await check_rest(world, worker)

    world.run(history)


def configure_followers(world: World) -> tuple[Loaded, list[str]]:
    """Return the config of a stream S with a ledger, of two shards, and the output topics of its consumers: first that of the
    shard that keeps the ledger, then that of the other one."""
    number = shard_of(("S",), 2)
    names = [
        next(f"c{n}" for n in range(99) if (shard_of(("S", f"c{n}"), 2) == number) == own) for own in (True, False)
    ]
    loaded = read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 2, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none"}
            for name in names
        ],
    )
    return loaded, names


def test_a_shard_that_follows_a_ledger_says_that_it_waits() -> None:
    """A transaction of another program begins while the shard reads. It is said once, and the session goes on."""
    world = make_world(1)
    world.tells = True

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded, (keeper, follower) = configure_followers(world)
        worker = Worker(world, "w", loaded)
        worker.start()
        await write_under_one_key(world, "source", FIRST)
        for name in (keeper, follower):
            await await_values(world, f"out-{name}", FIRST)
        manager = worker.service.shard_manager
        assert manager is not None
        sessions = worker.service.sessions
        assert len(sessions) == 2
        begun, over = asyncio.Event(), asyncio.Event()
        former = asyncio.create_task(run_as_process(world, keep_open(world, "commit", begun, over)))
        await asyncio.wait({former, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not former.done(), former.result()
        offset = find(world, INDEX).log.last_stable
        await write_under_one_key(world, "source", ["later"], partition=1)
        await until(lambda: find_state(worker) == "waiting", "the stream waits", 3 * PATIENCE_S)
        await asyncio.sleep(10.0)
        assert read_values(world, f"out-{follower}") == FIRST
        told = {name: manager.report_consumer(("S", name)) for name in (keeper, follower)}
        assert (told[keeper]["state"], told[follower]["state"]) == ("running", "waiting")
        for reason in (told[follower]["reason"], manager.report_stream("S")["reason"]):
            assert f"{INDEX[0]}-0@{offset}:" in reason
        assert sum("stream waits" in line for line in world.story) == 1
        over.set()
        await former
        await until(lambda: find_state(worker) == "running", "the stream goes on", 10.0)
        assert manager.report_consumer(("S", follower))["state"] == "running"
        await await_values(world, f"out-{follower}", ["later"], 10.0)
        assert worker.service.sessions == sessions
        await worker.stop()

    world.run(history)
