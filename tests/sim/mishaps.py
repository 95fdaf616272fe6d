"""The timetable of a history at work: what is killed, frozen, restarted, moved and parted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from .applications import Reader, Run
from .host import STOP_S, Worker
from .network import WORLD
from .plan import Kind, Mishap
from .process import Process, State

DECISIVE = {
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "FetchRequest",
    "AddPartitionsToTxnRequest",
    "EndTxnRequest",
    "HeartbeatRequest",
    "JoinGroupRequest",
    "SyncGroupRequest",
    "_Request",  # the product's own ProduceRequest
}
"""Requests of takeovers, transactions and the group: what changes hands while they are under way is worth a look."""
JUMP_S, BOUND_JUMP_S = 3_600.0, 60.0
"""By how much a worker's clock may jump, and where clocks count: deadlines and pauses wait for the clock that set them."""
ASLEEP_S = 60.0
"""For how long the start of the workers that were stopped waits for one that is frozen meanwhile, perhaps for hours."""


class Mishaps:
    """What goes wrong with these workers and readers."""

    def __init__(
        self,
        run: Run,
        workers: Sequence[Worker],
        readers: Sequence[Reader],
        changes: Mapping[Kind, Callable[[random.Random], Awaitable[None]]],
    ) -> None:
        """`changes`: how mishaps of further kinds are carried out."""
        self._run, self._world = run, run.world
        self._workers, self._readers = workers, readers
        self._trapped: set[asyncio.Task[None]] = set()
        self._acts: Mapping[Kind, Callable[[random.Random], Awaitable[None]]] = {
            Kind.KILL: self._kill,
            Kind.FREEZE: self._freeze,
            Kind.STOP: self._stop,
            Kind.RESTART: self._restart,
            Kind.LAPSE: self._lapse,
            Kind.MOVE: self._move,
            Kind.PART: self._part,
            Kind.JUMP: self._jump,
            Kind.LEAVE: self._leave,
            Kind.STALL: self._stall,
            Kind.SLEEP: self._sleep,
            **changes,
        }

    async def run(self) -> None:
        """Let everything of the timetable happen; return when all that went wrong is over."""
        await asyncio.gather(*(self._let(mishap) for mishap in self._run.plan.mishaps))

    async def _let(self, mishap: Mishap) -> None:
        await asyncio.sleep(mishap.at)
        await self._acts[mishap.kind](random.Random(mishap.seed))

    async def end_traps(self) -> None:
        """Wait until no worker is in a trap."""
        while self._trapped:
            await asyncio.wait(self._trapped)

    def trap(self, name: str, kind: str) -> None:
        """Now and then, catch a worker while it waits for an answer that matters. The network calls this."""
        chance = self._world.loop.chance
        if kind not in DECISIVE or chance.random() >= self._run.plan.traps:
            return
        worker = next((each for each in self._workers if each.name == name), None)
        if worker is not None and worker.process.state is State.RUNNING:
            self._world.tell(f"{name} is caught at {kind}")
            is_killed = chance.random() < 0.5
            trapped = self._bring_back(worker, chance) if is_killed else self._hold(worker.process, chance)
            self._trapped.add(task := self._world.loop.create_task(trapped, context=WORLD))
            task.add_done_callback(self._trapped.discard)

    async def _kill(self, chance: random.Random) -> None:
        await self._bring_back(chance.choice(self._workers), chance)

    async def _leave(self, chance: random.Random) -> None:
        await self._bring_back(chance.choice(self._readers), chance)

    async def _bring_back(self, victim: Worker | Reader, chance: random.Random) -> None:
        """Kill a process and start it again."""
        if not _is_dead(victim.process):
            self._world.kill(victim.name)
            await asyncio.sleep(10 * chance.random())
            if _is_dead(victim.process):
                victim.start()

    async def _stop(self, chance: random.Random) -> None:
        """Have one worker or all of them end as SIGTERM does, perhaps while Kafka is away, and start them again."""
        world = self._world
        workers = self._workers if chance.random() < 0.3 else [chance.choice(self._workers)]
        brokers = world.cluster.brokers if chance.random() < 0.5 else ()
        parted = {(worker.name, broker) for worker in workers for broker in brokers}
        world.faults.parted |= parted
        await asyncio.sleep(20 * chance.random() if parted else 0)
        await asyncio.gather(*(self._stop_worker(worker, 2 * chance.random()) for worker in workers))
        world.faults.parted -= parted
        await asyncio.sleep(5 * chance.random())
        if chance.random() < 0.5:
            with world.at_cluster("groups without members are forgotten") as cluster:
                cluster.groups.forget_empty()
        for worker in workers:
            if _is_dead(worker.process):
                worker.check_end()
                worker.start()

    async def _stop_worker(self, worker: Worker, after_s: float) -> None:
        await asyncio.sleep(after_s)
        # it may be started again, as another process, before we look
        process, left, patience = worker.process, STOP_S, ASLEEP_S
        if _is_dead(process):
            return
        worker.ask_to_stop()
        while left > 0 and patience > 0 and not _is_dead(process):
            await asyncio.sleep(1.0)
            if process.state is State.FROZEN:
                patience -= 1.0
            else:
                left -= 1.0
        assert left > 0, f"{worker.name} has not stopped within {STOP_S:g} s"

    async def _freeze(self, chance: random.Random) -> None:
        await self._hold(chance.choice(self._workers).process, chance)

    async def _sleep(self, chance: random.Random) -> None:
        await self._hold(chance.choice(self._workers).process, chance, chance.choice((300.0, 3_600.0, 7_200.0)))

    async def _stall(self, chance: random.Random) -> None:
        await self._hold(chance.choice(self._readers).process, chance)

    async def _hold(self, process: Process, chance: random.Random, most_s: float | None = None) -> None:
        """Freeze a process for a part of a time, which is drawn if it is not given."""
        if process.state is not State.RUNNING:
            return
        self._world.freeze(process.name)
        await asyncio.sleep((most_s or chance.choice((0.5, 5.0, 30.0))) * chance.random())
        self._world.tell(f"{process.name} thaws")
        self._world.loop.thaw(process)

    async def _restart(self, chance: random.Random) -> None:
        broker = chance.choice(self._world.cluster.brokers)
        if broker not in self._world.cluster.up:
            return
        with self._world.at_cluster(f"broker {broker} stops") as cluster:
            cluster.stop(broker)
        await _wait_for_broker(chance)
        with self._world.at_cluster(f"broker {broker} starts") as cluster:
            cluster.start(broker)

    async def _lapse(self, chance: random.Random) -> None:
        """Let a broker that runs lead nothing for a while."""
        broker = chance.choice(self._world.cluster.brokers)
        if not {broker} <= self._world.cluster.up & self._world.cluster.alive:
            return
        with self._world.at_cluster(f"the controller misses the heartbeats of broker {broker}") as cluster:
            cluster.lapse(broker)
        await _wait_for_broker(chance)
        with self._world.at_cluster(f"the controller hears broker {broker} again") as cluster:
            cluster.rejoin(broker)

    async def _move(self, chance: random.Random) -> None:
        names = sorted(self._world.cluster.topics)
        topic = self._world.cluster.topics[chance.choice(names)]
        partition = chance.choice(topic.partitions)
        running = self._world.cluster.up & self._world.cluster.alive
        heirs = [node for node in partition.isr if node != partition.leader and node in running]
        if heirs:
            heir = chance.choice(heirs)
            with self._world.at_cluster(f"{topic.name}-{partition.index} is led by {heir}") as cluster:
                cluster.move_leader(topic.name, partition.index, heir)

    async def _part(self, chance: random.Random) -> None:
        """Let nothing arrive between a worker and one broker, or all of them."""
        worker, brokers = chance.choice(self._workers), self._world.cluster.brokers
        chosen = {(worker.name, broker) for broker in brokers if len(brokers) == 1 or chance.random() < 0.6}
        self._world.tell(f"nothing arrives between {sorted(chosen)}")
        self._world.faults.parted |= chosen
        await asyncio.sleep(chance.choice((1.0, 8.0, 30.0)) * chance.random())
        self._world.tell(f"the network is whole again for {sorted(chosen)}")
        self._world.faults.parted -= chosen

    async def _jump(self, chance: random.Random) -> None:
        """Set a worker's wall clock."""
        worker = chance.choice(self._workers)
        most = BOUND_JUMP_S if self._readers or self._run.plan.has_requests else JUMP_S
        offset_s = min(most, chance.choice((1.0, 60.0, 3_600.0))) * (2 * chance.random() - 1)
        worker.offset_s = worker.process.offset_s = offset_s
        self._world.tell(f"the clock of {worker.name} is {worker.offset_s:.3f} s ahead")


async def _wait_for_broker(chance: random.Random) -> None:
    """Wait as long as a broker is away."""
    await asyncio.sleep(chance.choice((0.5, 5.0, 20.0)) * chance.random())


def _is_dead(process: Process) -> bool:
    return process.state is State.DEAD
