"""Batches that cannot be read, in the logs of a stream: what is skipped, and what goes on beside a partition that stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .scenes import PRODUCE, await_values, intercept, read_sequences, read_values
from .world import World
from .writing import write, write_together

DELTA_AT, COUNT_AT, RECORDS_AT = 23, 57, 65
PLAIN = {"ack_policy": "none"}
ACKED = {"ack_policy": "explicit", "ack_wait": "3600s"}


def configure(world: World, on_corrupt: str, consumers: Mapping[str, Mapping[str, Any]]) -> Loaded:
    """Return the config of a stream and its consumers. `consumers`: by output topic, what they are beside that."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}, "on_corrupt": on_corrupt}],
        [{"stream": "S", "durable_name": out, "deliver_subject": out, **more} for out, more in consumers.items()],
    )


def damage(world: World, at: int, place: int, value: bytes) -> None:
    """Let bytes of the batch that holds an offset of partition 0 be others than its producer sent."""
    log = world.cluster.topics["source"].partitions[0].log
    found = log.find(at)
    assert found is not None
    batch = log.segments[found[0]].batches[found[1]]
    batch.data = batch.data[:place] + value + batch.data[place + len(value) :]


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("delta", [1, 3, 1_000, 2**31 - 1, -1])
@pytest.mark.parametrize("after", [0, 4])
def test_a_batch_whose_length_in_offsets_is_damaged_is_skipped_alone(partitions: int, delta: int, after: int) -> None:
    """Nothing else of it says where the next one begins, which may not be there yet."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", partitions)
        before = ["a0", "a1"]
        await write(world, "source", [*before, "bad"])
        damage(world, 2, DELTA_AT, delta.to_bytes(4, "big", signed=True))
        behind = [f"b{number}" for number in range(after)]
        await write(world, "source", behind)
        worker = Worker(world, "w", configure(world, "skip", {"out": PLAIN}))
        worker.start()
        await await_values(world, "out", [*before, *behind])
        later = [f"c{number}" for number in range(5)]
        await write(world, "source", later)
        await await_values(world, "out", [*before, *behind, *later])
        assert read_values(world, "out") == [*before, *behind, *later]
        sequences = read_sequences(world, "out")
        assert sequences == sorted(set(sequences))
        assert sequences[-1] < 100
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 3, 1_000, -1])
@pytest.mark.parametrize("after", [0, 4])
def test_a_batch_whose_count_is_damaged_is_skipped_alone(partitions: int, count: int, after: int) -> None:
    """The count says less than the range of offsets, as after compaction, and the broker sends the batch once more."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", partitions)
        await write(world, "source", ["a0", "a1"])
        await write_together(world, "source", ["bad"] * 5)
        damage(world, 4, COUNT_AT, count.to_bytes(4, "big", signed=True))
        behind = [f"b{number}" for number in range(after)]
        await write(world, "source", behind)
        worker = Worker(world, "w", configure(world, "skip", {"out": PLAIN}))
        worker.start()
        await await_values(world, "out", ["a0", "a1", *behind])
        later = [f"c{number}" for number in range(5)]
        await write(world, "source", later)
        await await_values(world, "out", later)
        assert read_values(world, "out") == ["a0", "a1", *behind, *later]
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("loses", [False, True])
def test_other_partitions_go_on_beside_one_that_is_stopped(restarts: bool, loses: bool) -> None:
    """And the partition goes on once the batch is out of the way: each record once. `loses`: the ledger has lost the runs."""
    stop_and_go_on(restarts=restarts, loses=loses)


def damage_as_it_comes(world: World, at: int) -> None:
    """Let the batch with this offset of partition 0 be damaged from the moment that it is in the log."""

    def handle(answer: Answer, own: Callable[[Answer], None]) -> None:
        own(answer)
        if world.cluster.topics["source"].partitions[0].log.end > at:
            damage(world, at, RECORDS_AT, b"\xff\xff")

    intercept(world, PRODUCE, handle)


