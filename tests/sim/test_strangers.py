"""An application that may ack, and reads one consumer, tries to settle the messages of others in every form that there is.

It knows everything but the tokens of the others: their names and sequences, and its own token, which the same owner of the same
shard has given it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.kafka.header_names import CORRELATION, TOKEN
from tests.oracle.push import parse_token

from .asking import ask
from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .reading import Found, read_topic
from .scenes import await_records, until
from .world import World
from .writing import PREFIX, ack, say_all, write_under_one_key

ACK_WAIT_S = 20
PUSHED = {"b-explicit": "explicit", "b-all": "all"}
"""Consumers that the application does not read, with their ack policies. The topics have their names."""
PULLED = ("p",)
"""The same for pull consumers, which have `ack_policy: explicit`."""
COUNT = 3
BODIES = [b"", b"+ACK", b"-NAK", b"-NAK 1s", b"+WPI", b"+TERM", b"+TERM why", b"+NXT", b'+NXT {"batch": 2}']


def configure(world: World, delivery: str) -> Loaded:
    common = {"stream": "S", "ack_wait": f"{ACK_WAIT_S}s", "delivery": delivery, "interest": "always"}
    pushed = [
        {**common, "durable_name": name, "deliver_subject": name, "ack_policy": policy}
        for name, policy in {"a": "explicit", **PUSHED}.items()
    ]
    pulled = [{"stream": "S", "durable_name": name, "ack_wait": f"{ACK_WAIT_S}s"} for name in PULLED]
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [*pushed, *pulled],
    )


def forge(own: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield acks of a consumer's deliveries 1 to COUNT, as token and body, by a client that has a token of another one."""
    incarnation = own.split(b".")[3].decode()
    owner = incarnation.partition("-")[0]
    for by in ("", f"_.{incarnation}.", f"_.{owner}.", f"_.{owner}-.", "_.x."):
        for number, body in product(range(1, COUNT + 1), BODIES):
            yield f"$JS.ACK.{by}S.{name}.1.{number}.{number}.1700000000000000000.0".encode(), body
        fields: dict[str, Any] = {"consumer_seq": [[1, COUNT]]}
        for named in (fields, fields | {"incarnation": ""}):
            yield f"$JS.ACK.{by}S.{name}".encode(), b"+ACK " + json.dumps(named).encode()
        yield f"$JS.FC.{by}S.{name}.0000".encode(), b"+ACK " + json.dumps(fields).encode()


def read_rows(world: World, name: str) -> list[tuple[int, int]]:
    """Stream sequence and count of each delivery of a push consumer."""
    tokens = [parse_token(each.header(TOKEN) or b"") for each in read_topic(world.cluster, name)]
    return [(token.sequence, token.deliveries) for token in tokens]


async def await_rows(world: World, name: str, count: int) -> None:
    """Wait until a push consumer has made so many deliveries."""
    await until(lambda: len(read_rows(world, name)) >= count, f"{name} has delivered {count} times")


