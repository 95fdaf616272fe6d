"""A control topic whose end no reader reaches: a transaction has lost its marker, or nothing is left below the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from overlay.control.serve import HELD_S

from .asking import ask, await_answer
from .host import warm_up
from .kafka.session import Answer
from .kafka.settings import Settings
from .reading import read_topic
from .scenes import intercept, until
from .test_deleted import CONFIG, CONTROL, is_known, start
from .world import World

END = 26
"""The API key of EndTxn."""
CONTROL_ID = "overlay.control."
"""How the transactional ids of journals begin."""


class MarkerThief:
    """Has the control topic lose the marker of the next transaction that a journal ends, if `is_armed`."""

    def __init__(self, world: World) -> None:
        self.is_armed = False
        self._world = world
        intercept(world, END, self._end)

    def _end(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        is_struck = self.is_armed and answer.request.transactional_id.startswith(CONTROL_ID)
        if is_struck:
            self.is_armed = False
            self._world.cluster.remove_leader(CONTROL, 0)
        handle(answer)

    async def steal(self, work: Any) -> None:
        """Run `work`, which has the service write to the control topic, and let the topic have a leader again afterwards."""
        self.is_armed = True
        await work
        await until(lambda: not self.is_armed, "a journal has ended a transaction")
        await asyncio.sleep(1)
        with self._world.at_cluster("the control topic has a leader again") as cluster:
            cluster.restore_leader(CONTROL, 0)
        assert self._world.cluster.topics[CONTROL].partitions[0].log.producers.open


@pytest.mark.parametrize("is_killed", [True, False])
def test_requests_behind_a_lost_marker_are_answered(is_killed: bool) -> None:
    """No worker sees them, and the one that wrote the transaction waits to read it back. `is_killed`: whether it is killed,
    and started again."""
    warm_up()
    world = World(1, brokers=1, settings=Settings(loses_markers_of=CONTROL_ID))

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")
        await MarkerThief(world).steal(ask(world, "i1", "consumer.list", "S"))
        if is_killed:
            worker.kill()
            worker.start()
        await asyncio.sleep(HELD_S + 5)
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c1")
        assert is_known([worker])
        await worker.stop()

    world.run(history)


def test_a_worker_starts_although_nothing_is_left_below_the_end_of_the_control_topic() -> None:
    """All requests are answered, and compaction has taken the first answers. The last one is lost, and the end is where it
    began."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        (worker,) = await start(world, "w")
        worker.freeze()
        for number in range(3):
            await ask(world, f"i{number}", "consumer.list", "S")
        worker.thaw()
        for number in range(3):
            await await_answer(world, f"i{number}")
        log = world.cluster.topics[CONTROL].partitions[0].log
        await until(lambda: not log.producers.open, "the last answer has its marker")
        worker.kill()
        last = read_topic(world.cluster, CONTROL)[-1].offset
        world.cluster.configure(CONTROL, {"delete.retention.ms": "1"})
        for _ in range(6):  # a marker goes once its records are gone and its horizon, which it gets then, is past
            with world.at_cluster("the control topic is compacted") as cluster:
                cluster.compact(CONTROL, 0)
            await asyncio.sleep(1)
        with world.at_cluster("the control topic loses its end") as cluster:
            cluster.move_leader(CONTROL, 0, 0, unclean=True, lose=log.end - last)
        assert log.end == last
        assert max(batch.last for segment in log.segments for batch in segment.batches) < last - 1
        worker.start()
        await ask(world, "c1", "consumer.create", "S", config=CONFIG)
        assert "error" not in await await_answer(world, "c1", 120.0)
        await worker.stop()

    world.run(history)