@pytest.mark.parametrize("comes", ["before the service", "while it runs"])
@pytest.mark.parametrize("goes", ["deleted", "deleted and noticed", "skipped"])
@pytest.mark.parametrize("restarts", [False, True])
def test_consumers_with_acks_wait_at_a_batch_that_stops_a_partition(comes: str, goes: str, restarts: bool) -> None:
    """They are given everything in the order of sequences once it is gone. Consumers without acks go on meanwhile."""
    warm_up()
    world = World(1)
    consumers = {"out": PLAIN, "acked": ACKED}

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        worker = Worker(world, "w", configure(world, "stop", consumers))
        damage_as_it_comes(world, 2)
        if comes == "while it runs":
            worker.start()
        await write(world, "source", ["a0", "a1"])
        if comes == "while it runs":
            await await_values(world, "acked", ["a0", "a1"])
        await write(world, "source", ["bad", "b0", "b1"])
        await write(world, "source", ["c0", "c1"], partition=1)
        if comes == "before the service":
            worker.start()
        await await_values(world, "out", ["a0", "a1", "c0", "c1"])
        if restarts:
            worker.kill()
            worker.start()
        await write(world, "source", ["c2", "c3"], partition=1)
        await await_values(world, "out", ["c2", "c3"])
        await asyncio.sleep(30)
        assert read_values(world, "out") == ["a0", "a1", "c0", "c1", "c2", "c3"]
        assert read_values(world, "acked") == ["a0", "a1"]
        if goes != "skipped":
            with world.at_cluster("an operator deletes the batch") as cluster:
                cluster.delete_before("source", 0, 3)
        if goes == "skipped":
            worker.reload(configure(world, "skip", consumers))
        elif goes == "deleted":
            worker.kill()
            worker.start()
        every = ["a0", "a1", "b0", "b1", "c0", "c1", "c2", "c3"]
        await await_values(world, "acked", every)
        await await_values(world, "out", every)
        await asyncio.sleep(30)
        assert read_values(world, "acked") == every
        assert sorted(read_values(world, "out")) == every
        sequences = read_sequences(world, "acked")
        assert sequences == sorted(set(sequences))
        await worker.stop()

    world.run(history)


def stop_and_go_on(*, restarts: bool, loses: bool) -> None:
    """Have a batch stop one of two partitions, records come to the other one, and an operator delete the batch."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        await write(world, "source", ["a0", "a1", "bad"])
        damage(world, 2, RECORDS_AT, b"\xff\xff")
        await write(world, "source", ["b0", "b1"])
        await write(world, "source", ["c0", "c1"], partition=1)
        worker = Worker(world, "w", configure(world, "stop", {"out": PLAIN}))
        worker.start()
        first = ["a0", "a1", "c0", "c1"]
        await await_values(world, "out", first)
        if restarts:
            end = world.cluster.topics["overlay.S.index"].partitions[0].log.end
            worker.kill()
            await asyncio.sleep(20)
            worker.start()
            await asyncio.sleep(20)
            if loses:
                with world.at_cluster("the ledger loses its runs") as cluster:
                    cluster.delete_before("overlay.S.index", 0, end)
                worker.kill()
                worker.start()
        await write(world, "source", ["c2", "c3"], partition=1)
        await await_values(world, "out", [*first, "c2", "c3"])
        assert sorted(read_values(world, "out")) == sorted([*first, "c2", "c3"])
        with world.at_cluster("an operator deletes the batch") as cluster:
            cluster.delete_before("source", 0, 3)
        worker.kill()
        worker.start()
        await write(world, "source", ["b2"])
        every = [*first, "b0", "b1", "b2", "c2", "c3"]
        await await_values(world, "out", every)
        await asyncio.sleep(30)
        assert sorted(read_values(world, "out")) == sorted(every)
        await worker.stop()

    world.run(history)
