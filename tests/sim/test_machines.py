"""What the state remembers of consumers that wait for acks, over kills, absences and changes of their config."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from overlay.config import Loaded
from tests.oracle.push import parse_token

from .host import Worker, read_config, warm_up
from .reading import read_topic
from .scenes import await_records, read_values, until
from .world import World
from .writing import ack, write_under_one_key

ACK_WAIT_S = 30
STATE = "overlay.state"


def configure(world: World, **consumers: dict[str, Any]) -> Loaded:
    """A stream of one topic, whose consumers push to topics that are named like them."""
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 1, "topics": {"replication": 1}},
        [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "delivery": "exactly_once", **more}
            for name, more in consumers.items()
        ],
    )


ACKED: dict[str, Any] = {"ack_policy": "explicit", "ack_wait": f"{ACK_WAIT_S}s", "interest": "always"}
PLAIN: dict[str, Any] = {"ack_policy": "none"}


async def start(world: World, loaded: Loaded) -> Worker:
    """Start a worker, and give it the time to serve."""
    world.cluster.create_topic("source")
    worker = Worker(world, "w", loaded)
    worker.start()
    await asyncio.sleep(10)
    return worker


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_dead_letters_of_one_step_are_committed_together(commits: int) -> None:
    """The messages of two consumers are terminated at once. A step is full with one dead letter; the worker is killed when it
    has asked for so many commits, and has given up neither message without its dead letter."""
    warm_up()
    world = World(1, brokers=1, limits={"overlay.dispatch.dispatcher.ROUND_BYTES": 1})

    async def history(world: World) -> None:
        loaded = configure(world, a=ACKED | {"dead_letter": "dead-a"}, b=ACKED | {"dead_letter": "dead-b"})
        worker = await start(world, loaded)
        await write_under_one_key(world, "source", ["0", "1"])
        first, other = [await await_records(world, f"out-{name}", 2) for name in "ab"]
        await asyncio.sleep(5)
        worker.freeze()
        # the first of them answers the fetch that is under way
        await ack(world, "S", first[:1])
        await ack(world, "S", [first[1], other[1]], b"+TERM")
        left = commits

        def kill_in_time(name: str, kind: str) -> None:
            nonlocal left
            left -= (name, kind) == ("w", "EndTxnRequest")
            if not left:
                world.network.watch = None
                worker.kill()

        world.network.watch = kill_in_time
        worker.thaw()
        await until(lambda: not left, "as many commits")
        worker.start()
        await asyncio.sleep(10)
        assert [len(read_topic(world.cluster, f"dead-{name}")) for name in "ab"] == [1, 1]
        await worker.stop()

    world.run(history)


def test_a_machine_that_was_given_up_is_not_restored() -> None:
    """A rate limit needs a machine. It is taken away and given again: consumer sequences go on all the same."""
    warm_up()
    world = World(2, brokers=1)

    async def history(world: World) -> None:
        limited, plain = [configure(world, c=PLAIN | more) for more in ({"rate_limit_bps": 8_000_000}, {})]
        worker = await start(world, limited)
        for number, loaded in enumerate((limited, plain, limited)):
            worker.reload(loaded)
            await asyncio.sleep(5)
            await write_under_one_key(world, "source", [f"{number}.{each}" for each in range(3)])
            await await_records(world, "out-c", 3 * (number + 1))
        tokens = [parse_token(each.header("Nats-Reply-To") or b"") for each in read_topic(world.cluster, "out-c")]
        assert [token.consumer_sequence for token in tokens] == list(range(1, 10))
        await worker.stop()

    world.run(history)


def test_a_checkpoint_keeps_the_machines_of_consumers_that_are_away() -> None:
    """The file of `a` is gone while `b` fills the log of states, of which all is deleted below a checkpoint."""
    warm_up()
    limits = {"overlay.worker.commit.commits.CHECKPOINT_EVERY": 2, "overlay.worker.commit.commits.TELL_ALL_EVERY": 4}
    world = World(3, brokers=1, limits=limits)

    async def history(world: World) -> None:
        both = configure(world, a=ACKED, b=ACKED)
        worker = await start(world, both)
        await write_under_one_key(world, "source", ["0", "1"])
        await await_records(world, "out-a", 2)
        worker.reload(configure(world, b=ACKED))
        log = world.cluster.topics[STATE].partitions[0].log
        await asyncio.sleep(5)
        away_since = log.end
        for number in range(20):
            await write_under_one_key(world, "source", [f"more{number}"])
            await asyncio.sleep(2)
        assert log.start > away_since, "the machine's records are deleted"
        worker.kill()
        await asyncio.sleep(5)
        worker.start()
        worker.reload(both)
        await asyncio.sleep(2 * ACK_WAIT_S)
        assert {"0", "1"} <= {value for value, count in Counter(read_values(world, "out-a")).items() if count > 1}
        await worker.stop()

    world.run(history)


def test_a_machine_with_nothing_to_say_does_not_keep_the_log_of_states() -> None:
    """`quiet` is never given anything."""
    warm_up()
    limits = {"overlay.worker.commit.commits.CHECKPOINT_EVERY": 2, "overlay.worker.commit.commits.TELL_ALL_EVERY": 10}
    world = World(4, brokers=1, limits=limits)

    async def history(world: World) -> None:
        worker = await start(world, configure(world, busy=PLAIN, quiet=ACKED | {"filter_subject": "s.other"}))
        log = world.cluster.topics[STATE].partitions[0].log
        longest = 0
        for number in range(40):
            await write_under_one_key(world, "source", [str(number)])
            await asyncio.sleep(2)
            longest = max(longest, log.end - log.start)
        assert log.end > 80
        assert longest < 50
        await worker.stop()

    world.run(history)
