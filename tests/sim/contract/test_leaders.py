"""Brokers that die and leaders that move, on a cluster of three: both sides answer alike.

Brokers are slow to notice the end of another one, so that a script waits for what metadata says.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest_v11
from aiokafka.protocol.produce import ProduceRequest

from overlay.kafka.protocol import TopicsRequest
from overlay.local import BrokerNode, plan_cluster, start
from tests.support.cluster import HEAP_MIB, REPLICATED, Cluster

from .conftest import compare_notes
from .requests import (
    COMMITTED,
    UNCOMMITTED,
    add_partitions,
    end,
    init_producer,
    list_offset,
    make_batch,
    of_producer,
    produce,
    read_partition,
)
from .sides import Connection, RealSide, Script, Side, SimulatedSide
from .test_administration import AsBuilt
from .test_groups import Member

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BROKERS = (1, 2, 3)
LIMIT_S = 40.0
PROPERTIES = {
    **REPLICATED,
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "replica.fetch.wait.max.ms": "100",
    "broker.session.timeout.ms": "3000",
}


class Brokers(Cluster):
    """Three embedded brokers that can be started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[int, BrokerNode] = {node.id: node for node in plan_cluster(len(BROKERS), heap_mib=HEAP_MIB)}
        self.brokers = {}

    def start(self, *brokers: int) -> None:
        def begin(broker: int) -> None:
            node = self._nodes[broker]
            self.brokers[broker] = start(self._folder / f"node-{broker}", properties=PROPERTIES, node=node)

        with ThreadPoolExecutor(len(brokers)) as threads:
            list(threads.map(begin, brokers))


class RealCluster(RealSide):
    """A side of three embedded brokers."""

    def __init__(self, prefix: str, brokers: Brokers) -> None:
        super().__init__(prefix, ",".join(brokers.brokers[broker].bootstrap for broker in BROKERS))
        self._brokers = brokers

    async def stop(self, broker: int) -> None:
        self._brokers.brokers[broker].kill()

    async def restart(self, broker: int) -> None:
        await asyncio.to_thread(self._brokers.start, broker)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    found = Brokers(tmp_path_factory.mktemp("leaders"))
    try:
        found.start(*BROKERS)
        yield found
    finally:
        for broker in found.brokers.values():
            broker.kill()


async def compare(script: Script, brokers: Brokers) -> None:
    prefix = f"l-{uuid.uuid4().hex[:8]}"
    simulated, real = SimulatedSide(prefix, len(BROKERS)), RealCluster(prefix, brokers)
    simulated.cluster.settings.failover_s = 2.0
    await real.begin()
    try:
        await script(real)
    finally:
        await real.close()
    await script(simulated)
    compare_notes(simulated, real)


async def make_topic(side: Side, name: str, nodes: list[int], **config: object) -> str:
    full = side.name(name)
    entries = [("retention.ms", "-1"), *((key.replace("_", "."), str(value)) for key, value in config.items())]
    answer = await side.main.ask(CreateTopicsRequest([(full, -1, -1, [(0, nodes)], entries)], 10_000, False))
    side.note("created", [one[1] for one in answer.topic_errors])
    await await_topic(side, full, BROKERS[0], lambda leader, isr: sorted(isr) == sorted(nodes))
    await side.sleep(1.0)
    return full


async def await_topic(side: Side, topic: str, broker: int, is_good: Any, *, unclean: bool = False) -> int:
    """Wait until a broker says of a topic what is wanted, and note it. Returns the leader epoch.

    An `unclean` election takes one epoch or two, as it happens.
    """
    connection = await side.connect(broker=broker)

    async def look() -> tuple[Any, ...]:
        found = (await connection.ask(TopicsRequest([topic]))).topics[0]
        return tuple(found[4][0][:7]) if found[4] else (found[0],)

    entry = await side.until(look, lambda one: len(one) > 1 and is_good(one[2], one[5]), LIMIT_S)
    assert len(entry) > 1, entry
    epoch = int(entry[3])
    side.note("metadata", (*entry[:3], unclean or epoch, entry[4], sorted(entry[5]), sorted(entry[6])))
    return epoch


