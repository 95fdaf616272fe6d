"""Consumers that left their cursor since too much was undelivered come back to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from overlay.config import Loaded
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition
from overlay.state.amend import amend
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState

from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .reading import read_topic
from .scenes import await_records, await_values, intercept, read_values, until
from .world import World
from .writing import ack, write_together, write_under_one_key

ID = ("S", "c")
FULL = 8
"""Undelivered messages with which a consumer leaves its cursor."""


def configure(world: World) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {
                "stream": "S",
                "durable_name": "c",
                "deliver_subject": "out",
                "ack_policy": "explicit",
                "ack_wait": "1h",
                "interest": "always",
            }
        ],
    )


def put_back(state: ShardState) -> Delta:
    """Let the consumer read from the start, while its machine knows what was delivered."""
    own = {("source", 0): LogPosition(0)}
    return Delta(consumers={ID: ConsumerState(state.consumers[ID].sequence, own)})


def test_a_consumer_that_is_offered_what_it_has_delivered_does_not_stay_parked() -> None:
    warm_up()
    world = World(1, brokers=1, limits={"overlay.worker.backpressure.FULL": FULL})

    async def history(world: World) -> None:
        world.cluster.create_topic("source")
        loaded = configure(world)
        worker = Worker(world, "w", loaded)
        worker.start()
        before = [str(number) for number in range(2 * FULL)]
        await write_under_one_key(world, "source", before)
        await await_values(world, "out", before)
        await worker.stop()
        async with Admin(loaded.service.kafka) as admin:
            assert await amend(loaded.service, admin, put_back) == [0]
        # records come after the first step of the machine, which would let them go
        world.faults.only, world.faults.slow, world.faults.slow_s = {"FetchRequest"}, 1.0, (1.0, 1.0)
        worker.start()
        await asyncio.sleep(20)
        await write_under_one_key(world, "source", ["last"])
        await await_values(world, "out", ["last"])
        await worker.stop()

    world.run(history)


FETCH = 1
"""The API key of fetch requests."""
GAP = 200_000
"""Bytes that are worth to be left out."""


def configure_two(world: World, filters: Mapping[str, Sequence[str]]) -> Loaded:
    """A stream with a chunk for each record, and consumers of one unacked message that push to topics named like them."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}, "index": {"chunk_records": 1}}],
        [
            {
                "stream": "S",
                "durable_name": name,
                "deliver_subject": f"out-{name}",
                "filter_subjects": subjects,
                "ack_policy": "explicit",
                "ack_wait": "1h",
                "max_ack_pending": 1,
                "interest": "always",
            }
            for name, subjects in filters.items()
        ],
    )


async def await_chunks(world: World, count: int) -> None:
    """Wait until the index has so many headers."""
    await until(lambda: len(read_topic(world.cluster, "overlay.S.index")) >= count, f"{count} headers")


async def find_parked(worker: Worker, count: int) -> set[ConsumerId]:
    """Return the parked consumers, which go on changing, once there are so many."""

    def find() -> set[ConsumerId]:
        return {consumer for session in worker.service.sessions for consumer in session.cursors.parked}

    await until(lambda: len(find()) == count, f"{count} parked consumers")
    (session,) = worker.service.sessions
    return session.cursors.parked


async def take(world: World, topic: str, after: int, count: int) -> None:
    """Ack the deliveries from number `after` on, one after the other, until there are `count`."""
    for number in range(after, count):
        found = await await_records(world, topic, number + 1)
        await ack(world, "S", found[number : number + 1])


def test_a_consumer_that_comes_back_to_a_cursor_is_given_what_the_others_there_skip() -> None:
    """`some` is back first, and its cursor will skip what only `all` wants; `all` joins it before it has read on."""
    warm_up()
    limits = {"overlay.worker.backpressure.FULL": FULL, "overlay.kafka.fetcher.PARTITION_BYTES": 1}
    world = World(2, brokers=1, limits=limits)
    held: list[Callable[[], None]] | None = []

    def hold(answer: Answer, own: Callable[[Answer], None]) -> None:
        """Have the source not answer at the place where both consumers leave it."""
        offsets = [row[2] for topic, rows in answer.request.topics for row in rows if topic == "source"]
        if held is not None and FULL in offsets:
            held.append(lambda: own(answer))
        else:
            own(answer)

    async def history(world: World) -> None:
        nonlocal held
        world.cluster.create_topic("source")
        worker = Worker(world, "w", configure_two(world, {}))
        worker.start()
        await write_together(world, "source", [f"first{number}" for number in range(FULL)], key="both")
        wide = [f"{number}".ljust(GAP, ".") for number in range(2)]
        for key, value in (("both", "before"), ("one", wide[0]), ("one", wide[1]), ("both", "behind")):
            await write_together(world, "source", [value], key=key)
        await await_chunks(world, 5)
        await worker.stop()
        intercept(world, FETCH, hold)
        worker.reload(configure_two(world, {"some": ["s.both"], "all": ["s.both", "s.one"]}))
        worker.start()
        parked = await find_parked(worker, 2)
        await take(world, "out-some", 0, FULL)
        await until(lambda: parked == {("S", "all")}, "the first is back")
        await take(world, "out-all", 0, FULL)
        await until(lambda: parked == set(), "the other is back")
        waiting, held = held, None
        for go_on in waiting or ():
            with world.at_cluster("the source answers"):
                go_on()
        await take(world, "out-some", FULL, FULL + 2)
        await take(world, "out-all", FULL, FULL + 4)
        assert read_values(world, "out-all")[FULL:] == ["before", *wide, "behind"]
        await worker.stop()

    world.run(history)