def read_pulled(world: World, name: str) -> list[Found]:
    return [found for found in read_topic(world.cluster, f"{PREFIX}.replies.{name}") if found.header(TOKEN)]


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_an_acker_of_one_consumer_moves_no_other(delivery: str) -> None:
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        for topic in ("source", f"{PREFIX}.replies", *(f"{PREFIX}.replies.{name}" for name in PULLED)):
            world.cluster.create_topic(topic)
        worker = Worker(world, "w", configure(world, delivery))
        worker.start()
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", map(str, range(1, COUNT + 1)))
        own = await await_records(world, "a", COUNT)
        for name in PUSHED:
            await await_records(world, name, COUNT)
        for name in PULLED:
            inbox = f"{PREFIX}.replies.{name}"
            await ask(world, f"pull-{name}", "consumer.next", "S", inbox=inbox, consumer=name, batch=1, expires="10s")
            await await_records(world, inbox, 1)
        began = world.loop.now
        token = own[0].header(TOKEN) or b""
        forged = (each for name in (*PUSHED, *PULLED) for each in forge(token, name))
        await say_all(world, "S", forged, correlation="stranger")
        # the answers to the application's own acks show that all has been read
        await ack(world, "S", own, correlation="own")
        await until(lambda: len(read_topic(world.cluster, f"{PREFIX}.replies")) == COUNT, "its own acks are answered")
        assert world.loop.now - began < ACK_WAIT_S / 2
        expected = [(number, 1) for number in range(1, COUNT + 1)]
        assert {name: read_rows(world, name) for name in PUSHED} == dict.fromkeys(PUSHED, expected), "no nak counts"
        # what was pulled went to the requests of those that read, and nothing else has been pulled
        assert [len(read_pulled(world, name)) for name in PULLED] == [1]
        answers = [one.header(CORRELATION) for one in read_topic(world.cluster, f"{PREFIX}.replies")]
        assert answers == [b"own"] * COUNT, "strangers get no answers, and no messages"
        # every message comes again when its time is over, neither earlier nor later
        for name in PUSHED:
            found = await await_records(world, name, 2 * COUNT, ACK_WAIT_S + 5)
            assert read_rows(world, name) == [*expected, *((number, 2) for number in range(1, COUNT + 1))]
            spans = {again.timestamp - first.timestamp for first, again in zip(found, found[COUNT:], strict=False)}
            assert all(abs(span / 1000 - ACK_WAIT_S) < 3 for span in spans), spans
        # their readers settle them
        for name in PUSHED:
            await ack(world, "S", read_topic(world.cluster, name)[COUNT:])
        for name in PULLED:
            await ack(world, "S", read_pulled(world, name)[:1], b"+NXT", correlation=name)
        await asyncio.sleep(2 * ACK_WAIT_S)
        counts = {name: len(read_rows(world, name)) for name in ("a", *PUSHED)}
        assert counts == {"a": COUNT, **dict.fromkeys(PUSHED, 2 * COUNT)}
        pulled = [one for one in read_topic(world.cluster, f"{PREFIX}.replies") if one.header(TOKEN)]
        assert [parse_token(one.header(TOKEN) or b"").sequence for one in pulled] == [2]
        await worker.stop()

    world.run(history)


def test_an_acker_of_one_consumer_does_not_settle_what_a_former_owner_delivered() -> None:
    """With `at_least_once` an owner is killed between its deliveries and their commit. Its successor gives the same consumer
    sequences out again, and the stranger names the former ones, too."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        for topic in ("source", f"{PREFIX}.replies"):
            world.cluster.create_topic(topic)
        worker = Worker(world, "w", configure(world, "at_least_once"))
        worker.start()
        await asyncio.sleep(5)
        await write_under_one_key(world, "source", ["1"])
        for name in PUSHED:
            await await_records(world, name, 1)
        await asyncio.sleep(5)
        world.cluster.refuse_produce("overlay.state", Code.NOT_LEADER_OR_FOLLOWER)
        await write_under_one_key(world, "source", ["2", "3"])
        former = await await_records(world, "a", COUNT)
        for name in PUSHED:
            await await_records(world, name, COUNT)
        worker.kill()
        world.cluster.refuse_produce("overlay.state", Code.NONE)
        worker.start()
        for name in PUSHED:
            await await_rows(world, name, 2 * COUNT - 1)
        own = read_topic(world.cluster, "a")
        for each in (former[0], former[-1], own[-1]):
            forged = (said for name in PUSHED for said in forge(each.header(TOKEN) or b"", name))
            await say_all(world, "S", forged, correlation="stranger")
        before = {name: len(read_rows(world, name)) for name in PUSHED}
        await asyncio.sleep(2 * ACK_WAIT_S)
        for name in PUSHED:
            assert {sequence for sequence, _ in read_rows(world, name)[before[name] :]} == {1, 2, 3}
        assert read_topic(world.cluster, f"{PREFIX}.replies") == []
        await worker.stop()

    world.run(history)