async def note_fetch(
    side: Side, what: str, connection: Connection, topic: str, offset: int, epoch: int = -1, *, newest: int = -1
) -> None:
    """Fetch in both isolation levels and note the answers. `newest` is the epoch that is noted as 9."""
    wanted = [(topic, [(0, epoch, offset, -1, 1 << 20)])]
    for isolation in (COMMITTED, UNCOMMITTED):
        request = FetchRequest_v11(-1, 0, 1, 1 << 20, isolation, 0, -1, wanted, [], "")
        answer = await connection.ask(AsBuilt(request))
        shown = read_partition(answer.topics[0][1][0])
        shown["batches"] = [(*one[:3], 9 if one[3] == newest else one[3], one[4]) for one in shown["batches"]]
        shown["aborted"] = shown["aborted"] and [(side.alias("producer", id), at) for id, at in shown["aborted"]]
        when = epoch - newest if newest >= 0 else epoch
        side.note(f"{what} from {offset} in {when}", {key: value for key, value in shown.items() if key != "data"})


async def test_leaders_move_when_brokers_die(brokers: Brokers) -> None:
    async def script(side: Side) -> None:
        topic = await make_topic(side, "t", [1, 2, 3])
        other = await make_topic(side, "other", [2, 3, 1])
        for broker in BROKERS:
            connection = await side.connect(broker=broker)
            side.note(f"produce at {broker}", await produce(connection, topic, make_batch(2, side.wall_ms)))
        await side.sleep(1.0)
        for broker in BROKERS:
            side.main = await side.connect(broker=broker)
            for offset in (0, 2, 3):
                await note_fetch(side, f"at {broker}", side.main, topic, offset)
            side.note(f"offset at {broker}", await list_offset(side, topic, -1))
        await side.stop(1)
        await await_topic(side, topic, 2, lambda leader, isr: leader > 1 and sorted(isr) == [2, 3])
        await await_topic(side, other, 2, lambda leader, isr: sorted(isr) == [2, 3])
        await side.sleep(0.5)
        two, three = await side.connect(broker=2), await side.connect(broker=3)
        for connection in (two, three):
            side.note("produce", await produce(connection, topic, make_batch(2, side.wall_ms)))
        side.note("produce", await produce(two, other, make_batch(2, side.wall_ms)))
        await side.sleep(1.0)
        for epoch in (-1, 0, 1, 2):
            await note_fetch(side, "the leader", two, topic, 0, epoch)
            await note_fetch(side, "a follower", three, topic, 0, epoch)
        side.main = two
        for when in (-1, -2, -3):
            code, at, *rest = await list_offset(side, topic, when)
            side.note("offset", (code, at < 0, *rest))
        await side.restart(1)
        await await_topic(side, topic, 2, lambda leader, isr: len(isr) == 3)
        await side.sleep(1.0)
        one = await side.connect(broker=1)
        await note_fetch(side, "it is back", one, topic, 0)
        side.note("produce", await produce(one, topic, make_batch(2, side.wall_ms)))

    await compare(script, brokers)


