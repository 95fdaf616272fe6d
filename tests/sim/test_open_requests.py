"""Requests of clients that may not write to the control topic: each is copied there once, whichever worker does it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from overlay.config import Loaded
from overlay.control.tail import MOST_RECORDS
from overlay.kafka.header_names import CORRELATION, TOKEN
from tests.oracle.push import parse_token
from tests.support.tiny_records import build_tiny

from .asking import CONTROL, ask, await_answer, find_answers
from .host import Worker, read_config, warm_up
from .kafka.codes import Code
from .kafka.produce import append
from .reading import read_topic
from .scenes import await_records, until
from .world import World
from .writing import PREFIX, write_under_one_key

REQUESTS, REPLIES = f"{PREFIX}.requests", f"{PREFIX}.replies"
INBOX = f"{REPLIES}.mine"
ORDERED: dict[str, Any] = {
    "name": "ordered-1-1",
    "deliver_subject": f"{PREFIX}-ordered-1",
    "ack_policy": "none",
    "flow_control": True,
    "idle_heartbeat": "5s",
    "inactive_threshold": "60s",
    "output": {"temporary": True, "config": {"retention.ms": "3600000"}},
}


def configure(world: World, *, shards: int = 1) -> Loaded:
    return read_config(
        {
            "kafka": {"bootstrap.servers": world.bootstrap},
            "shards": shards,
            "topics": {"replication": 1, "requests": True},
        },
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [{"stream": "S", "durable_name": "c", "ack_policy": "explicit"}],
    )


async def ask_openly(world: World, id: str, op: str, *, inbox: str = "", **body: Any) -> None:
    await ask(world, id, op, "S", inbox=inbox, topic=REQUESTS, timeout="120s", **body)


async def find_error(world: World, id: str) -> str:
    """The text of the refusal of a request."""
    error = (await await_answer(world, id))["error"]
    return f"{error['err_code']} {error['description']}"


def list_pulled(world: World) -> list[int]:
    """Stream sequences of what has come for pull requests."""
    tokens = [one.header(TOKEN) for one in read_topic(world.cluster, INBOX)]
    return [parse_token(token).sequence for token in tokens if token]


def list_copies(world: World) -> list[bytes]:
    """The keys of copies in the control topic, without what ends them."""
    found = read_topic(world.cluster, CONTROL)
    return [
        one.key or b"" for one in found if (one.key or b"").startswith(b"request $relay-") and one.value is not None
    ]


def test_open_requests_are_carried_out_and_others_refused() -> None:
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> None:
        for topic in ("source", INBOX):
            world.cluster.create_topic(topic)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await until(lambda: REQUESTS in world.cluster.topics, "the topic for requests is there")
        await write_under_one_key(world, "source", ["1", "2", "3"])
        await ask_openly(world, "info", "consumer.info", consumer="c")
        assert (await await_answer(world, "info"))["name"] == "c"
        await ask_openly(world, "streams", "stream.list")
        assert (await await_answer(world, "streams"))["total"] == 1
        await ask_openly(world, "pull", "consumer.next", inbox=INBOX, consumer="c", batch=2, expires="10s")
        await await_records(world, INBOX, 2)
        # what would change a consumer is refused
        await ask_openly(world, "delete", "consumer.delete", consumer="c")
        assert await find_error(world, "delete") == f"10012 consumer.delete is not taken from {REQUESTS}"
        config = {"durable_name": "d", "deliver_subject": "d", "ack_policy": "none"}
        await ask_openly(world, "create", "consumer.create", config=config)
        assert await find_error(world, "create") == f"10012 consumer.create is not taken from {REQUESTS}"
        # but for ordered consumers
        await ask_openly(world, "ordered", "consumer.create", config=ORDERED)
        assert (await await_answer(world, "ordered"))["name"] == ORDERED["name"]
        await until(lambda: ORDERED["deliver_subject"] in world.cluster.topics, "it has its topic")
        await ask_openly(world, "end", "consumer.delete", consumer=ORDERED["name"])
        assert (await await_answer(world, "end"))["success"]
        assert list_pulled(world) == [1, 2]
        assert len(list_copies(world)) == len(set(list_copies(world))) == 5
        answers = Counter(one.header(CORRELATION) for one in read_topic(world.cluster, REPLIES))
        assert answers == Counter([b"info", b"streams", b"delete", b"create", b"ordered", b"end"])
        await worker.stop()

    world.run(history)


def test_each_request_is_copied_once_whichever_worker_comes_next() -> None:
    """Workers are killed at every step. Requests that came while none ran are answered by the next."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        for topic in ("source", INBOX):
            world.cluster.create_topic(topic)
        workers = [Worker(world, name, configure(world, shards=3)) for name in ("w", "v")]
        workers[0].start()
        await until(lambda: REQUESTS in world.cluster.topics, "the topic for requests is there")
        await write_under_one_key(world, "source", map(str, range(1, 10)))
        await ask_openly(world, "first", "consumer.next", inbox=INBOX, consumer="c", batch=1, expires="60s")
        await await_records(world, INBOX, 1)
        workers[0].kill()
        for number in range(3):
            await ask_openly(
                world, f"late-{number}", "consumer.next", inbox=INBOX, consumer="c", batch=1, expires="60s"
            )
        workers[1].start()
        await until(lambda: len(list_copies(world)) == 4, "all are copied")
        workers[1].kill()
        for worker in workers:
            worker.start()
        await until(lambda: len(list_pulled(world)) >= 4, "all are answered")
        await asyncio.sleep(20)
        # a worker that is killed while it hands a request over leaves it to the next, as any other request
        assert {1, 2, 3, 4} <= set(list_pulled(world))
        assert len(list_copies(world)) == len(set(list_copies(world))) == 4
        for worker in workers:
            await worker.stop()

    world.run(history)


