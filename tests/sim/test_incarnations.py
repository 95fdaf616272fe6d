"""Acks of deliveries that were sent and never committed (`delivery: at_least_once`): the next owner of the shard gives their
consumer sequences to other messages, and the acks must not settle those."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

import pytest

from overlay.config import Loaded
from overlay.kafka.header_names import CORRELATION
from tests.oracle.push import parse_token

from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .reading import Found, read_topic
from .scenes import await_records
from .world import World
from .writing import ack, say, write_under_one_key

ACK_WAIT_S = 20


class Row(NamedTuple):
    """What the token of a delivery says."""

    sequence: int
    consumer_sequence: int
    deliveries: int


def configure(world: World, policy: str) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {
                "stream": "S",
                "durable_name": "c",
                "deliver_subject": "out",
                "ack_policy": policy,
                "ack_wait": f"{ACK_WAIT_S}s",
                "delivery": "at_least_once",
                "interest": "always",
            }
        ],
    )


def read_rows(world: World) -> list[Row]:
    tokens = [parse_token(each.header("Nats-Reply-To") or b"") for each in read_topic(world.cluster, "out")]
    return [Row(token.sequence, token.consumer_sequence, token.deliveries) for token in tokens]


async def deliver_without_commit(world: World, worker: Worker) -> list[Found]:
    """Have message 1 delivered and committed, 2 to 4 delivered alone, and kill the worker. Return the four deliveries."""
    worker.start()
    await asyncio.sleep(5)
    await write_under_one_key(world, "source", ["1"])
    await await_records(world, "out", 1)
    await asyncio.sleep(5)
    world.cluster.refuse_produce("overlay.state", Code.NOT_LEADER_OR_FOLLOWER)
    await write_under_one_key(world, "source", ["2", "3", "4"])
    found = await await_records(world, "out", 4)
    assert read_rows(world) == [(number, number, 1) for number in range(1, 5)]
    worker.kill()
    world.cluster.refuse_produce("overlay.state", Code.NONE)
    return found


@pytest.mark.parametrize(("policy", "in_range"), [("explicit", True), ("all", False)])
def test_an_ack_settles_what_its_incarnation_gave_out(policy: str, in_range: bool) -> None:
    """Retention takes messages 1 and 2, so that the next owner gives 3, 4 and 5 the consumer sequences 2, 3 and 4."""
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, policy))
        former = await deliver_without_commit(world, worker)
        with world.at_cluster("retention takes two records") as cluster:
            cluster.delete_before("source", 0, 2)
        worker.start()
        await write_under_one_key(world, "source", ["5"])
        await await_records(world, "out", 7)
        assert read_rows(world)[4:] == [(3, 2, 1), (4, 3, 1), (5, 4, 1)]
        if in_range:
            head = b".".join((former[-1].header("Nats-Reply-To") or b"").split(b".")[:6])
            await say(world, "S", head, b"+ACK " + json.dumps({"consumer_seq": [[1, 4]]}).encode())
        else:
            await ack(world, "S", former[-1:])
        await asyncio.sleep(2 * ACK_WAIT_S)
        assert {row.sequence for row in read_rows(world)[7:]} == {3, 4, 5}, "no ack was of their deliveries"
        await worker.stop()

    world.run(history)


def test_a_range_of_which_a_part_was_lost_gets_no_answer() -> None:
    """Message 1 counts, and messages 2 to 4 come again. Ranges of what the next owner delivers are answered."""
    warm_up()
    world = World(4, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        world.cluster.create_topic("overlay.replies")
        worker = Worker(world, "w", configure(world, "explicit"))
        former = await deliver_without_commit(world, worker)
        await say_range(world, former[0], [[1, 4]], "too much")
        await say_range(world, former[0], [[1, 1]], "what counts")
        worker.start()
        await write_under_one_key(world, "source", ["5"])
        found = await await_records(world, "out", 8)
        assert {row.sequence for row in read_rows(world)[4:8]} == {2, 3, 4, 5}
        await say_range(world, found[-1], [[2, 5]], "all of it")
        await asyncio.sleep(2 * ACK_WAIT_S)
        assert len(read_rows(world)) == 8
        assert [one.header(CORRELATION) for one in read_topic(world.cluster, "overlay.replies")] == [
            b"what counts",
            b"all of it",
        ]
        await worker.stop()

    world.run(history)


async def say_range(world: World, delivery: Found, ranges: list[list[int]], correlation: str) -> None:
    """Ack ranges of the incarnation that made this delivery, and want an answer."""
    head = b".".join((delivery.header("Nats-Reply-To") or b"").split(b".")[:6])
    body = b"+ACK " + json.dumps({"consumer_seq": ranges}).encode()
    await say(world, "S", head, body, correlation=correlation)


def test_an_ack_of_all_that_was_overtaken_gets_no_answer() -> None:
    """The ack of message 1 by its second delivery comes before that of message 3 by its first, which then settles nothing."""
    warm_up()
    world = World(5, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        world.cluster.create_topic("overlay.replies")
        worker = Worker(world, "w", configure(world, "all"))
        worker.start()
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", ["1", "2", "3"])
        found = await await_records(world, "out", 6)
        assert read_rows(world)[3:] == [(1, 4, 2), (2, 5, 2), (3, 6, 2)]
        await ack(world, "S", found[3:4])
        await ack(world, "S", found[2:3], correlation="overtaken")
        found = await await_records(world, "out", 8)
        assert {row.sequence for row in read_rows(world)[6:]} == {2, 3}
        await ack(world, "S", found[-1:], correlation="last")
        await asyncio.sleep(2 * ACK_WAIT_S)
        assert len(read_rows(world)) == 8
        answers = [one.header(CORRELATION) for one in read_topic(world.cluster, "overlay.replies")]
        assert answers == [b"last"]
        await worker.stop()

    world.run(history)


def test_an_ack_of_all_covers_what_its_incarnation_has_committed() -> None:
    """The delivery that it names was lost; message 1 was delivered before, and committed."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, "all"))
        former = await deliver_without_commit(world, worker)
        await ack(world, "S", former[-1:])
        worker.start()
        await asyncio.sleep(2 * ACK_WAIT_S)
        assert {row.sequence for row in read_rows(world)[4:]} == {2, 3, 4}
        await worker.stop()

    world.run(history)


def test_an_ack_of_all_for_a_former_delivery_takes_no_other_along() -> None:
    """Two acks come together: one of message 2 by its second delivery, one of message 3 by its first."""
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world, "all"))
        worker.start()
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", ["1", "2", "3"])
        found = await await_records(world, "out", 6)
        assert read_rows(world)[3:] == [(1, 4, 2), (2, 5, 2), (3, 6, 2)]
        worker.freeze()
        # the first of them answers the fetch that is under way
        await ack(world, "S", [found[3], found[4], found[2]])
        worker.thaw()
        await asyncio.sleep(1.5 * ACK_WAIT_S)
        assert {row.sequence for row in read_rows(world)[6:]} == {3}
        await worker.stop()

    world.run(history)
