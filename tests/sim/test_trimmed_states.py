"""A shard's state whose log is trimmed while a worker reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlay.config import Loaded
from overlay.state.shard_state import ShardState
from overlay.state.takeover import read_state

from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .scenes import await_values, intercept
from .world import World
from .writing import write_under_one_key

FETCH = 1
"""The API key of fetch requests."""
STATE = "overlay.state"
TRIMS = 3


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


def test_a_state_that_is_trimmed_while_it_is_read_is_read_again_at_once() -> None:
    """A former owner trims it three times in a row, each time when the next one has asked where the log begins."""
    warm_up()
    takeovers: list[int] = []
    trims: list[int] = []

    async def count(*arguments: Any) -> tuple[ShardState, int]:
        takeovers.append(1)
        return await read_state(*arguments)

    world = World(1, brokers=1, limits={"overlay.state.takeover.read_state": count})

    def trim(answer: Answer, handle: Callable[[Answer], None]) -> None:
        log = world.cluster.topics[STATE].partitions[0].log
        if len(trims) < TRIMS and any(topic == STATE for topic, _ in answer.request.topics):
            trims.append(log.start)
            world.cluster.delete_before(STATE, 0, log.start + 1)
        handle(answer)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        for number in range(5):
            await write_under_one_key(world, "source", [str(number)])
            await await_values(world, "out", [str(number)])
        worker.kill()
        takeovers.clear()
        intercept(world, FETCH, trim)
        worker.start()
        await write_under_one_key(world, "source", ["last"])
        await await_values(world, "out", ["last"])
        assert len(trims) == TRIMS
        assert len(takeovers) == 1
        await worker.stop()

    world.run(history)
