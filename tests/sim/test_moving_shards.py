"""Shards move between workers that come, go and are killed, and their neighbours do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from overlay.config import Loaded
from overlay.kafka.own_topics import control_topic, shard_of

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .kafka.session import Answer
from .process import State
from .reading import read_topic
from .scenes import LIST_OFFSETS, intercept, read_values, until
from .test_drained import find_owned, measure_gap, write
from .world import World
from .writing import PREFIX

SHARDS = 6
MOVES_S = 1.0
"""Longest time without a delivery for a consumer whose shard moves to another worker."""
KILLED_S = 7.0
"""The same if its worker was killed: the group's session timeout, and a second."""
STAYS_S = 0.4
"""The same for a consumer whose shard stays: two records and a transaction."""
READY_S = 3.0
FROZEN_S = 4.0
"""Less than the session timeout: the group waits."""
JOIN = "JoinGroupRequest"
INIT_PRODUCER_ID = 22
"""The API key of requests that open a journal."""


def list_names(shards: int) -> list[str]:
    """A consumer for each shard, in the order of the shards."""
    return [next(f"c{n}" for n in range(100) if shard_of(("S", f"c{n}"), shards) == shard) for shard in range(shards)]


def configure(world: World, worker: str, shards: int) -> Loaded:
    consumers = [
        {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none"}
        for name in list_names(shards)
    ]
    service = {
        "kafka": {"bootstrap.servers": world.bootstrap},
        "shards": shards,
        "fleet": {"publish": False, "worker": worker},
    }
    return read_config(service, [{"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}], consumers)


async def await_balance(workers: list[Worker], shards: int = SHARDS) -> None:
    """Wait until these workers serve all shards, each of them equally many, up to one."""

    def is_even() -> bool:
        owned = [find_owned(each) for each in workers]
        sizes = [len(each) for each in owned]
        return (
            sorted(number for each in owned for number in each) == list(range(shards))
            and max(sizes) - min(sizes) <= 1
            and sum(len(each.service.sessions) for each in workers) == shards
        )

    await until(is_even, f"{len(workers)} workers serve all shards")


def run(
    seed: int, count: int, act: Callable[[World, list[Worker]], Awaitable[None]], shards: int = SHARDS
) -> dict[int, float]:
    """Have workers serve all shards while records come, and do something to them. Check that each record is delivered once, in
    order. Return the longest time without a delivery of each shard's consumer, in seconds."""
    warm_up()
    world = World(seed, brokers=1)

    async def history(world: World) -> dict[int, float]:
        world.cluster.create_topic("source")
        workers = [Worker(world, name, configure(world, name, shards)) for name in (f"w{n}" for n in range(count))]
        for worker in workers:
            worker.start()
        await asyncio.sleep(0)  # then each has its service
        await await_balance(workers, shards)
        enough = asyncio.Event()
        writing = asyncio.create_task(write(world, enough))
        await asyncio.sleep(READY_S)
        assert all(len(read_topic(world.cluster, f"out-{name}")) for name in list_names(shards))
        await act(world, workers)
        await asyncio.sleep(READY_S)
        enough.set()
        written = await writing
        gaps = {}
        for shard, name in enumerate(list_names(shards)):
            await until(lambda name=name: len(read_values(world, f"out-{name}")) >= written, name)  # type: ignore[misc]
            assert read_values(world, f"out-{name}") == [str(number) for number in range(written)], (
                "each once, in order"
            )
            gaps[shard] = measure_gap(world, f"out-{name}")
        for worker in workers:
            if worker.process.state is not State.DEAD:
                await worker.stop()
        return gaps

    return world.run(history)


@pytest.mark.parametrize("seed", range(3))
def test_workers_are_restarted_one_after_the_other(seed: int) -> None:
    async def restart_all(world: World, workers: list[Worker]) -> None:
        for worker in workers:
            await worker.stop()
            await await_balance([each for each in workers if each is not worker])
            worker.start()
            await await_balance(workers)

    gaps = run(seed, 3, restart_all)
    assert max(gaps.values()) < MOVES_S, gaps


def test_a_worker_that_gains_no_shard_holds_up_none() -> None:
    """Three workers and two shards: one that has a shard is stopped."""

    async def stop(world: World, workers: list[Worker]) -> None:
        owner = next(each for each in workers if find_owned(each))
        await owner.stop()
        await await_balance([each for each in workers if each is not owner], 2)

    gaps = run(11, 3, stop, shards=2)
    assert max(gaps.values()) < MOVES_S, gaps


def test_a_worker_is_killed() -> None:
    """Its shards wait for the group to miss it; those of the other two do not."""
    moved: set[int] = set()

    async def kill(world: World, workers: list[Worker]) -> None:
        moved.update(find_owned(workers[0]))
        workers[0].kill()
        await await_balance(workers[1:])

    gaps = run(5, 3, kill)
    assert len(moved) == SHARDS // 3
    assert max(gap for shard, gap in gaps.items() if shard in moved) < KILLED_S, gaps
    assert max(gap for shard, gap in gaps.items() if shard not in moved) < STAYS_S, gaps


def test_a_worker_comes_while_another_one_is_frozen() -> None:
    """The group waits for the frozen one, for as long as a session lasts. What runs runs on meanwhile."""
    stays: set[int] = set()

    async def freeze(world: World, workers: list[Worker]) -> None:
        first, second, third = workers
        await third.stop()
        await await_balance([first, second])
        before = find_owned(second)
        first.freeze()
        third.start()
        await asyncio.sleep(FROZEN_S)
        first.thaw()
        await await_balance(workers)
        stays.update(before & find_owned(second))

    gaps = run(7, 3, freeze)
    assert stays
    assert max(gap for shard, gap in gaps.items() if shard in stays) < MOVES_S, gaps


class LateEnds:
    """Holds back the answers where the control topic ends, from when a worker joins its group until `let_go`."""

    def __init__(self, world: World, worker: Worker) -> None:
        self._is_on = False
        self._waiting: list[Callable[[], None]] = []
        self._worker = worker
        world.network.watch = self._watch
        intercept(world, LIST_OFFSETS, self._hold)

    def _watch(self, name: str, kind: str) -> None:
        self._is_on = self._is_on or (name == self._worker.name and kind == JOIN)

    def _hold(self, answer: Answer, handle: Callable[[Answer], None]) -> None:
        if self._is_on and any(topic == control_topic(PREFIX) for topic, *_ in answer.request.topics):
            self._waiting.append(lambda: handle(answer))
        else:
            handle(answer)

    def let_go(self) -> None:
        self._is_on = False
        for handle in self._waiting:
            handle()


def test_a_shard_that_comes_back_before_it_is_given_up_runs_on() -> None:
    """A second worker comes and goes while the first has not heard yet where the control topic ends."""

    async def come_and_go(world: World, workers: list[Worker]) -> None:
        first, second = workers
        await second.stop()
        await await_balance([first], 2)
        before = list(first.service.sessions)
        manager = first.service.shard_manager
        assert manager is not None
        late = LateEnds(world, second)
        second.start()
        await until(lambda: len(manager.membership.owned) == 1, "a shard is the second worker's", pause_s=0.05)
        await second.stop()
        await until(lambda: len(manager.membership.owned) == 2, "both are the first worker's", pause_s=0.05)
        world.network.watch = None
        late.let_go()
        await asyncio.sleep(READY_S)
        assert [id(session) for session in first.service.sessions] == [id(session) for session in before]

    gaps = run(13, 2, come_and_go, shards=2)
    assert max(gaps.values()) < MOVES_S, gaps


def test_a_request_that_waits_for_a_rebalance_has_no_journal_opened_anew() -> None:
    """Its shard stays. To open a journal costs InitProducerId and a read of the control topic to its end."""
    opened: list[str] = []

    def note(answer: Answer, handle: Callable[[Answer], None]) -> None:
        if str(answer.request.transactional_id).startswith("overlay.control"):
            opened.append(answer.request.transactional_id)
        handle(answer)

    async def freeze(world: World, workers: list[Worker]) -> None:
        first, second, third = workers
        await third.stop()
        await await_balance([first, second])
        stays = min(find_owned(second))

        async def inquire(id: str) -> None:
            await ask(world, id, "consumer.info", "S", consumer=list_names(SHARDS)[stays])
            assert (await await_answer(world, id))["overlay"]["state"] == "running"

        intercept(world, INIT_PRODUCER_ID, note)
        await inquire("before")
        assert opened == [f"overlay.control.{stays}"]
        first.freeze()
        third.start()
        await asyncio.sleep(FROZEN_S / 2)
        inquiring = asyncio.create_task(inquire("within"))
        await asyncio.sleep(FROZEN_S / 2)
        assert not inquiring.done(), "the second worker has heard of the rebalance"
        first.thaw()
        await await_balance(workers)
        await inquiring
        assert stays in find_owned(second)

    run(7, 3, freeze)
    assert len(opened) == 1
