"""Acks that arrive while no worker reads them for their consumer: each of them counts later all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .reading import Found, read_topic
from .scenes import await_records, until
from .world import World
from .writing import ack, write_under_one_key

COUNT = 5
ACK_WAIT_S = 30
SOURCES = {"S": "source", "T": "source-t"}
"""The topics of the streams."""


def configure(world: World, *names: str, others: tuple[str, ...] = (), **more: Any) -> Loaded:
    """Return a config with consumers of the stream S, and with `others` of the stream T, all in one shard."""
    consumers = [*(("S", name) for name in names), *(("T", name) for name in others)]
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [
            {"name": stream, "topics": [SOURCES[stream]], "subject": {"template": "s.{key}"}}
            for stream in sorted({stream for stream, _ in consumers})
        ],
        [
            {
                "stream": stream,
                "durable_name": name,
                "deliver_subject": f"out-{name}",
                "ack_policy": "explicit",
                "ack_wait": f"{ACK_WAIT_S}s",
                "interest": "always",
                **more,
            }
            for stream, name in consumers
        ],
    )


def start(world: World, loaded: Loaded) -> Worker:
    world.cluster.create_topic("source")
    worker = Worker(world, "w", loaded)
    worker.start()
    return worker


def count_deliveries(found: list[Found]) -> dict[bytes | None, int]:
    return {value: [one.value for one in found].count(value) for value in {one.value for one in found}}


async def send_away(world: World, worker: Worker, other: str) -> None:
    """Let the output of consumer `a` refuse until the consumer is left out, while `other` is served."""
    world.cluster.refuse_produce("out-a", Code.TOPIC_AUTHORIZATION_FAILED)
    await write_under_one_key(world, "source", ["more"])
    await await_records(world, f"out-{other}", COUNT + 1)
    shard = worker.service.shard_manager.shards[0] if worker.service.shard_manager else None
    assert shard is not None
    await until(lambda: bool(shard._stalled) and shard.session is not None, "a session without it")


def test_acks_for_a_consumer_that_is_away_count_when_it_is_back() -> None:
    """`a` is left out for a minute because its output refuses. Meanwhile its reader acks what it has, and so does the reader of
    `b`, whose acks move the shared position."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> list[Found]:
        worker = start(world, configure(world, "a", "b"))
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out-a", COUNT)
        others = await await_records(world, "out-b", COUNT)
        await send_away(world, worker, "b")
        await ack(world, "S", first)
        await ack(world, "S", [*others, *read_topic(world.cluster, "out-b")[COUNT:]])
        await asyncio.sleep(10)
        world.cluster.refuse_produce("out-a", Code.NONE)
        await await_records(world, "out-a", COUNT + 1)
        await ack(world, "S", read_topic(world.cluster, "out-a")[-1:])
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        return read_topic(world.cluster, "out-a") + read_topic(world.cluster, "out-b")

    found = world.run(history)
    assert set(count_deliveries(found).values()) == {2}, "one for each consumer"


@pytest.mark.parametrize("seed", range(4))
def test_acks_for_a_consumer_whose_file_was_gone_count_over_kills(seed: int) -> None:
    """The worker is killed now and then, also while the consumer hears what it has missed."""
    warm_up()
    world = World(seed, brokers=1, limits={"overlay.kafka.fetcher.PARTITION_BYTES": 2_000})

    async def history(world: World) -> list[Found]:
        both = configure(world, "a", "b")
        worker = start(world, both)
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first, others = [await await_records(world, f"out-{name}", COUNT) for name in "ab"]
        await ack(world, "S", others[:1])
        worker.reload(configure(world, "b"))
        await asyncio.sleep(5)
        await ack(world, "S", first[:2])
        await ack(world, "S", others * 20)  # what `a` has to go through
        await ack(world, "S", first[2:])
        await asyncio.sleep(5)
        worker.reload(both)
        for _ in range(3):
            await asyncio.sleep(3 * world.loop.chance.random())
            worker.kill()
            worker.start()
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        return read_topic(world.cluster, "out-a") + read_topic(world.cluster, "out-b")

    assert set(count_deliveries(world.run(history)).values()) == {2}, "one for each consumer"


