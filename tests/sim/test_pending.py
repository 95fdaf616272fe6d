"""What a consumer is said to have ahead of it while its shard starts: never less than there is, as if that were all."""

from __future__ import annotations

import asyncio

import pytest

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .world import World
from .writing import write_under_one_key

COUNT = 50


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_lies_ahead_is_unknown_until_a_shard_has_read(partitions: int) -> None:
    """Nothing is pulled, so all records are ahead of the consumer all the time."""
    warm_up()
    world = World(1, brokers=1)
    answers = 60

    async def history(world: World) -> list[tuple[int | None, str | None]]:
        world.cluster.create_topic("source", partitions)
        for partition in range(partitions):
            await write_under_one_key(world, "source", map(str, range(COUNT)), partition=partition)
        loaded = read_config(
            {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
            [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}}],
            [{"stream": "S", "durable_name": "c", "ack_policy": "explicit"}],
        )
        worker = Worker(world, "w", loaded)
        found = []
        worker.start()
        await asyncio.sleep(10)
        for start in range(2):
            for number in range(answers):
                await ask(world, f"{start}-{number}", "consumer.info", "S", consumer="c")
                if number == 0:
                    worker.kill()
                    worker.start()
            for number in range(answers):
                answer = await await_answer(world, f"{start}-{number}")
                found.append((answer.get("num_pending"), answer["overlay"].get("num_pending_is")))
        await worker.stop()
        return found

    found = world.run(history)
    every = COUNT * partitions
    assert set(found) <= {(None, None), (every, "exact"), *((few, "at least") for few in range(1, every + 1))}
    assert found[-1] == (every, "exact")
