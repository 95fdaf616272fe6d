"""Answers to produce requests that say little, or come late: what is deleted, counted and aborted because of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiokafka.protocol.produce import ProduceRequest

from overlay.config import Loaded
from tests.sim.kafka.session import Answer

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import PRODUCE, await_records, intercept
from .world import World
from .writing import New, send

END_TXN = 26
DUPLICATE_SEQUENCE_NUMBER = 46
"""Brokers of today answer it no more: they say where the batch is, or that it is out of order."""


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 3}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "t.{key}"}}],
        [{"stream": "S", "durable_name": "c", "deliver_subject": "out", "ack_policy": "none"}],
    )


def list_topics(request: ProduceRequest) -> set[str]:
    """Return the topics of a produce request."""
    return {topic for topic, _ in request.topics}


def test_a_duplicate_of_unknown_offset_deletes_no_state() -> None:
    """A broker may know that it has a batch, and not where. Kafka takes the offset -1 of DeleteRecords for the log's end."""
    warm_up()
    world = World(1)
    forged: list[str] = []

    async def history(world: World) -> None:
        world.cluster.create_topic("source", 1)
        worker = Worker(world, "w", configure(world))
        worker.start()
        await send(world, "source", [New(0, b"k", b"%d" % number) for number in range(20)])
        await await_records(world, "out", 20)
        await worker.stop()

        def handle(answer: Answer, own: Callable[[Answer], None]) -> None:
            own(answer)
            if not forged and "overlay.state" in list_topics(answer.request):
                forged.append("overlay.state")
                answer.done(lambda: forge(answer))

        def forge(answer: Answer) -> None:
            topics = [
                (name, [(row[0], DUPLICATE_SEQUENCE_NUMBER, -1, *row[3:]) for row in rows])
                if name == "overlay.state"
                else (name, rows)
                for name, rows in answer.response.topics
            ]
            answer.response = answer.request.RESPONSE_TYPE(topics, 0)

        intercept(world, PRODUCE, handle)
        worker.start()
        while not forged:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.15)
        worker.kill()
        worker.start()
        await asyncio.sleep(30)
        assert len(read_topic(world.cluster, "out")) == 20

    world.run(history)


def test_a_batch_that_arrives_after_the_abort_is_not_committed() -> None:
    """Brokers that do not ask the coordinator (before 3.6, or transaction.partition.verification.enable=false) take a batch of
    a transaction that has ended: it begins another one, and the producer's next commit makes it visible.

    A broker handles a request later than the client waits for it; the client gives up, and the batch is taken then.
    """
    warm_up()
    world = World(2)
    held: list[Callable[[], None]] = []

    async def history(world: World) -> None:
        cluster = world.cluster
        cluster.create_topic("source", 1)
        cluster.create_topic("out", 1)
        cluster.transactions.verify = lambda *_: None  # type: ignore[method-assign]
        worker = Worker(world, "w", configure(world))
        worker.start()
        await send(world, "source", [New(0, b"k", b"%d" % number) for number in range(20)])
        await await_records(world, "out", 20)

        def hold(answer: Answer, own: Callable[[Answer], None]) -> None:
            if held or "out" not in list_topics(answer.request):
                own(answer)
                return
            held.append(lambda: own(answer))
            cluster.timers.at(cluster.now + 13, release)

        def release() -> None:
            held[0]()
            held[0] = lambda: None

        def end(answer: Answer, own: Callable[[Answer], None]) -> None:
            own(answer)
            if held and not answer.request.transaction_result:
                cluster.timers.at(cluster.now + 0.05, release)

        intercept(world, PRODUCE, hold)
        intercept(world, END_TXN, end)
        await send(world, "source", [New(0, b"k", b"20")])
        await asyncio.sleep(40)
        await send(world, "source", [New(0, b"k", b"21")])
        await await_records(world, "out", 22)
        assert held
        assert [int(each.value or b"") for each in read_topic(world.cluster, "out")] == list(range(22))

    world.run(history)
