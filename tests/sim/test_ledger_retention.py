"""Sequences outlive the records that they number: what the index topic may forget, and what a consumer is given if it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.worker.cursors.cursor import Cursor

from .host import Worker, read_config, warm_up
from .scenes import DAY_S, await_values, read_sequences, read_values, run_for, until
from .world import World
from .writing import write, write_together

INDEX = "overlay.S.index"
PLAIN: Mapping[str, Any] = {"ack_policy": "none"}
ACKED: Mapping[str, Any] = {"ack_policy": "explicit", "ack_wait": "3600s"}
RETENTION_MS = "retention.ms"
A_DAY_MS = "86400000"


def configure(world: World, consumers: Mapping[str, Mapping[str, Any]]) -> Loaded:
    """A stream of one topic, whose consumers push to topics that are named like them."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", **more}
            for name, more in consumers.items()
        ],
    )


async def write_both(world: World, name: str) -> list[str]:
    """Write three records to each of the two partitions, and return their values."""
    values = [f"{name}{number}" for number in range(6)]
    await write(world, "source", values[:3], partition=0)
    await write(world, "source", values[3:], partition=1)
    return values


def fill_segment(world: World, topic: str) -> None:
    """Let the active segments of a topic be full."""
    with world.at_cluster(f"a segment of {topic} is full") as cluster:
        for partition in cluster.topics[topic].partitions:
            partition.log.roll(cluster.wall_ms)


async def live_through(world: World, days: Sequence[float]) -> list[str]:
    """Let a worker serve for half a minute on each of these days, while records come, with a segment of the index topic for
    each, and pass a day more. Return the values."""
    loaded = configure(world, {"old": PLAIN})
    values: list[str] = []
    begin = world.loop.now
    for day in days:
        await asyncio.sleep(begin + day * DAY_S - world.loop.now)
        values += await write_both(world, f"day{day:g}-")
        await run_for(Worker(world, f"w{day}", loaded), 30)
        fill_segment(world, INDEX)
    await asyncio.sleep(DAY_S)
    return values


@pytest.mark.parametrize("consumer", [PLAIN, ACKED])
@pytest.mark.parametrize(
    ("config", "days"),
    [
        # compaction keeps the last record of each key for ever, whatever retention.ms says, which still has its default
        ({"cleanup.policy": "compact", RETENTION_MS: A_DAY_MS}, (0, 0.7, 1.4)),
        # a segment is kept until its newest record is old enough, and then all of it goes
        ({RETENTION_MS: A_DAY_MS, "segment.ms": str(4 * 86_400_000)}, (0, 0.7, 1.4, 2.1)),
    ],
)
def test_a_new_consumer_is_given_all_that_a_topic_still_has(
    config: Mapping[str, str], days: Sequence[float], consumer: Mapping[str, Any]
) -> None:
    warm_up()
    world = World(1, longest_s=60 * DAY_S)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2, config)
        values = await live_through(world, days)
        assert set(read_values(world, "source")) == set(values)
        worker = Worker(world, "last", configure(world, {"old": PLAIN, "new": consumer}))
        worker.start()
        await await_values(world, "out-new", values)
        sequences = read_sequences(world, "out-new")
        assert sequences == sorted(set(sequences))
        assert len(sequences) == len(values)
        assert sequences[0] > 0

    world.run(history)


def test_the_index_topic_follows_when_a_source_is_to_keep_records_for_longer() -> None:
    warm_up()
    world = World(1, longest_s=60 * DAY_S)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2, {RETENTION_MS: A_DAY_MS})
        worker = Worker(world, "w", configure(world, {"old": PLAIN}))
        worker.start()
        await until(lambda: INDEX in world.cluster.topics, "an index topic")
        before = world.cluster.topics[INDEX].config
        assert before.is_expiring
        with world.at_cluster("retention is raised") as cluster:
            cluster.configure("source", {RETENTION_MS: "2592000000"})
        await until(lambda: world.cluster.topics[INDEX].config.retention_ms > 2592000000, "raised", 900)
        with world.at_cluster("the source becomes compacted") as cluster:
            cluster.configure("source", {"cleanup.policy": "compact"})
        await until(lambda: world.cluster.topics[INDEX].config.retention_ms == -1, "kept for ever", 900)
        after = world.cluster.topics[INDEX].config
        assert after.is_compacted
        assert after.retention_bytes == -1
        assert after.segment_bytes == before.segment_bytes
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("consumer", [PLAIN])
def test_records_whose_sequences_are_lost_are_delivered_without_waiting_for_more(consumer: Mapping[str, Any]) -> None:
    """The partitions are known by a restart alone: nothing of the ledger says that there are records."""
    warm_up()
    world = World(1, longest_s=60 * DAY_S)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded = configure(world, {"old": PLAIN})
        values = await write_both(world, "a")
        await run_for(Worker(world, "w0", loaded), 30)
        end = world.cluster.topics[INDEX].partitions[0].log.end
        await run_for(Worker(world, "w1", loaded), 30)
        with world.at_cluster("the ledger loses its runs") as cluster:
            cluster.delete_before(INDEX, 0, end)
        worker = Worker(world, "w2", configure(world, {"old": PLAIN, "new": consumer}))
        worker.start()
        await await_values(world, "out-new", values)
        values += await write_both(world, "b")
        await await_values(world, "out-new", values)
        await asyncio.sleep(10)
        assert sorted(read_values(world, "out-new")) == sorted(values)
        assert sorted(read_values(world, "out-old")) == sorted(values)

    world.run(history)


