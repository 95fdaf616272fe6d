"""A producer whose commits lose their markers: what becomes of them when its next transaction is not committed.

The producer alone, a journal of requests, and a worker with a ledger (test_earlier_markers.py has more histories of
workers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from overlay.control.journal import Journal
from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import DEADLINE_S, Transactions

from .host import Worker
from .kafka.codes import Code
from .kafka.session import Answer
from .kafka.settings import Settings
from .scenes import PRODUCE, await_values, intercept, read_values, until
from .test_control_held_up import CONTROL_ID, MarkerThief
from .test_deleted import CONTROL
from .test_earlier_markers import hide
from .test_index_cut import find_reason
from .test_lost_markers import (
    END,
    FIRST,
    INDEX,
    PRODUCERS,
    configure,
    deliver_first,
    is_open,
    make_world,
    run_as_process,
)
from .test_lost_markers import STATE as SHARD
from .world import World
from .writing import write_under_one_key

STATE, OUT, OTHER = ("state", 0), ("out", 0), ("other", 0)
EVENTS = "overlay.events"
SHORT_S = 0.1
"""Longer than markers take."""
TOPICS = [topic for topic, _ in (STATE, OUT, OTHER)]


def press(value: str, *topics: str) -> Sequence[OutputBatch]:
    """Return batches with a record for each of these topics."""
    return press_entries([Entry(topic, Record(None, value.encode()), 0) for topic in topics], 0)


async def open_producer(world: World) -> Transactions:
    transactions = Transactions({"bootstrap.servers": world.bootstrap}, "overlay.shard.0", "state", 0)
    await transactions.start(TOPICS)
    return transactions


async def lose(world: World, owner: Transactions, places: Iterable[tuple[str, int]]) -> None:
    """Commit a record, `lost`, in the state and the output, without markers in these places."""
    await owner.begin()
    await owner.send(press("lost", "state", "out"))
    for place in places:
        world.cluster.remove_leader(*place)
    await owner.commit([])
    await asyncio.sleep(SHORT_S)  # its markers would be written meanwhile
    for place in places:
        world.cluster.restore_leader(*place)
        assert is_open(world, place)


async def take_over(world: World) -> None:
    """Take the transactional id over as a new owner does, and commit a record, `new`."""
    heir = await open_producer(world)
    await heir.end_lost([STATE, OUT, OTHER])
    await heir.write(press("new", *TOPICS))
    await until(lambda: not any(is_open(world, place) for place in (STATE, OUT, OTHER)), "it has its markers", 20.0)
    await heir.close()


def run(seed: int, act: Callable[[World, Transactions], Awaitable[None]]) -> None:
    """Run a history of an owner: it has committed `first` everywhere, and is closed at the end."""
    world = make_world(seed)

    async def write(world: World) -> None:
        owner = await open_producer(world)
        await owner.write(press("first", *TOPICS))
        await act(world, owner)
        await owner.close()

    async def history(world: World) -> None:
        for topic in TOPICS:
            world.cluster.create_topic(topic)
        await run_as_process(world, write(world))

    world.run(history)


@pytest.mark.parametrize("is_aborted", [False, True], ids=["left", "aborted"])
@pytest.mark.parametrize("places", [(OUT,), (STATE,), (STATE, OUT)], ids=["output", "state", "both"])
def test_a_commit_is_kept_whatever_becomes_of_the_next_transaction(
    places: tuple[tuple[str, int], ...], is_aborted: bool
) -> None:
    """`is_aborted`: the owner aborts the next one itself; else the new owner does."""

    async def act(world: World, owner: Transactions) -> None:
        await lose(world, owner, places)
        await owner.begin()
        await owner.send(press("second", *TOPICS))
        if is_aborted:
            await owner.abort()
        await take_over(world)
        for topic in ("state", "out"):
            assert read_values(world, topic) == ["first", "lost", "new"]
        assert read_values(world, "other") == ["first", "new"]

    run(1, act)


@pytest.mark.parametrize("is_aborted", [False, True], ids=["left", "aborted"])
def test_a_commit_is_kept_beside_a_transaction_elsewhere(is_aborted: bool) -> None:
    """The output does not tell until the new owner asks. `is_aborted`: the owner wants to abort the next one itself."""

    async def act(world: World, owner: Transactions) -> None:
        reveal = await hide(world, owner, OUT)
        await lose(world, owner, (OUT,))
        await owner.begin()
        await owner.send(press("second", "state", "other"))
        if is_aborted:
            await owner.abort()
        reveal()
        await take_over(world)
        assert read_values(world, "out") == ["first", "lost", "new"]
        assert read_values(world, "state") == ["first", "lost", "new"]

    run(2, act)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_partition_that_does_not_tell_is_written_to_when_it_has_its_marker(is_lost: bool) -> None:
    """`is_lost`: whether the marker is lost; then nothing is written until a new owner has completed the commit."""

    async def act(world: World, owner: Transactions) -> None:
        reveal = await hide(world, owner, OUT)
        await lose(world, owner, (OUT,) if is_lost else ())
        await owner.begin()
        sending = asyncio.create_task(owner.send(press("second", "out")))
        await asyncio.sleep(3.0)
        end = world.cluster.topics["out"].partitions[0].log.end
        assert not sending.done()
        reveal()
        if is_lost:
            with pytest.raises(DeliveryFailed, match=r"out-0: it does not say that the last transaction"):
                await sending
        else:
            await sending
            await owner.commit([])
        assert (world.cluster.topics["out"].partitions[0].log.end > end) != is_lost
        await take_over(world)
        assert read_values(world, "out") == ["first", "lost", *([] if is_lost else ["second"]), "new"]

    run(3, act)


def test_an_output_that_does_not_tell_delays_no_other_for_long() -> None:
    """Its leader is waited for once, and the transactions after that go on elsewhere at once."""

    async def act(world: World, owner: Transactions) -> None:
        await hide(world, owner, OUT)
        await lose(world, owner, (OUT,))
        await owner.write(press("second", "state", "other"))
        began = world.loop.now
        for _ in range(10):
            await owner.write(press("more", "state", "other"))
        assert world.loop.now - began < 1.0
        assert is_open(world, OUT)

    run(4, act)


def test_a_state_that_does_not_tell_begins_no_transaction() -> None:
    """The coordinator still tells the new owner that the last one was committed."""

    async def act(world: World, owner: Transactions) -> None:
        reveal = await hide(world, owner, STATE)
        await lose(world, owner, (STATE,))
        began = world.loop.now
        with pytest.raises(
            SourceUnavailable, match=r"state-0: it does not say that the last transaction has ended there"
        ):
            await owner.begin()
        assert world.loop.now - began == pytest.approx(DEADLINE_S, abs=1.0)
        reveal()
        await take_over(world)
        assert read_values(world, "state") == read_values(world, "out") == ["first", "lost", "new"]

    run(5, act)


def test_a_state_that_does_not_tell_at_first_is_completed() -> None:
    async def act(world: World, owner: Transactions) -> None:
        reveal = await hide(world, owner, STATE)
        await lose(world, owner, (STATE,))
        beginning = asyncio.create_task(owner.begin())
        await asyncio.sleep(DEADLINE_S / 2)
        assert not beginning.done()
        reveal()
        await beginning
        assert read_values(world, "state") == ["first", "lost"]
        await owner.send(press("second", *TOPICS))
        await take_over(world)
        assert read_values(world, "state") == read_values(world, "out") == ["first", "lost", "new"]

    run(6, act)


def test_a_partition_that_a_broker_does_not_know_yet_is_asked_on() -> None:
    """A leader that has just started says for a moment that it does not have the partition."""

    async def act(world: World, owner: Transactions) -> None:
        await until(lambda: not owner._markers.unseen, "the first transaction has its markers", 20.0)
        unknown = ["out"]

        def describe(answer: Answer, handle: Callable[[Answer], None]) -> None:
            if unknown and any(topic == "out" for topic, _, _ in answer.request.topics):
                rows: list[Any] = [
                    (topic, [(index, Code.UNKNOWN_TOPIC_OR_PARTITION, None, [], {}) for index in indexes], {})
                    for topic, indexes, _ in answer.request.topics
                ]
                answer.give(0, rows, {})
                return
            handle(answer)

        intercept(world, PRODUCERS, describe)
        await lose(world, owner, (OUT,))
        await asyncio.sleep(1.0)
        unknown.clear()
        await until(lambda: OUT in owner._markers._open or not owner._markers.unseen, "it has told", 20.0)
        await owner.begin()
        await owner.send(press("second", *TOPICS))
        await take_over(world)
        assert read_values(world, "state") == read_values(world, "out") == ["first", "lost", "new"]

    run(7, act)


def test_a_journal_completes_its_commit_before_the_next_change() -> None:
    """The control topic loses the marker of a change, and the next change is written and never ends."""
    world = World(8, brokers=1, settings=Settings(loses_markers_of=CONTROL_ID))
    place = (CONTROL, 0)

    async def write(world: World) -> None:
        owner, heir = (Journal({"bootstrap.servers": world.bootstrap}, "overlay", 0) for _ in range(2))
        await owner.start()
        await owner.commit([Entry(CONTROL, Record(b"key", b"first"))])
        await until(lambda: not is_open(world, place), "the first change has its marker", 20.0)
        thief = MarkerThief(world)
        await thief.steal(owner.commit([Entry(CONTROL, Record(b"key", b"lost"))]))
        await owner._transactions.begin()
        await owner._transactions.send(press("second", CONTROL))
        await heir.start()
        await heir.commit([Entry(CONTROL, Record(b"key", b"new"))])
        await until(lambda: "new" in read_values(world, CONTROL), "the last change has its marker", 20.0)
        assert read_values(world, CONTROL) == ["first", "lost", "new"]
        await owner.close()
        await heir.close()

    async def history(world: World) -> None:
        world.cluster.create_topic(CONTROL)
        await run_as_process(world, write(world))

    world.run(history)


@pytest.mark.parametrize(("is_committed", "is_forgotten"), [(True, False), (False, False), (True, True)])
def test_events_are_kept_or_left_out_as_the_change_of_a_former_owner_was(
    is_committed: bool, is_forgotten: bool
) -> None:
    """The events topic loses the marker of the change. The next owner aborts a transaction, or commits one: its end would be
    that of the former one. `is_forgotten`: an owner in between has changed nothing, and the coordinator knows no more how
    the change was decided."""
    world = World(8, brokers=1, settings=Settings(loses_markers_of=CONTROL_ID))

    async def write(world: World) -> None:
        former, between, heir = (Journal({"bootstrap.servers": world.bootstrap}, "overlay", 0) for _ in range(3))
        await former.start()
        await former._transactions.begin()
        await former._transactions.send(press("lost", CONTROL, EVENTS))
        world.cluster.remove_leader(EVENTS, 0)
        await (former._transactions.commit([]) if is_committed else former._transactions.abort())
        await asyncio.sleep(SHORT_S)  # its markers would be written meanwhile
        await former.close()
        world.cluster.restore_leader(EVENTS, 0)
        assert is_open(world, (EVENTS, 0)) and not is_open(world, (CONTROL, 0))
        if is_forgotten:
            await between.start()
            await between.close()
        await heir.start()
        if is_committed:
            await heir._transactions.begin()
            await heir._transactions.send(press("second", CONTROL, EVENTS))
            await heir._transactions.abort()
        else:
            await heir.commit([Entry(topic, Record(b"key", b"new")) for topic in (CONTROL, EVENTS)])
        await until(lambda: not is_open(world, (EVENTS, 0)), "the last transaction has its marker", 20.0)
        assert read_values(world, EVENTS) == read_values(world, CONTROL) == (["lost"] if is_committed else ["new"])
        await heir.close()

    async def history(world: World) -> None:
        for topic in (CONTROL, EVENTS):
            world.cluster.create_topic(topic)
        await run_as_process(world, write(world))

    world.run(history)


def test_rounds_of_the_ledger_are_kept_when_the_next_transaction_is_aborted() -> None:
    """The state and the index lose the markers of a commit. The next transaction reaches the index alone, and the worker is
    killed."""
    world = make_world(9)

    async def history(world: World) -> None:
        worker = Worker(world, "w", configure(world))
        await deliver_first(world, worker, partitions=2)
        steps = ["lose"]

        def end(answer: Answer, handle: Callable[[Answer], None]) -> None:
            if steps == ["lose"] and is_open(world, INDEX) and is_open(world, SHARD):
                steps.append("lost")
                for place in (INDEX, SHARD):
                    world.cluster.remove_leader(*place)
            handle(answer)

        def produce(answer: Answer, handle: Callable[[Answer], None]) -> None:
            topics = dict(answer.request.topics)
            if steps[-1] == "kill" and INDEX[0] in topics:
                answer.request.topics = [(INDEX[0], topics[INDEX[0]])]
                handle(answer)
                worker.kill()
                steps.append("killed")
                return
            handle(answer)

        intercept(world, END, end)
        intercept(world, PRODUCE, produce)
        await write_under_one_key(world, "source", ["lost"])
        await until(lambda: steps[-1] == "lost", "a transaction has ended without leaders", pause_s=SHORT_S)
        await asyncio.sleep(SHORT_S)
        for place in (INDEX, SHARD):
            world.cluster.restore_leader(*place)
            assert is_open(world, place)
        steps.append("kill")
        await write_under_one_key(world, "source", ["next"])
        await until(lambda: steps[-1] == "killed", "the worker is killed once the index has the next round")
        worker.start()
        await write_under_one_key(world, "source", ["last"])
        await await_values(world, "out", ["last"])
        assert not find_reason(worker)
        assert read_values(world, "out") == [*FIRST, "lost", "next", "last"]
        await worker.stop()

    world.run(history)
