"""A control topic that loses its end in an unclean election: what it says then counts, also for a worker that slept. Only the
state tells then that a file says another ack policy than the consumer is delivered with."""

from __future__ import annotations

import asyncio

import pytest

from overlay.config import Loaded

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records, until
from .test_deleted import CONFIG, CONTROL, is_known, start
from .world import World
from .writing import write_under_one_key


@pytest.mark.parametrize("more", [0, 3, 10])
def test_a_lost_definition_does_not_count_for_a_worker_that_slept(more: int) -> None:
    """`more`: requests that come in the place of the lost records, so that the topic grows past the place where the worker has
    read to, or does not. The worker's fetch was answered before they came."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")
        before = world.cluster.topics[CONTROL].partitions[0].log.end
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c1")
        await until(lambda: is_known([worker]), "the consumer is served")
        await asyncio.sleep(5)
        worker.freeze()
        log = world.cluster.topics[CONTROL].partitions[0].log
        with world.at_cluster("an unclean election loses the definition") as cluster:
            cluster.move_leader(CONTROL, 0, 0, unclean=True, lose=log.end - before)
        assert not [one for one in read_topic(world.cluster, CONTROL) if one.key == b"consumer S c"]
        await asyncio.sleep(5)
        for number in range(more):
            await ask(world, f"i{number}", "consumer.list", "S")
        worker.thaw()
        await until(lambda: not is_known([worker]), "the consumer is not served any more")
        await ask(world, "c2", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c2")
        assert is_known([worker])
        await worker.stop()

    world.run(history)


def configure(world: World, policy: str) -> Loaded:
    waits = {} if policy == "none" else {"ack_wait": "10s", "interest": "always"}
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": policy, **waits}],
    )


def read_state(worker: Worker) -> str:
    """Return what the worker says of the consumer's state."""
    shard_manager = worker.service.shard_manager
    return str(shard_manager.report_consumer(("S", "c")).get("state")) if shard_manager is not None else ""


@pytest.mark.parametrize("is_started_again", [False, True])
@pytest.mark.parametrize(("policy", "other"), [("explicit", "none"), ("explicit", "all"), ("none", "explicit")])
def test_another_ack_policy_is_not_taken_up_after_a_loss(policy: str, other: str, is_started_again: bool) -> None:
    """What waits for an ack would count as done, or the other way round."""
    warm_up()
    world = World(1, brokers=1, tells=True)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, policy))
        worker.start()
        await asyncio.sleep(10)
        await write_under_one_key(world, "source", ["0", "1", "2"])
        await await_records(world, "out", 3)
        worker.reload(configure(world, other))
        await until(lambda: any("It runs as it was" in line for line in world.story), "the file is refused")
        with world.at_cluster("an unclean election loses all definitions") as cluster:
            cluster.move_leader(CONTROL, 0, 0, unclean=True, lose=cluster.topics[CONTROL].partitions[0].log.end)
        await until(lambda: read_state(worker) == "stalled", "the consumer is left out")
        if is_started_again:
            worker.kill()
            worker.start()
            await until(lambda: read_state(worker) == "stalled", "the consumer is left out again")
        await write_under_one_key(world, "source", ["3"])
        await asyncio.sleep(120)
        delivered = {one.value for one in read_topic(world.cluster, "out")}
        assert delivered == {b"0", b"1", b"2"}
        worker.reload(configure(world, policy))
        await until(lambda: read_state(worker) == "running", "the consumer goes on")
        await asyncio.sleep(60)
        found = [one.value for one in read_topic(world.cluster, "out")]
        again = {value for value in found if found.count(value) > 1}
        assert again == ({b"0", b"1", b"2", b"3"} if policy == "explicit" else set())
        assert b"3" in found
        await worker.stop()

    world.run(history)