def test_a_record_whose_sequence_is_lost_is_not_the_last_of_all_partitions() -> None:
    """A record behind it in its partition has its sequence still, and so has the last message, in the other partition."""
    warm_up()
    world = World(2, longest_s=60 * DAY_S)
    last = {**PLAIN, "deliver_policy": "last", "filter_subjects": ["s.kearly", "s.klate"]}

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded = configure(world, {"old": PLAIN})
        await write(world, "source", ["early"], partition=0)
        await run_for(Worker(world, "w0", loaded), 30)
        end = world.cluster.topics[INDEX].partitions[0].log.end
        await write(world, "source", ["behind"], partition=0)
        await write(world, "source", ["late"], partition=1)
        await run_for(Worker(world, "w1", loaded), 30)
        with world.at_cluster("the ledger loses the sequence of the first record") as cluster:
            cluster.delete_before(INDEX, 0, end)
        worker = Worker(world, "w2", configure(world, {"old": PLAIN, "new": last}))
        worker.start()
        await await_values(world, "out-new", ["late"])
        await write(world, "source", ["early"], partition=0)
        await await_values(world, "out-new", ["early"])
        assert sorted(read_values(world, "out-new")) == ["early", "late"]
        await worker.stop()

    world.run(history)


def find_lagging(worker: Worker) -> list[Cursor]:
    """Return the cursors that make the index alone, behind those that give out sequences or ahead of them."""
    (session,) = worker.service.sessions
    return [cursor for _, cursor in session.cursors.all() if cursor.indexed and not cursor.sequenced]


def test_an_index_that_retention_moves_ahead_of_the_ledger_does_not_hold_it_up() -> None:
    """Retention takes what the index has not read yet, and what was fetched to be given sequences. The index goes on behind
    that, before these records have theirs."""
    warm_up()
    limits = {
        "overlay.kafka.fetcher.PARTITION_BYTES": 1,
        "overlay.worker.round.sequencing.LINGER_S": 20.0,
        "overlay.worker.round.sequencing.LINGER_RATE": 10,
    }
    world = World(1, limits=limits, longest_s=1_000)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        loaded = configure(world, {"old": PLAIN})
        old = [f"old{number}" for number in range(40)]
        worker = Worker(world, "w", loaded)
        worker.start()
        await write(world, "source", old)
        await await_values(world, "out-old", old)
        await worker.stop()
        # the index begins at its last chunk again, which is not full, and reads one batch after the other
        worker.start()
        await until(lambda: bool(worker.service.sessions), "a session")
        world.faults.only, world.faults.slow, world.faults.slow_s = {"FetchRequest"}, 1.0, (0.1, 0.1)
        await write(world, "source", ["one"])
        many = [f"many{number}" for number in range(100)]
        await write_together(world, "source", many)
        await await_values(world, "out-old", ["one", *many])
        # the stream is busy, so the next records wait until their sequences are given out
        await write(world, "source", ["fetched"])
        await asyncio.sleep(1)
        (index,) = find_lagging(worker)
        log = world.cluster.topics["source"].partitions[0].log
        assert index.position < log.end - 1
        with world.at_cluster("retention takes what there is") as cluster:
            cluster.delete_before("source", 0, log.end)
        await until(lambda: index.position == log.start, "the index goes on")
        await write(world, "source", ["last"])
        await await_values(world, "out-old", [*old, "one", *many, "fetched", "last"])
        assert find_lagging(worker) == []
        await worker.stop()

    world.run(history)