def test_a_refused_request_is_answered_once_whichever_worker_comes_next() -> None:
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        workers = [Worker(world, name, configure(world)) for name in ("w", "v")]
        workers[0].start()
        await until(lambda: REQUESTS in world.cluster.topics, "the topic for requests is there")
        for number in range(2):
            await ask_openly(world, f"no-{number}", "consumer.delete", consumer="c")
            await find_error(world, f"no-{number}")
        workers[0].kill()
        workers[1].start()
        await ask_openly(world, "info", "consumer.info", consumer="c")
        assert (await await_answer(world, "info"))["name"] == "c"
        assert [len(find_answers(world, f"no-{number}")) for number in range(2)] == [1, 1]
        await workers[1].stop()

    world.run(history)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_requests_topic_that_is_created_again_is_read_from_its_start(is_running: bool) -> None:
    """The copies in the control topic say offsets of the former one."""
    warm_up()
    world = World(4, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await until(lambda: REQUESTS in world.cluster.topics, "the topic for requests is there")
        for number in range(4):
            await ask_openly(world, f"old-{number}", "stream.list")
            await await_answer(world, f"old-{number}")
        if not is_running:
            await worker.stop()
        world.cluster.recreate_topic(REQUESTS)
        await ask_openly(world, "new-1", "stream.list")
        if not is_running:
            worker.start()
        await ask_openly(world, "new-2", "stream.list")
        for number in (1, 2):
            assert (await await_answer(world, f"new-{number}"))["total"] == 1
        assert len(list_copies(world)) == len(set(list_copies(world))) == 6
        await worker.stop()

    world.run(history)


def test_the_log_names_only_the_first_of_many_records_that_are_no_requests() -> None:
    warm_up()
    world = World(5, brokers=1, tells=True)

    async def history(world: World) -> None:
        for topic in ("source", REQUESTS, REPLIES):
            world.cluster.create_topic(topic)
        keys = [b"consumer S c", None, b"zork", *(b"pause S c%d" % number for number in range(97))]
        async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
            for key in keys:
                await producer.send(REQUESTS, b"{}", key=key, partition=0)
            await producer.flush()
        await ask_openly(world, "last", "stream.list")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await await_answer(world, "last")
        counts = [int(line.rpartition("count=")[2].split()[0]) for line in world.story if "passed over" in line]
        assert (sum(counts), len(counts) < 10) == (100, True)
        await worker.stop()

    world.run(history)


def test_a_batch_of_too_many_records_is_passed_over() -> None:
    """Each of them may be a request, and compressed they take less than a byte."""
    warm_up()
    world = World(6, brokers=1, tells=True)

    async def history(world: World) -> None:
        for topic in ("source", REQUESTS, REPLIES):
            world.cluster.create_topic(topic)
        partition = world.cluster.topics[REQUESTS].partitions[0]
        worker = Worker(world, "w", configure(world))
        worker.start()
        await ask_openly(world, "before", "stream.list")
        await await_answer(world, "before")
        # its time is 1970, so a worker that starts does not look for requests there
        assert append(world.cluster, partition, build_tiny(MOST_RECORDS + 1), None, 1)[0] == Code.NONE
        await ask_openly(world, "behind", "stream.list")
        await await_answer(world, "behind")
        (line,) = [line for line in world.story if "passed over" in line]
        assert "has more records than the limit" in line
        await worker.stop()

    world.run(history)


def test_a_withdrawn_request_is_not_copied() -> None:
    warm_up()
    world = World(3, brokers=1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        for topic in (REQUESTS, REPLIES):
            world.cluster.create_topic(topic)
        await ask_openly(world, "one", "stream.list")
        await ask_openly(world, "two", "stream.list")
        await withdraw(world, "one")
        worker = Worker(world, "w", configure(world))
        worker.start()
        await await_answer(world, "two")
        assert [key.rpartition(b"-")[2] for key in list_copies(world)] == [b"1"]
        await worker.stop()

    world.run(history)


async def withdraw(world: World, id: str) -> None:
    """Do as a client does that waits no more."""
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(REQUESTS, None, key=f"request {id}".encode(), partition=0)
