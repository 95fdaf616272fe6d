"""A producer whose commits lose their markers: what becomes of them when its next transaction is not committed.

The producer alone, without the service (test_earlier_markers.py has histories of workers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest

from overlay.errors import DeliveryFailed
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions

from .scenes import read_values, until
from .test_earlier_markers import hide
from .test_lost_markers import is_open, make_world, run_as_process
from .world import World

STATE, OUT, OTHER = ("state", 0), ("out", 0), ("other", 0)
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
    await asyncio.sleep(0.1)  # its markers would be written meanwhile
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