async def test_an_unclean_election_loses_records(brokers: Brokers) -> None:
    async def script(side: Side) -> None:
        topic = await make_topic(side, "t", [2, 3], unclean_leader_election_enable="true")
        side.main = await side.connect(broker=2)
        side.note("produce", await produce(side.main, topic, make_batch(2, side.wall_ms)))
        await side.sleep(1.0)
        await side.stop(3)
        await await_topic(side, topic, 1, lambda leader, isr: isr == [2])
        for _ in range(3):
            side.note("produce", await produce(side.main, topic, make_batch(3, side.wall_ms)))
        # a quorum needs two of three controllers: the other one is back before the leader dies, and not in sync
        await side.stop(2)
        await side.restart(3)
        now = await await_topic(side, topic, 1, lambda leader, isr: leader == 3, unclean=True)
        await side.sleep(1.0)
        three = await side.connect(broker=3)
        for epoch in (now - 1, now, now + 1):
            await note_fetch(side, "the new leader", three, topic, 0, epoch, newest=now)
        for offset in (2, 5, 11):
            await note_fetch(side, "the new leader", three, topic, offset, now, newest=now)
        side.note("produce", await produce(three, topic, make_batch(4, side.wall_ms)))
        await note_fetch(side, "written again", three, topic, 3, now, newest=now)
        await side.restart(2)
        await await_topic(side, topic, 1, lambda leader, isr: len(isr) == 2, unclean=True)
        await side.sleep(1.0)
        await note_fetch(side, "the old leader", await side.connect(broker=2), topic, 0, now, newest=now)
        side.main = three
        for when in (-1, -2):
            side.note("offset", (await list_offset(side, topic, when))[:3])

    await compare(script, brokers)


async def test_transactions_and_groups_outlive_their_coordinators(brokers: Brokers) -> None:
    async def script(side: Side) -> None:
        topic = await make_topic(side, "t", [1, 2, 3])
        name, group = side.name("tx"), side.name("g")

        async def find(key: str, kind: int) -> int:
            async def ask() -> Any:
                return await (await side.connect(broker=1)).ask(FindCoordinatorRequest(key, kind))

            found = await side.until(ask, lambda answer: answer.error_code == 0, LIMIT_S)
            return int(found.coordinator_id)

        leader = await side.connect(broker=1)
        side.main = await side.connect(broker=await find(name, 1))
        code, producer = await init_producer(side, name)
        side.note("init", (code, producer[1]))
        side.note("add", await add_partitions(side, name, producer, {topic: [0]}))
        batch = make_batch(2, side.wall_ms, **of_producer(producer, 0, transactional=True))
        answer = await leader.ask(ProduceRequest(name, -1, 5_000, [(topic, [(0, batch)])]))
        side.note("sent", tuple(answer.topics[0][1][0]))
        member = Member(side, await side.connect(broker=await find(group, 0)), group)
        side.main = member.connection
        await side.find_coordinator(group, 0)
        side.note("join", await member.join())
        side.note("sync", await member.sync({member.id: b"all"}))
        side.note("commit", await member.commit(topic, 1))
        gone = {await find(name, 1), await find(group, 0)} - {1}
        for broker in gone or {2}:
            await side.stop(broker)
            await await_topic_without(side, topic, broker)
            await side.sleep(1.0)
            side.main = await side.connect(broker=await find(name, 1))
            side.note("add", await add_partitions(side, name, producer, {topic: [0]}))
            member.connection = side.main = await side.connect(broker=await find(group, 0))
            await side.find_coordinator(group, 0)
            side.note("beat", await member.beat())
            side.note("commit", await member.commit(topic, 2))
            found = await side.main.ask(OffsetFetchRequest(group, [(topic, [0])]))
            side.note("offsets", (found.error_code, list(map(tuple, found.topics[0][1]))))
            side.main = await side.connect(broker=await find(name, 1))
            side.note("end", await end(side, name, producer, commit=True))
            await side.sleep(1.0)
            side.main = leader
            side.note("stable", await list_offset(side, topic, -1))
            await side.restart(broker)
            break

    await compare(script, brokers)


async def await_topic_without(side: Side, topic: str, broker: int) -> None:
    """Wait until a broker is known to be gone."""
    connection = await side.connect(broker=1)

    async def look() -> Any:
        return (await connection.ask(TopicsRequest([topic]))).topics[0][4][0]

    await side.until(look, lambda one: broker not in one[5], LIMIT_S)
