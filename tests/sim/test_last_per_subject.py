"""`deliver_policy: last_per_subject` over several partitions: of each subject one message, that with the highest sequence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.kafka.header_names import TOKEN

from .host import Worker, read_config, warm_up
from .reading import Found, read_topic
from .scenes import await_records
from .world import World
from .writing import New, ack, send

PARTITIONS = 3


def configure(world: World, *consumers: dict[str, Any], shards: int = 1) -> Loaded:
    stream = {
        "name": "S",
        "topics": ["source"],
        "subject": {"template": "t.{key}"},
        "properties": {"good": {"type": "boolean", "from": "{value:good}"}},
    }
    service = {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": shards, "topics": {"replication": 3}}
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
