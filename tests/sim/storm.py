"""A history of workers under faults, all drawn from one seed, and whether every record was delivered exactly once.

Producers write to a source topic with and without transactions, some of which abort. Meanwhile workers are killed and frozen,
connections break, brokers restart and leaders move. Then the faults stop, and everything has to be delivered within
`CALM_S`. The judge looks at the logs of the cluster alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from overlay.config import Loaded

from .faults import Faults
from .host import STOP_S, Worker, read_config, warm_up
from .kafka.settings import Settings
from .network import WORLD
from .process import State
from .reading import read_partition
from .tokens import check_tokens
from .world import World

CALM_S = 180.0
STORM_S = 60.0
DECISIVE = {
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "FetchRequest",
    "AddPartitionsToTxnRequest",
    "EndTxnRequest",
    "HeartbeatRequest",
    "JoinGroupRequest",
    "SyncGroupRequest",
}
"""Requests of takeovers, transactions and the group: what changes hands while they are under way is worth a look."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

    brokers: int
    partitions: int
    workers: int
    shards: int
    consumers: int
    outputs: int
    burst: int
    pause_s: float
    faults: Faults
    kills: float
    freezes: float
    restarts: float
    moves: float
    parts: float
    jumps: float
    """Faults a minute."""
    traps: float
    """How often a worker is killed or frozen while one of the requests DECISIVE is under way."""
    stops: float
    """Workers that are asked to stop, a minute."""
    settings: Settings
    checkpoint_every: int
    begins_s: float
    """When the faults begin: perhaps before the topics of the overlay are there."""

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Return the plan of a seed. About a quarter of all histories leaves out each kind of fault."""
        chance = random.Random(seed)

        def rate(most: float) -> float:
            return 0.0 if chance.random() < 0.25 else chance.random() * most

        brokers = chance.choice((1, 3))
        latency_s = chance.choice(((0.0002, 0.002), (0.001, 0.03), (0.01, 0.3)))
        return cls(
            brokers=brokers,
            partitions=chance.choice((1, 1, 2, 3)),
            workers=2,
            shards=chance.choice((1, 2, 3)),
            consumers=chance.choice((1, 2)),
            outputs=chance.choice((1, 2)),
            burst=chance.choice((1, 10, 50)),
            pause_s=chance.choice((2.0, 5.0)),
            faults=Faults(
                cut_before=rate(0.01),
                cut_after=rate(0.01),
                stalled=rate(0.003),
                slow=rate(0.01),
                slow_s=(0.1, 5.0),
                latency_s=latency_s,
            ),
            kills=rate(4),
            freezes=rate(3),
            restarts=rate(2),
            moves=rate(3) if brokers > 1 else 0.0,
            parts=rate(2),
            jumps=rate(2),
            traps=rate(0.05),
            stops=rate(2),
            settings=Settings(
                failover_s=chance.choice((0.0, 0.0, 1.0, 9.0)),
                replication_s=chance.choice((0.0, 0.0, 0.005, 0.2)),
                metadata_s=chance.choice((0.0, 0.0, 0.05, 1.0)),
                marker_s=chance.choice((0.01, 0.01, 0.2, 1.0)),
            ),
            checkpoint_every=chance.choice((3, 1_000)),
            begins_s=chance.choice((10.0, 10.0, 0.5)),
        )


class Storm:
    """One history. `run` raises AssertionError or TimeoutError if a promise was broken."""

    def __init__(self, seed: int, *, tells: bool = False) -> None:
        self.plan = Plan.draw(seed)
        limits = {"overlay.worker.commits.CHECKPOINT_EVERY": self.plan.checkpoint_every}
        self.world = World(seed, brokers=self.plan.brokers, settings=self.plan.settings, limits=limits, tells=tells)
        self.world.tell(f"{self.plan}")
        self.workers: list[Worker] = []
        self.is_calm = False
        self.writing = 0
        """Producers that have not ended."""
        self._trapped: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Run the history and judge it."""
        warm_up()
        self.world.run(lambda _: self._live())

    async def _live(self) -> None:
        world, plan = self.world, self.plan
        world.cluster.create_topic("source", plan.partitions)
        loaded = self._configure()
        self.workers = [Worker(world, f"w{number}", loaded) for number in range(plan.workers)]
        for worker in self.workers:
            worker.start()
        world.start("app", self._produce(False))
        world.start("bank", self._produce(True))
        await asyncio.sleep(plan.begins_s)
        _take_over(world.faults, plan.faults)
        world.network.watch = self._trap
        faults = [
            asyncio.create_task(self._repeat(plan.kills, self._kill)),
            asyncio.create_task(self._repeat(plan.stops, self._stop)),
            asyncio.create_task(self._repeat(plan.freezes, self._freeze)),
            asyncio.create_task(self._repeat(plan.restarts, self._restart)),
            asyncio.create_task(self._repeat(plan.moves, self._move)),
            asyncio.create_task(self._repeat(plan.parts, self._part)),
            asyncio.create_task(self._repeat(plan.jumps, self._jump)),
        ]
        await asyncio.sleep(STORM_S)
        self.is_calm = True
        _take_over(world.faults, Faults())
        world.network.watch = None
        await asyncio.gather(*faults)
        while self._trapped:
            await asyncio.wait(self._trapped)
        world.tell("the storm is over")
        for worker in self.workers:
            worker.check_end()
            if worker.process.state is State.DEAD:
                worker.start()
        await self._await_all()
        for worker in self.workers:
            await worker.stop()
            worker.check_end()
        self._judge()
        assert not world.loop.faults, world.loop.faults

    def _configure(self) -> Loaded:
        plan = self.plan
        return read_config(
            {
                "kafka": {"bootstrap.servers": self.world.bootstrap},
                "shards": plan.shards,
                "topics": {"replication": plan.brokers},
            },
            [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
            [
                {
                    "stream": "S",
                    "durable_name": f"c{number}",
                    "deliver_subject": f"out-{number}",
                    "ack_policy": "none",
                    "delivery": "exactly_once",
                    "output": {"partitions": plan.outputs},
                }
                for number in range(plan.consumers)
            ],
        )

    # who writes

    async def _produce(self, is_transactional: bool) -> None:
        plan, chance = self.plan, random.Random(self.world.loop.chance.random())
        name, count = "t" if is_transactional else "p", 0
        self.writing += 1
        while not self.is_calm:
            more = {"transactional_id": "bank"} if is_transactional else {"enable_idempotence": True}
            producer = AIOKafkaProducer(bootstrap_servers=self.world.bootstrap, **more)
            try:
                await producer.start()
                while not self.is_calm:
                    if is_transactional:
                        await producer.begin_transaction()
                    for _ in range(chance.randint(1, plan.burst)):
                        key = b"k%d" % chance.randrange(5)
                        await producer.send(
                            "source",
                            b"%s%d" % (name.encode(), count),
                            key=key,
                            partition=chance.randrange(plan.partitions),
                        )
                        count += 1
                    await producer.flush()
                    if is_transactional:
                        ends = producer.abort_transaction if chance.random() < 0.3 else producer.commit_transaction
                        await ends()
                    await asyncio.sleep(plan.pause_s * 2 * chance.random())
            except (KafkaError, OSError, AssertionError) as error:  # the last is aiokafka's: the producer was fenced
                self.world.tell(f"producer begins again: {error!r}")
            try:
                async with asyncio.timeout(20):
                    await producer.stop()
            except (KafkaError, OSError, TimeoutError) as error:
                self.world.tell(f"producer does not stop: {error!r}")
        self.writing -= 1

    # what goes wrong

    async def _repeat(self, a_minute: float, act: Callable[[random.Random], Awaitable[None]]) -> None:
        chance = random.Random(self.world.loop.chance.random())
        left = STORM_S
        while a_minute and (pause := chance.expovariate(a_minute / 60)) < left:
            await asyncio.sleep(pause)
            began = self.world.loop.now
            await act(chance)
            left -= pause + self.world.loop.now - began

    async def _kill(self, chance: random.Random) -> None:
        await self._restart_worker(chance.choice(self.workers))

    async def _stop(self, chance: random.Random) -> None:
        """Have one worker or all of them end as SIGTERM does, perhaps while Kafka is away, and start them again."""
        workers = self.workers if chance.random() < 0.3 else [chance.choice(self.workers)]
        brokers = self.world.cluster.brokers if chance.random() < 0.5 else ()
        parted = {(worker.name, broker) for worker in workers for broker in brokers}
        self.world.faults.parted |= parted
        await asyncio.sleep(20 * chance.random() if parted else 0)
        await asyncio.gather(*(self._stop_worker(worker, 2 * chance.random()) for worker in workers))
        self.world.faults.parted -= parted
        await asyncio.sleep(5 * chance.random())
        for worker in filter(_is_dead, workers):
            worker.check_end()
            worker.start()

    async def _stop_worker(self, worker: Worker, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if _is_dead(worker):
            return
        process, left = worker.process, STOP_S
        worker.ask_to_stop()
        while left > 0 and process.state is not State.DEAD:
            await asyncio.sleep(1.0)
            left -= 0.0 if process.state is State.FROZEN else 1.0
        assert left > 0, f"{worker.name} has not stopped within {STOP_S:g} s"

    def _trap(self, name: str, kind: str) -> None:
        """Now and then, catch a worker while it waits for an answer that matters."""
        chance = self.world.loop.chance
        if kind not in DECISIVE or chance.random() >= self.plan.traps:
            return
        worker = next((each for each in self.workers if each.name == name), None)
        if worker is not None and worker.process.state is State.RUNNING:
            self.world.tell(f"{name} is caught at {kind}")
            trapped = self._restart_worker(worker) if chance.random() < 0.5 else self._hold(worker, chance)
            self._trapped.add(task := self.world.loop.create_task(trapped, context=WORLD))
            task.add_done_callback(self._trapped.discard)

    async def _restart_worker(self, worker: Worker) -> None:
        if not _is_dead(worker):
            worker.kill()
            await asyncio.sleep(10 * self.world.loop.chance.random())
            if _is_dead(worker):
                worker.start()

    async def _freeze(self, chance: random.Random) -> None:
        worker = chance.choice(self.workers)
        if worker.process.state is not State.RUNNING:
            return
        await self._hold(worker, chance)

    async def _hold(self, worker: Worker, chance: random.Random) -> None:
        process = worker.process
        self.world.freeze(worker.name)
        await asyncio.sleep(chance.choice((0.5, 5.0, 30.0)) * chance.random())
        self.world.tell(f"{worker.name} thaws")
        self.world.loop.thaw(process)

    async def _restart(self, chance: random.Random) -> None:
        broker = chance.choice(self.world.cluster.brokers)
        if broker not in self.world.cluster.up:
            return
        with self.world.at_cluster(f"broker {broker} stops") as cluster:
            cluster.stop(broker)
        await asyncio.sleep(chance.choice((0.5, 5.0, 20.0)) * chance.random())
        with self.world.at_cluster(f"broker {broker} starts") as cluster:
            cluster.start(broker)

    async def _move(self, chance: random.Random) -> None:
        names = sorted(self.world.cluster.topics)
        topic = self.world.cluster.topics[chance.choice(names)]
        partition = chance.choice(topic.partitions)
        heirs = [node for node in partition.isr if node != partition.leader and node in self.world.cluster.up]
        if heirs:
            heir = chance.choice(heirs)
            with self.world.at_cluster(f"{topic.name}-{partition.index} is led by {heir}") as cluster:
                cluster.move_leader(topic.name, partition.index, heir)

    async def _part(self, chance: random.Random) -> None:
        """Let nothing arrive between a worker and one broker, or all of them."""
        worker, brokers = chance.choice(self.workers), self.world.cluster.brokers
        chosen = {(worker.name, broker) for broker in brokers if len(brokers) == 1 or chance.random() < 0.6}
        self.world.tell(f"nothing arrives between {sorted(chosen)}")
        self.world.faults.parted |= chosen
        await asyncio.sleep(chance.choice((1.0, 8.0, 30.0)) * chance.random())
        self.world.tell(f"the network is whole again for {sorted(chosen)}")
        self.world.faults.parted -= chosen

    async def _jump(self, chance: random.Random) -> None:
        """Set a worker's wall clock."""
        worker = chance.choice(self.workers)
        worker.offset_s = worker.process.offset_s = chance.choice((1.0, 60.0, 3_600.0)) * (2 * chance.random() - 1)
        self.world.tell(f"the clock of {worker.name} is {worker.offset_s:.3f} s ahead")

    # the judge

    def _expect(self) -> list[list[bytes]]:
        source = self.world.cluster.topics["source"]
        return [[record.value or b"" for record in read_partition(partition)] for partition in source.partitions]

    def _find(self, consumer: int) -> list[bytes]:
        topic = self.world.cluster.topics.get(f"out-{consumer}")
        return [r.value or b"" for partition in (topic.partitions if topic else ()) for r in read_partition(partition)]

    async def _await_all(self) -> None:
        def is_missing() -> bool:
            wanted = sum(map(len, self._expect()))
            return self.writing > 0 or any(len(self._find(each)) < wanted for each in range(self.plan.consumers))

        try:
            async with asyncio.timeout(CALM_S):
                while is_missing():  # noqa: ASYNC110
                    await asyncio.sleep(1.0)
        except TimeoutError:
            wanted, found = (
                sum(map(len, self._expect())),
                [len(self._find(each)) for each in range(self.plan.consumers)],
            )
            assert not self.writing, f"{self.writing} producers have not ended {CALM_S:g} s after the storm"
            raise AssertionError(f"of {wanted} records {found} were delivered {CALM_S:g} s after the storm") from None
        await asyncio.sleep(5)

    def _judge(self) -> None:
        expected = self._expect()
        for consumer in range(self.plan.consumers):
            topic = self.world.cluster.topics[f"out-{consumer}"]
            found = self._find(consumer)
            assert sorted(found) == sorted(value for values in expected for value in values), (
                f"out-{consumer}: {_differ(found, [value for values in expected for value in values])}"
            )
            places = {value: (index, at) for index, values in enumerate(expected) for at, value in enumerate(values)}
            for partition in topic.partitions:
                latest = [-1] * len(expected)
                for record in read_partition(partition):
                    index, at = places[record.value or b""]
                    assert at > latest[index], f"out-{consumer}: {record.value!r} out of order"
                    latest[index] = at
        outputs = (self.world.cluster.topics[f"out-{consumer}"] for consumer in range(self.plan.consumers))
        check_tokens([[record for part in topic.partitions for record in read_partition(part)] for topic in outputs])


def _is_dead(worker: Worker) -> bool:
    return worker.process.state is State.DEAD


def _differ(found: Sequence[bytes], expected: Sequence[bytes]) -> str:
    missing = [value for value in expected if value not in set(found)]
    more = sorted({value for value in found if found.count(value) > expected.count(value)})
    return f"missing {missing[:10]} ({len(missing)}), too often {more[:10]} ({len(more)})"


def _take_over(faults: Faults, other: Faults) -> None:
    for name in ("cut_before", "cut_after", "stalled", "slow", "slow_s", "latency_s"):
        setattr(faults, name, getattr(other, name))
