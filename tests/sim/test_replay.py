"""`replay_policy: original`: for whom the gaps between messages are kept, and up to which message."""

from __future__ import annotations

import itertools
import json
from typing import Any

from aiokafka import AIOKafkaProducer

from overlay.config import Loaded

from .host import Worker, read_config, warm_up
from .scenes import await_records
from .world import World
from .writing import New, send

GAP_S = 10
SOON_S = 5.0
"""Within this a message comes that waits for nothing."""


def configure(world: World, **consumer: Any) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}}],
        [{"stream": "S", "durable_name": "c", "ack_policy": "explicit", "replay_policy": "original", **consumer}],
    )


def space(world: World, first: int, count: int) -> list[New]:
    """Return records of as many subjects, GAP_S apart."""
    start = int(world.settings.wall_ms0) - 1_000_000
    return [New(0, b"k%d" % n, b"%d" % n, start + 1000 * GAP_S * n) for n in range(first, first + count)]


async def time_records(world: World, topic: str, count: int) -> list[float]:
    """Return the seconds from now until a topic had each of its records."""
    began = world.loop.now
    times = []
    for number in range(1, count + 1):
        await await_records(world, topic, number)
        times.append(world.loop.now - began)
    return times


def test_a_pull_consumer_gets_messages_with_their_gaps() -> None:
    warm_up()
    world = World(1)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        world.cluster.create_topic("overlay.replies.me", 1)
        await send(world, "source", space(world, 0, 4))
        worker = Worker(world, "w", configure(world))
        worker.start()
        producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap, enable_idempotence=True)
        await producer.start()
        asked = {"v": 1, "op": "consumer.next", "stream": "S", "consumer": "c", "batch": 4, "expires": "100s"}
        await await_records(world, "overlay.control", 1)
        await producer.send_and_wait(
            "overlay.control",
            json.dumps({**asked, "timeout": "100s"}).encode(),
            key=b"request 1",
            headers=[("Overlay-Reply-Topic", b"overlay.replies.me")],
        )
        await producer.stop()
        times = await time_records(world, "overlay.replies.me", 4)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert all(GAP_S - 1 < gap < GAP_S + 1 for gap in gaps), times

    world.run(history)


def test_policies_that_begin_at_the_end_replay_nothing() -> None:
    """What last_per_subject delivers of the time before is a state, and not what happened."""
    warm_up()
    world = World(2)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        await send(world, "source", space(world, 0, 4))
        lasts = {"deliver_subject": "out", "deliver_policy": "last_per_subject", "filter_subjects": ["t.>"]}
        Worker(world, "w", configure(world, **lasts)).start()
        times = await time_records(world, "out", 4)
        assert times[-1] - times[0] < SOON_S, times

    world.run(history)


def test_what_came_after_the_creation_is_not_replayed() -> None:
    """Over restarts of the service, and over a change of the consumer's rate."""
    warm_up()
    world = World(3)

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        await send(world, "source", space(world, 0, 3))
        worker = Worker(world, "w", configure(world, deliver_subject="out"))
        worker.start()
        await await_records(world, "out", 1)
        await worker.stop()
        await send(world, "source", space(world, 3, 3))
        worker.start()
        times = await time_records(world, "out", 6)
        assert times[2] - times[1] > GAP_S - 1, times
        assert times[5] - times[2] < SOON_S, times
        await send(world, "source", space(world, 6, 1))
        await await_records(world, "out", 7)
        worker.reload(configure(world, deliver_subject="out", rate_limit_bps=1_000_000))
        await send(world, "source", space(world, 7, 3))
        times = await time_records(world, "out", 10)
        assert times[-1] < SOON_S, times

    world.run(history)