def test_consumers_of_two_streams_in_one_shard_keep_the_acks_that_they_have_to_hear() -> None:
    """Of each stream one consumer is away when its acks come. The next session settles one stream after the other."""
    warm_up()
    world = World(5, brokers=1)

    async def history(world: World) -> list[Found]:
        world.cluster.create_topic("source-t")
        every = configure(world, "a", "b", others=("c", "d"))
        worker = start(world, every)
        await asyncio.sleep(5)
        for topic in SOURCES.values():
            await write_under_one_key(world, topic, map(str, range(COUNT)))
        found = {name: await await_records(world, f"out-{name}", COUNT) for name in "abcd"}
        worker.reload(configure(world, "b", others=("d",)))
        await asyncio.sleep(5)
        for stream, names in (("S", "ab"), ("T", "cd")):
            for name in names:
                await ack(world, stream, found[name])
        await asyncio.sleep(5)
        worker.reload(every)
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        return [record for name in "abcd" for record in read_topic(world.cluster, f"out-{name}")]

    assert set(count_deliveries(world.run(history)).values()) == {4}, "one for each consumer"


def test_acks_in_a_partition_that_was_added_are_read_from_its_start() -> None:
    """Readers know of the partition before the worker does, whose next session finds it."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> list[Found]:
        worker = start(world, configure(world, "a"))
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out-a", COUNT)
        await ack(world, "S", first[:1])
        await asyncio.sleep(5)
        with world.at_cluster("the ack topic gets a partition") as cluster:
            cluster.add_partitions("overlay.S.acks", 2)
        await ack(world, "S", first[1:], partition=1)
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        return read_topic(world.cluster, "out-a")

    assert set(count_deliveries(world.run(history)).values()) == {1}


def run_recreated(*, later: int) -> list[Found]:
    """Let the ack topic be created again while the worker is down, with acks in it and `later` repetitions behind them."""
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> list[Found]:
        worker = start(world, configure(world, "a"))
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out-a", COUNT)
        await ack(world, "S", first[:3])
        await asyncio.sleep(5)
        worker.kill()
        with world.at_cluster("the ack topic is made anew") as cluster:
            cluster.recreate_topic("overlay.S.acks")
        await ack(world, "S", first[3:])
        await ack(world, "S", first[:1] * later)
        worker.start()
        await asyncio.sleep(3 * ACK_WAIT_S)
        await worker.stop()
        return read_topic(world.cluster, "out-a")

    return world.run(history)


def test_an_ack_topic_that_was_created_again_is_read_from_its_start() -> None:
    assert set(count_deliveries(run_recreated(later=0)).values()) == {1}


def test_an_ack_topic_that_has_outgrown_the_old_position_is_read_from_its_start() -> None:
    assert set(count_deliveries(run_recreated(later=20)).values()) == {1}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("word", "pause_s", "most"), [(b"+ACK", 0, 1), (b"+TERM", 0, 1), (b"-NAK", 0, 2), (b"-NAK", 5, 3)]
)
def test_words_that_are_read_twice_settle_once(word: bytes, pause_s: float, most: int, seed: int) -> None:
    """At most a message that is not acked yet by the second time, `pause_s` after it came again, comes once more.

    The ack topic is created again under a session that does not notice: it has outgrown the session's position before the
    next fetch. The session reads on in the middle, and the next one reads the topic from its start."""
    warm_up()
    world = World(seed, brokers=1, tells=True)

    async def history(world: World) -> list[Found]:
        worker = start(world, configure(world, "a"))
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out-a", COUNT)
        await ack(world, "S", first[:1])
        await asyncio.sleep(5)
        worker.freeze()
        with world.at_cluster("the ack topic is made anew") as cluster:
            cluster.recreate_topic("overlay.S.acks")
        await ack(world, "S", first[:1] * 3)
        await ack(world, "S", first[1:], word)
        worker.thaw()
        if word == b"-NAK":
            again = (await await_records(world, "out-a", 2 * COUNT - 1))[COUNT:]
            await asyncio.sleep(pause_s)
            await ack(world, "S", again)
        await asyncio.sleep(3 * ACK_WAIT_S)
        assert sum("the ack topic was created again" in line for line in world.story) == 1
        await worker.stop()
        return read_topic(world.cluster, "out-a")

    assert count_deliveries(world.run(history)) == {b"0": 1, **{b"%d" % value: most for value in range(1, COUNT)}}


def test_what_is_not_acked_comes_again() -> None:
    """What the histories above would see if acks went unheard."""
    warm_up()
    world = World(4, brokers=1)

    async def history(world: World) -> list[Found]:
        worker = start(world, configure(world, "a"))
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(COUNT)))
        first = await await_records(world, "out-a", COUNT)
        await ack(world, "S", first[1:])
        await asyncio.sleep(1.5 * ACK_WAIT_S)
        await worker.stop()
        return read_topic(world.cluster, "out-a")

    assert count_deliveries(world.run(history)) == {b"0": 2, b"1": 1, b"2": 1, b"3": 1, b"4": 1}
