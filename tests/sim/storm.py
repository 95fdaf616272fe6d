"""A history of workers under faults, all drawn from one seed, and whether every promise was kept.

Producers write to a source topic with and without transactions, some of which abort; readers ack what consumers with acks
deliver. Meanwhile the mishaps of the plan happen. Then the faults stop, and everything has to be delivered and settled within
`CALM_S`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from overlay.config import Loaded

from .applications import Reader, Run, produce
from .asking import inquire
from .faults import Faults
from .host import Worker, read_config, warm_up
from .judge import Judge
from .limits import read_limits
from .mishaps import Mishaps
from .orders import Operator
from .plan import ACKS, REPLIES, SOURCE, STORM_S, STREAM, Consumer, Plan
from .process import State
from .world import World

CALM_S = 180.0
STAMPED = {"message.timestamp.type": "LogAppendTime"}


class Storm:
    """One history. `run` raises AssertionError or TimeoutError if a promise was broken."""

    def __init__(self, seed: int, *, plan: Plan | None = None, tells: bool = False) -> None:
        """`plan`: other than what the seed stands for."""
        self.plan = plan if plan is not None else Plan.draw(seed)
        limits = read_limits(self.plan.limits)
        self.world = World(seed, brokers=self.plan.brokers, settings=self.plan.settings, limits=limits, tells=tells)
        self.world.tell(f"{self.plan}")
        self._run = Run(self.world, self.plan)
        self._operator = Operator(self._run)
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Run the history and judge it."""
        warm_up()
        self.world.run(lambda _: self._live())

    async def _live(self) -> None:
        world, plan, run = self.world, self.plan, self._run
        world.cluster.create_topic(SOURCE, plan.partitions)
        # the judge goes by the cluster's clock
        world.cluster.create_topic(ACKS, plan.ack_partitions, STAMPED)
        world.cluster.create_topic(REPLIES, 1, STAMPED)
        for consumer in plan.consumers:
            if consumer.is_pulled:
                world.cluster.create_topic(consumer.output, 1, STAMPED)
        loaded = self._configure()
        workers = self._workers = [Worker(world, f"w{number}", loaded) for number in range(plan.workers)]
        readers = [Reader(run, consumer, number) for consumer in plan.consumers for number in range(consumer.readers)]
        for worker in workers:
            worker.start()
        for reader in readers:
            reader.start()
        world.start("app", produce(run, is_transactional=False))
        world.start("bank", produce(run, is_transactional=True))
        mishaps = Mishaps(run, workers, readers)
        await asyncio.sleep(plan.begins_s)
        _take_over(world.faults, plan.faults)
        world.network.watch = mishaps.trap
        happening = asyncio.create_task(mishaps.run())
        working = asyncio.create_task(self._operator.work())
        await asyncio.sleep(STORM_S)
        run.is_calm = True
        _take_over(world.faults, Faults())
        world.network.watch = None
        await happening
        await mishaps.end_traps()
        world.tell("the storm is over")
        for worker in workers:
            worker.check_end()
            if worker.process.state is State.DEAD:
                worker.start()
        await self._await_calm(working)
        for worker in workers:
            await worker.stop()
            worker.check_end()
        judge = Judge(run)
        judge.judge()
        self._operator.judge(judge.find_all())
        faults = [fault for fault in world.loop.faults if not _is_of_reader(fault)]
        assert not faults, faults

    def _configure(self) -> Loaded:
        return read_config(
            {
                "kafka": {"bootstrap.servers": self.world.bootstrap},
                "shards": self.plan.shards,
                "topics": {"replication": self.plan.brokers},
            },
            [{"name": STREAM, "topics": [SOURCE], "subject": {"template": "s.{key}"}, "index": dict(self.plan.index)}],
            [consumer.config for consumer in self.plan.consumers],
        )

    async def _await_calm(self, working: asyncio.Task[None]) -> None:
        """Wait until everything is delivered and settled. Raises AssertionError if that takes longer than CALM_S."""
        left = ["nothing was looked at"]
        try:
            async with asyncio.timeout(CALM_S):
                left = ["the operator's requests"]
                await working
                while left := await self._find_left():  # noqa: ASYNC110
                    await asyncio.sleep(1.0)
        except TimeoutError:
            raise AssertionError(f"{CALM_S:g} s after the storm there is something left: {'; '.join(left)}") from None
        await asyncio.sleep(5)

    async def _find_left(self) -> list[str]:
        """Return what the service still has to do."""
        if self._run.writing:
            return [f"{self._run.writing} producers have not ended"]
        judge = Judge(self._run)
        missing = {consumer.name: len(judge.find_missing(consumer)) for consumer in self.plan.consumers}
        if any(missing.values()):
            return [f"{name}: {count} records not delivered" for name, count in missing.items() if count]
        return [
            left for consumer in self.plan.consumers if consumer.acks and (left := await self._find_pending(consumer))
        ]

    async def _find_pending(self, consumer: Consumer) -> str:
        answer = await inquire(self._run, "consumer.info", stream=STREAM, consumer=consumer.name)
        if answer is None or "error" in answer:
            return f"{consumer.name}: no information: {answer}"
        if (state := answer["overlay"]["state"]) != "running":
            return f"{consumer.name}: {state}"
        pending, later = answer["num_ack_pending"], answer["overlay"].get("num_delayed", 0)
        return f"{consumer.name}: {pending} pending, {later} delayed" if pending or later else ""


def _is_of_reader(fault: dict[str, Any]) -> bool:
    """Return whether it is an error of an offset commit that a reader has given up waiting for; workers commit no offsets."""
    coroutine = getattr(fault.get("future"), "get_coro", lambda: None)()
    return getattr(coroutine, "__qualname__", "") == "GroupCoordinator._do_commit_offsets"


def _take_over(faults: Faults, other: Faults) -> None:
    for name in ("cut_before", "cut_after", "stalled", "slow", "slow_s", "latency_s"):
        setattr(faults, name, getattr(other, name))
