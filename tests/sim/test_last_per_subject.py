"""`deliver_policy: last_per_subject` over several partitions: of each subject one message, that with the highest sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.kafka.header_names import TOKEN
from overlay.kafka.own_topics import shard_of

from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .reading import Found, read_partition, read_topic
from .scenes import await_records, intercept, until
from .world import World
from .writing import New, ack, send

PARTITIONS = 3
INIT_PRODUCER_ID, END = 22, 26
"""API keys of InitProducerId and EndTxn."""


def configure(world: World, *consumers: dict[str, Any], shards: int = 1, replication: int = 3) -> Loaded:
    stream = {
        "name": "S",
        "topics": ["source"],
        "subject": {"template": "t.{key}"},
        "index": {"chunk_age": "1h"},
        "properties": {"good": {"type": "boolean", "from": "{value:good}"}},
    }
    topics = {"replication": replication}
    service = {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": shards, "topics": topics}
    filled = [
        {"stream": "S", "durable_name": each["deliver_subject"], "ack_policy": "none", **each} for each in consumers
    ]
    return read_config(service, [stream], filled)


EVERY = {"deliver_subject": "every"}
LASTS = {"deliver_subject": "lasts", "deliver_policy": "last_per_subject", "filter_subjects": ["t.>"]}


def sequence(delivery: Found) -> int:
    """Return the stream sequence that a delivery's token tells."""
    return int((delivery.header(TOKEN) or b"").split(b".")[-4])


def find_last(every: list[Found], end: int | None = None) -> dict[bytes | None, bytes | None]:
    """Return by key the value with the highest sequence below `end`, of deliveries of all there is."""
    ordered = sorted(every, key=sequence)
    return {each.key: each.value for each in ordered if end is None or sequence(each) < end}


def mix(number: int) -> list[New]:
    """Return records of four subjects, each of them in each partition."""
    return [New(p, b"k%d" % key, b"%d-%d-%d" % (number, p, key)) for p in range(PARTITIONS) for key in range(4)]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("begins_late", [False, True])
def test_a_subject_of_several_partitions_is_delivered_once(delivery: str, begins_late: bool) -> None:
    """Of what came before the ledger and of what got its sequences while the service ran."""
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", PARTITIONS)
        lasts = {**LASTS, "delivery": delivery}
        await send(world, "source", mix(0))
        worker = Worker(world, "w", configure(world, *([] if begins_late else [lasts]), EVERY))
        worker.start()
        if begins_late:
            for number in (1, 2):
                await await_records(world, "every", 12 * number)
                await send(world, "source", reversed(mix(number)))
            await await_records(world, "every", 36)
            worker.reload(configure(world, lasts, EVERY))
        every = await await_records(world, "every", 12)
        await await_records(world, "lasts", 4)
        await asyncio.sleep(5)
        found = read_topic(world.cluster, "lasts")
        assert {each.key: each.value for each in found} == find_last(every)
        assert len(found) == 4
        await send(world, "source", mix(9))
        assert len(await await_records(world, "lasts", 16)) == 16

    world.run(history)


def test_a_shard_that_does_not_keep_the_ledger_waits_for_its_sequences() -> None:
    """Two shards that begin at once: what came before has no sequences yet where the other consumer is created."""
    warm_up()
    world = World(2)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", PARTITIONS)
        await send(world, "source", [*mix(0), *reversed(mix(1))])
        many: list[dict[str, Any]] = [{**LASTS, "deliver_subject": f"lasts-{number}"} for number in range(6)]
        worker = Worker(world, "w", configure(world, *many, EVERY, shards=2))
        worker.start()
        every = await await_records(world, "every", 24)
        for each in many:
            found = await await_records(world, each["deliver_subject"], 4)
            assert {each.key: each.value for each in found} == find_last(every)
        await asyncio.sleep(5)
        assert {len(read_topic(world.cluster, each["deliver_subject"])) for each in many} == {4}

    world.run(history)


