"""Outputs and states that lose the marker of a transaction which other transactions of the same owner follow.

What the product does about it: overlay/output/own_markers.py.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.output.own_markers import PATIENCE_S
from overlay.output.transaction import DEADLINE_S, Transactions

from .host import Worker, read_config
from .kafka.codes import Code
from .kafka.session import Answer
from .scenes import await_values, intercept, read_values, until
from .test_changes import change
from .test_lost_markers import END, OUTPUT, PRODUCERS, STATE, find, is_open, make_world
from .world import World
from .writing import New, send

OTHER = ("other", 0)
SHORT_S = 0.02
"""Time without a leader: enough to lose a marker, and too short for the worker to notice it."""
STREAMS: list[dict[str, Any]] = [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}]


def describe(world: World) -> dict[str, Any]:
    return {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}}


def configure(world: World) -> Loaded:
    """Two consumers of a shard, each with the records of one key."""
    return read_config(
        describe(world),
        STREAMS,
        [
            {
                "stream": "S",
                "durable_name": "c",
                "deliver_subject": "out",
                "ack_policy": "none",
                "filter_subject": "s.out",
            },
            {
                "stream": "S",
                "durable_name": "d",
                "deliver_subject": "other",
                "ack_policy": "none",
                "filter_subject": "s.other",
            },
        ],
    )


async def deliver_first(world: World) -> Worker:
    """Have a worker deliver a record, `0`, to the first output."""
    world.cluster.create_topic("source")
    worker = Worker(world, "w", configure(world))
    worker.start()
    await send(world, "source", [New(0, b"out", b"0")])
    await await_values(world, "out", ["0"])
    return worker


class Losses:
    """Makes transactions of a shard end while partitions have no leader, so that these lose their markers; and kills the
    worker before a later transaction ends."""

    def __init__(self, world: World, worker: Worker) -> None:
        self._world, self._worker = world, worker
        self._awaited = set[tuple[str, int]]()
        """Where the next transaction has to have something open to lose its markers."""
        self._places: tuple[tuple[str, int], ...] = ()
        self._left = 0
        self._victim: tuple[tuple[str, int], int] | None = None
        self.has_killed = False
        intercept(world, END, self._end)

    def _end(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        if self._left and all(is_open(self._world, place) for place in self._awaited):
            self._left -= 1
            self._awaited = set(self._places)
            for place in self._places:
                self._world.cluster.remove_leader(*place)
        elif self._victim is not None and is_open(self._world, self._victim[0]):
            place, end = self._victim
            if find(self._world, place).log.end > end:
                self._victim, self.has_killed = None, True
                self._worker.kill()
                return
        handle(answer)

    async def lose(self, *places: tuple[str, int], count: int = 1) -> None:
        """Deliver a record, `lost`, to each output among `places`, or to the first output if none is. The transaction loses
        its markers in these places. So do the next ones that end what is open there, `count` of them in all."""
        outputs = {OUTPUT, OTHER} & set(places) or {OUTPUT}
        self._awaited, self._places, self._left = {*places, *outputs}, places, count
        await send(self._world, "source", [New(0, topic.encode(), b"lost") for topic, _ in sorted(outputs)])
        for left in reversed(range(count)):
            await until(
                functools.partial(self._is_down_to, left), "a transaction has ended without leaders", 60.0, SHORT_S
            )
            await asyncio.sleep(SHORT_S)
            for place in places:
                self._world.cluster.restore_leader(*place)
                assert is_open(self._world, place)

    def _is_down_to(self, left: int) -> bool:
        return self._left == left

    def kill_at(self, place: tuple[str, int]) -> None:
        """Kill the worker when a transaction that has new records in a place is to end."""
        self._victim = place, find(self._world, place).log.end


async def hide(world: World, transactions: Transactions, place: tuple[str, int]) -> Callable[[], None]:
    """Have brokers not tell what is open in a partition, until the returned function is called. The markers of the last of
    these transactions are awaited before."""
    await until(lambda: not transactions._markers.unseen, "the last transaction has its markers", 20.0, SHORT_S)
    hidden = [place]

    def describe_producers(answer: Answer, handle: Callable[[Answer], None]) -> None:
        answer.request.topics = [
            (topic, [index for index in indexes if (topic, index) not in hidden], tags)
            for topic, indexes, tags in answer.request.topics
        ]
        handle(answer)

    intercept(world, PRODUCERS, describe_producers)
    return hidden.clear


def test_a_worker_completes_its_own_commit_whose_marker_was_lost() -> None:
    """Readers of the output would wait for it until there is more to deliver."""
    world = make_world(10)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        await Losses(world, worker).lose(OUTPUT)
        await await_values(world, "out", ["0", "lost"], 10.0)
        await send(world, "source", [New(0, b"out", b"2")])
        await await_values(world, "out", ["2"])
        assert read_values(world, "out") == ["0", "lost", "2"]
        await worker.stop()

    world.run(history)


def test_a_worker_completes_a_commit_in_an_output_that_it_has_left() -> None:
    """Its consumer delivers elsewhere, and no other consumer writes to the output."""
    world = make_world(10)
    config = {"durable_name": "m", "deliver_subject": "out", "ack_policy": "none", "filter_subject": "s.out"}

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        worker = Worker(world, "w", read_config(describe(world), STREAMS, []))
        worker.start()
        await change(world, "c", config=config)
        await send(world, "source", [New(0, b"out", b"0")])
        await await_values(world, "out", ["0"])
        (session,) = worker.service.sessions
        reveal = await hide(world, session.commits.transactions, OUTPUT)
        await Losses(world, worker).lose(OUTPUT)
        await change(world, "m", config={**config, "deliver_subject": "elsewhere"})
        # has the producer ask for metadata, and not for those of the output that it has left
        await change(world, "d", config={**config, "durable_name": "d", "deliver_subject": "other"})
        assert is_open(world, OUTPUT)
        reveal()
        await await_values(world, "out", ["0", "lost"], 10.0)
        client = session.commits.transactions._producer.client
        await until(lambda: "out" not in client._topics, "the producer asks for the output no more")
        assert worker.service.sessions == [session]
        await worker.stop()

    world.run(history)


def test_a_commit_that_a_later_transaction_follows_elsewhere_is_completed() -> None:
    """The output does not tell that it is open. The worker lives on, writes to another output, and is killed before a
    transaction there ends. That one is aborted."""
    world = make_world(9)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        await send(world, "source", [New(0, b"other", b"0")])
        await await_values(world, "other", ["0"])
        (session,) = worker.service.sessions
        losses, reveal = Losses(world, worker), await hide(world, session.commits.transactions, OUTPUT)
        await losses.lose(OUTPUT)
        await send(world, "source", [New(0, b"other", b"1")])
        await await_values(world, "other", ["1"])
        losses.kill_at(OTHER)
        await send(world, "source", [New(0, b"other", b"2")])
        await until(lambda: losses.has_killed, "the worker is killed before its transaction ends")
        assert is_open(world, OUTPUT)
        reveal()
        worker.start()
        await send(world, "source", [New(0, b"out", b"3")])
        await await_values(world, "other", ["2"])
        await await_values(world, "out", ["3"])
        assert read_values(world, "out") == ["0", "lost", "3"]
        assert read_values(world, "other") == ["0", "1", "2"]
        await worker.stop()

    world.run(history)


def test_a_commit_survives_an_abort_elsewhere_while_its_output_does_not_tell() -> None:
    """Another output refuses its batch, so the worker gives up its next transaction. The new owner has to tell the two
    apart."""
    world = make_world(12)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        await send(world, "source", [New(0, b"other", b"0")])
        await await_values(world, "other", ["0"])
        (session,) = worker.service.sessions
        reveal = await hide(world, session.commits.transactions, OUTPUT)
        await Losses(world, worker).lose(OUTPUT)
        world.cluster.refuse_produce("other", Code.POLICY_VIOLATION)
        await send(world, "source", [New(0, b"other", b"1")])
        await until(lambda: session not in worker.service.sessions, "the session ends", pause_s=SHORT_S)
        reveal()
        world.cluster.refuse_produce("other", Code.NONE)
        await send(world, "source", [New(0, b"out", b"2")])
        await await_values(world, "out", ["2"])
        await await_values(world, "other", ["1"])
        assert read_values(world, "out") == ["0", "lost", "2"]
        assert read_values(world, "other") == ["0", "1"]
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize("count", [1, 2], ids=["once", "again"])
@pytest.mark.parametrize(
    "places",
    [(OUTPUT,), (OUTPUT, OTHER), (STATE,), (STATE, OUTPUT)],
    ids=["output", "two outputs", "state", "state and output"],
)
def test_a_commit_that_an_aborted_transaction_follows_in_its_partitions_is_kept(
    places: tuple[tuple[str, int], ...], count: int
) -> None:
    """The worker lives on, writes to the same output, and is killed before that transaction ends. Its abort ends what the
    partitions have open, so the commit before it has to be completed first, also if that loses the markers again."""
    world = make_world(9)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        await send(world, "source", [New(0, b"other", b"0")])
        await await_values(world, "other", ["0"])
        losses = Losses(world, worker)
        await losses.lose(*places, count=count)
        losses.kill_at(OUTPUT)
        await send(world, "source", [New(0, topic, b"1") for topic in (b"out", b"other")])
        await until(lambda: losses.has_killed, "the worker is killed before its transaction ends")
        worker.start()
        await send(world, "source", [New(0, b"out", b"2")])
        await await_values(world, "out", ["2"])
        await await_values(world, "other", ["1"])
        assert read_values(world, "out") == ["0", "lost", "1", "2"]
        assert read_values(world, "other") == ["0", *(["lost"] if OTHER in places else []), "1"]
        await worker.stop()

    world.run(history)


def test_a_partition_that_does_not_tell_is_in_no_transaction() -> None:
    """If it were, the end of this transaction would be that of a commit which has lost its marker there."""
    world = make_world(13)

    async def history(world: World) -> None:
        worker = await deliver_first(world)
        (session,) = worker.service.sessions
        losses, reveal = Losses(world, worker), await hide(world, session.commits.transactions, OUTPUT)
        await losses.lose(OUTPUT)
        losses.kill_at(OUTPUT)
        await send(world, "source", [New(0, b"out", b"1")])
        await asyncio.sleep(PATIENCE_S + DEADLINE_S / 2)
        reveal()
        await until(lambda: losses.has_killed, "the worker is killed before its transaction ends")
        worker.start()
        await send(world, "source", [New(0, b"out", b"2")])
        await await_values(world, "out", ["2"])
        assert read_values(world, "out") == ["0", "lost", "1", "2"]
        await worker.stop()

    world.run(history)
