"""A history of workers under faults, all drawn from one seed, and whether every promise was kept.

Producers write to a source topic with and without transactions, some of which abort; readers ack what consumers with acks
deliver. Meanwhile the mishaps of the plan happen. Then the faults stop, and everything has to be delivered and settled within
`MOST_S`, with some progress in each `CALM_S`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .applications import Reader, Run, produce
from .asking import inquire
from .faults import Faults
from .files import Files
from .host import Worker, warm_up
from .judge import Judge
from .limits import read_limits
from .log_losses import LogLosses
from .lost_markers import LostMarkers
from .mishaps import Mishaps
from .operator_changes import OperatorChanges
from .orders import Operator
from .plan import ACKS, KEYS, REPLIES, SOURCE, STREAM, Consumer, Plan
from .process import State
from .topic_changes import TopicChanges
from .world import World
from .writing import New, send

CALM_S = 180.0
"""Longest time without progress after the storm. A consumer whose readers are silent or far away takes longer in all."""
MOST_S = 1_800.0
"""Longest time until all is done."""
STAMPED = {"message.timestamp.type": "LogAppendTime"}


class Storm:
    """One history. `run` raises AssertionError or TimeoutError if a promise was broken."""

    def __init__(
        self, seed: int, *, plan: Plan | None = None, tells: bool = False, tells_requests: bool = False
    ) -> None:
        """`plan`: other than what the seed stands for. The rest is as World has it."""
        self.plan = plan if plan is not None else Plan.draw(seed)
        limits = read_limits(self.plan.limits)
        self.world = World(
            seed,
            brokers=self.plan.brokers,
            settings=self.plan.settings,
            limits=limits,
            tells=tells,
            tells_requests=tells_requests,
        )
        self.world.tell(f"{self.plan}")
        files = Files({consumer.name: [consumer] for consumer in self.plan.consumers})
        self._run = Run(self.world, self.plan, files)
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
        loaded = run.files.read(world, plan)
        workers = self._workers = [Worker(world, f"w{number}", loaded) for number in range(plan.workers)]
        readers = [Reader(run, consumer, number) for consumer in plan.consumers for number in range(consumer.readers)]
        for worker in workers:
            worker.start()
        for reader in readers:
            reader.start()
        world.start("app", produce(run, is_transactional=False))
        world.start("bank", produce(run, is_transactional=True))
        operator_changes = OperatorChanges(run, workers, self._operator)
        log_losses = LogLosses(run, self._operator, operator_changes.put_back)
        lost_markers = LostMarkers(run, workers, log_losses.lose_rounds)
        changes = {**TopicChanges(run).acts, **log_losses.acts, **operator_changes.acts, **lost_markers.acts}
        tending = [asyncio.create_task(lost_markers.tend())] if plan.settings.loses_markers_of else []
        mishaps = Mishaps(run, workers, readers, changes)
        await asyncio.sleep(plan.begins_s)
        _take_over(world.faults, plan.faults)
        world.network.watch = mishaps.trap
        happening = asyncio.create_task(mishaps.run())
        working = asyncio.create_task(self._operator.work())
        await asyncio.sleep(plan.storm_s)
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
        await self._write_last()
        await self._await_calm(working)
        for task in tending:
            task.cancel()
        for worker in workers:
            await worker.stop()
            worker.check_end()
        judge = Judge(run)
        judge.judge()
        self._operator.judge(judge.list_present(), judge.list_source())
        faults = [fault for fault in world.loop.faults if not _is_of_reader(fault)]
        assert not faults, faults

    async def _write_last(self) -> None:
        """Write a record for each key to each partition: the service goes on, and by what was said last."""
        partitions = len(self.world.cluster.topics[SOURCE].partitions)
        records = [
            New(index, b"k%d" % key, b"last-%d-%d" % (index, key)) for index in range(partitions) for key in range(KEYS)
        ]
        self._run.last |= {record.value for record in records}
        await send(self.world, SOURCE, records)

    async def _await_calm(self, working: asyncio.Task[None]) -> None:
        """Wait until everything is delivered and settled. Raises AssertionError if that takes too long."""
        loop = asyncio.get_running_loop()
        began, left = loop.time(), ["the operator's requests"]
        try:
            async with asyncio.timeout(CALM_S) as limit:
                await working
                while now := await self._find_left():
                    if now != left:
                        left = now
                        limit.reschedule(min(loop.time() + CALM_S, began + MOST_S))
                    await asyncio.sleep(1.0)
        except TimeoutError:
            raise AssertionError(
                f"{loop.time() - began:g} s after the storm there is something left: {'; '.join(left)}"
            ) from None
        await asyncio.sleep(5)

    async def _find_left(self) -> list[str]:
        """Return what the service still has to do."""
        if self._run.writing:
            return [f"{self._run.writing} producers have not ended"]
        judge = Judge(self._run)
        consumers = self._run.files.consumers
        missing = {consumer.name: len(judge.find_missing(consumer)) for consumer in consumers}
        if any(missing.values()):
            return [f"{name}: {count} records not delivered" for name, count in missing.items() if count]
        if self._operator.lives:
            listed = await inquire(self._run, "consumer.list", stream=STREAM)
            if wrong := self._operator.find_left(judge.list_present(), listed):
                return wrong
        return [left for consumer in consumers if (left := await self._find_pending(consumer))]

    async def _find_pending(self, consumer: Consumer) -> str:
        """Return what a consumer still has to do: to take up the latest version of its file, or to wait for acks."""
        files = self._run.files
        if not consumer.acks and len(files.versions[consumer.name]) == 1 and consumer.name not in files.refused:
            return ""
        answer = await inquire(self._run, "consumer.info", stream=STREAM, consumer=consumer.name)
        if answer is None or "error" in answer:
            return f"{consumer.name}: no information: {answer}"
        if (state := answer["overlay"]["state"]) != "running":
            return f"{consumer.name}: {state}"
        if sorted(answer["config"].get("filter_subjects", ())) != sorted(consumer.config.get("filter_subjects", ())):
            return f"{consumer.name}: another filter"
        if answer["config"]["ack_policy"] != consumer.policy:
            return f"{consumer.name}: another ack policy"
        pending, later = answer["num_ack_pending"], answer["overlay"].get("num_delayed", 0)
        return f"{consumer.name}: {pending} pending, {later} delayed" if pending or later else ""


def _is_of_reader(fault: dict[str, Any]) -> bool:
    """Return whether it is an error of an offset commit that a reader has given up waiting for; workers commit no offsets."""
    coroutine = getattr(fault.get("future"), "get_coro", lambda: None)()
    return getattr(coroutine, "__qualname__", "") == "GroupCoordinator._do_commit_offsets"


def _take_over(faults: Faults, other: Faults) -> None:
    for name in ("cut_before", "cut_after", "stalled", "slow", "slow_s", "latency_s"):
        setattr(faults, name, getattr(other, name))