def test_a_restart_with_acks_and_a_filter_delivers_no_superseded_message() -> None:
    """The consumer is held in one partition, and has passed the end of its snapshot in the other.

    The filter accepts older messages of `a`, and not its last one.
    """
    warm_up()
    world = World(3)
    good, bad = b'{"good": true}', b'{"good": false}'

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        lasts = {
            **LASTS,
            "ack_policy": "explicit",
            "max_ack_pending": 1,
            "filter": {"sql": "good"},
        }
        worker = Worker(world, "w", configure(world, EVERY))
        worker.start()
        await send(world, "source", [New(1, b"b1", good), New(1, b"b2", good)])
        await await_records(world, "every", 2)
        await send(world, "source", [New(0, b"a", good)])
        await await_records(world, "every", 3)
        await send(world, "source", [New(0, b"a", bad)])
        await await_records(world, "every", 4)
        worker.reload(configure(world, lasts, EVERY))
        (first,) = await await_records(world, "lasts", 1)
        assert first.key == b"b1"
        await asyncio.sleep(5)
        worker.kill()
        worker.start()
        await ack(world, "S", [first])
        second = (await await_records(world, "lasts", 2))[-1]
        assert second.key == b"b2"
        await ack(world, "S", [second])
        await asyncio.sleep(10)
        assert [each.key for each in read_topic(world.cluster, "lasts")] == [b"b1", b"b2"]

    world.run(history)


class Held:
    """Keeps requests of transactional ids from the coordinator: those that end a transaction get no answer, and those for a
    producer id wait for `let_go`."""

    def __init__(self, world: World) -> None:
        self.ids: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        intercept(world, INIT_PRODUCER_ID, self._init)
        intercept(world, END, self._end)

    def _init(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        if answer.request.transactional_id in self.ids:
            self._waiting.append(lambda: handle(answer))
        else:
            handle(answer)

    def _end(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        if answer.request.transactional_id not in self.ids:
            handle(answer)

    def let_go(self) -> None:
        self.ids.clear()
        for handle in self._waiting:
            handle()


def test_last_messages_are_found_although_the_log_has_lost_its_end_since_the_snapshot() -> None:
    """The ledger, which another shard keeps, has all sequences when the consumer's session begins, so its search begins at
    once. It must not wait for offsets that the log does not have any more."""
    warm_up()
    world = World(4, brokers=1)
    finals = {**LASTS, "deliver_subject": "final"}
    every = {"deliver_subject": "all"}
    keeper, other = shard_of(("S",), 2), shard_of(("S", "final"), 2)
    assert keeper == shard_of(("S", "all"), 2) != other

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 2)
        await send(world, "source", [each for each in mix(0) if each.partition < 2])
        held = Held(world)
        worker = Worker(world, "w", configure(world, every, shards=2, replication=1))
        worker.start()
        await await_records(world, "all", 8)
        held.ids = {f"overlay.shard.{keeper}"}
        await send(world, "source", [New(0, b"late", b"lost")])
        worker.reload(configure(world, finals, every, shards=2, replication=1))
        await until(lambda: b"snapshot" in read_state(world, other), "the snapshot is in the state")
        worker.kill()
        with world.at_cluster("the end of the source is lost") as cluster:
            cluster.move_leader("source", 0, cluster.topics["source"].partitions[0].leader, unclean=True, lose=1)
        held.ids = {f"overlay.shard.{other}"}
        await send(world, "source", [New(1, b"k0", b"more")])
        worker.start()
        found = await await_records(world, "all", 9)
        held.let_go()
        await await_records(world, "final", 4, 30.0)
        assert {each.key: each.value for each in read_topic(world.cluster, "final")} == find_last(found)

    world.run(history)


def read_state(world: World, shard: int) -> bytes:
    """Return the committed values of a shard's state, one after the other."""
    partition = world.cluster.find("overlay.state", shard)
    return b"" if partition is None else b"".join(each.value or b"" for each in read_partition(partition))
