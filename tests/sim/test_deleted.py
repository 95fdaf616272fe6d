"""A consumer whose deletion was confirmed is gone, on every worker that serves its shard afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from overlay.config import Loaded
from tests.oracle.push import parse_token

from .asking import ask, await_answer, find_answers
from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records, until
from .world import World
from .writing import write_under_one_key

COUNT = 5
CONTROL = "overlay.control"
CONFIG = {"durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [],
    )


async def start(world: World, *names: str) -> list[Worker]:
    """Begin a history with records in the source."""
    world.cluster.create_topic("source")
    loaded = configure(world)
    workers = [Worker(world, name, loaded) for name in names]
    for worker in workers:
        worker.start()
    await asyncio.sleep(10)
    await write_under_one_key(world, "source", map(str, range(COUNT)))
    return workers


def is_known(workers: Iterable[Worker]) -> bool:
    """Return whether a running worker would serve the consumer."""
    shard_managers = [worker.service.shard_manager for worker in workers]
    return any(
        shard_manager is not None and ("S", "c") in shard_manager.loaded.consumers for shard_manager in shard_managers
    )


def test_a_machine_that_a_checkpoint_forgets_does_not_come_back() -> None:
    """The running session forgets it, in a checkpoint. The one that is made again under its name begins anew, in a session
    that has read what the checkpoint says."""
    warm_up()
    world = World(4, brokers=1, limits={"overlay.worker.commit.commits.CHECKPOINT_EVERY": 1})

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")

        async def create(id: str, name: str) -> None:
            config = {"durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "explicit"}
            await ask(world, id, "consumer.create", "S", config={**config, "interest": "always"})
            assert "error" not in await await_answer(world, id)

        await create("c1", "stays")
        await create("c2", "goes")
        await await_records(world, "out-goes", COUNT)
        await ask(world, "d", "consumer.delete", "S", consumer="goes")
        assert (await await_answer(world, "d"))["success"]
        worker.kill()
        worker.start()
        await create("c3", "goes")
        found = await await_records(world, "out-goes", 2 * COUNT)
        sequences = [parse_token(each.header("Nats-Reply-To") or b"").consumer_sequence for each in found]
        assert sequences[COUNT : 2 * COUNT] == [*range(1, COUNT + 1)]
        await worker.stop()

    world.run(history)


def test_a_create_that_is_not_answered_yet_does_not_undo_a_delete() -> None:
    """The create waits for the consumer to be served, which never happens: the delete comes at once behind it."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        await ask(world, "d1", "consumer.delete", "S", consumer="c")
        assert (await await_answer(world, "d1"))["success"]
        worker.kill()
        worker.start()
        await asyncio.sleep(30)
        assert not is_known([worker])
        assert not read_topic(world.cluster, "out")
        (answer,) = find_answers(world, "c1")
        assert answer["error"]["err_code"] == 10014
        await ask(world, "c2", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c2"), "a later create counts"
        await worker.stop()

    world.run(history)


def test_a_worker_that_slept_while_a_deletion_was_compacted_away_forgets_the_consumer() -> None:
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        workers = sleeper, other = await start(world, "sleeper", "other")
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c1")
        await await_records(world, "out", COUNT)
        await until(lambda: all(is_known([worker]) for worker in workers), "all workers know of it")
        sleeper.freeze()
        await ask(world, "d1", "consumer.delete", "S", consumer="c")
        assert (await await_answer(world, "d1", 120))["success"]
        world.cluster.configure(CONTROL, {"delete.retention.ms": "1000"})
        for _ in range(3):
            with world.at_cluster("the control topic is cleaned") as cluster:
                cluster.compact(CONTROL, 0)
            await asyncio.sleep(5)
        keys = [one.key for one in read_topic(world.cluster, CONTROL)]
        assert b"consumer S c" not in keys, "the tombstone has gone"
        other.kill()
        sleeper.thaw()
        await asyncio.sleep(60)
        assert not is_known([sleeper])
        assert len(read_topic(world.cluster, "out")) == COUNT
        await sleeper.stop()

    world.run(history)


def test_a_worker_that_slept_while_it_read_the_control_topic_reads_it_again() -> None:
    """What it has read may be from before a deletion, and what it reads next from after the tombstone's end."""
    warm_up()
    # shorter than the sleep, and longer than a fetch may wait for what is not there
    world = World(3, brokers=1, limits={"overlay.control.tail.WHOLE_MS": 15_000})

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await asyncio.sleep(10)
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        await await_answer(world, "c1")
        await worker.stop()

        caught: list[str] = []

        def sleep_while_reading(name: str, kind: str) -> None:
            request_server = worker.service._request_server if kind == "FetchRequest" else None
            if name == "w" and request_server is not None and request_server._tail.is_behind:
                caught.append(kind)
                world.network.watch = None
                worker.freeze()

        world.network.watch = sleep_while_reading
        worker.start()
        await asyncio.sleep(20)
        assert caught
        worker.thaw()
        await asyncio.sleep(20)
        assert worker.service._request_server is not None
        assert worker.service._request_server._tail.beginnings == 1
        assert is_known([worker])
        await worker.stop()

    world.run(history)
