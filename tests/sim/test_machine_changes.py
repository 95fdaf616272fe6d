"""Consumers with machines that are created, changed and deleted, beside neighbours that do not notice: their session goes on.

The histories are those of test_changes.py; the stream has a consumer with acks from the beginning, so its ack topic is read."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from overlay.consumer.info import ConsumerInfo
from overlay.kafka.header_names import TOKEN
from overlay.worker.dispatch_loop import DispatchLoop
from overlay.worker.session import Session

from .asking import ask
from .host import Worker
from .reading import Found, read_topic
from .scenes import until
from .test_changes import (
    ALL,
    NONE,
    STAYS_S,
    SessionEnds,
    change,
    check_whole,
    count_records,
    describe,
    find_own,
    find_session,
    last_value,
    read_own,
)
from .test_changes import run as run_history
from .world import World
from .writing import PREFIX, ack

ACKED: dict[str, Any] = {"ack_policy": "explicit", "ack_wait": "1h", "interest": "always"}
C = ("S", "c")
INBOX = f"{PREFIX}.replies.c"


def run(act: Callable[[World, list[Worker]], Any], seed: int = 1, partitions: int = 1) -> float:
    return run_history(act, seed, partitions=partitions, others={"acked": ACKED})


def describe_acked(output: str, **more: Any) -> dict[str, Any]:
    return {**describe("c", output), **ACKED, **more}


def find_deliveries(world: World, output: str) -> list[Found]:
    """Return the deliveries of `c` in an output, in order."""
    return [each for each in read_topic(world.cluster, output) if b".c." in (each.header(TOKEN) or b"")]


def find_info(worker: Worker) -> ConsumerInfo | None:
    assert worker.service.shard_manager is not None
    return worker.service.shard_manager.find_info(C)


def count_pending(worker: Worker) -> int:
    info = find_info(worker)
    return -1 if info is None else info.num_ack_pending


async def serve_acks(world: World, output: str, enough: asyncio.Event) -> None:
    """Ack what `c` is given, again and again."""
    done = 0
    while not enough.is_set():
        found = find_deliveries(world, output)
        await ack(world, "S", found[done:])
        done = len(found)
        await asyncio.sleep(0.2)


def is_known(session: Session) -> bool:
    """Return whether anything of a session still knows `c`."""
    assert session.dispatch_loop is not None
    loop, state = session.dispatch_loop, session.commits.state
    places = (state.consumers, state.machines, loop.dispatcher.slots, loop.machine_facts.facts, loop._held)
    return any(C in place for place in (*places, session.assignment.machines, session.assignment.readers))


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_consumer_that_comes_changes_and_goes_pauses_no_neighbour(partitions: int) -> None:
    took: list[float] = []

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        took.append(await change(world, "r1", config=describe_acked("out-c", filter_subject=NONE)))
        await asyncio.sleep(1)
        assert not read_own(world, "c", "out-c")
        took.append(await change(world, "r2", config=describe_acked("out-c", filter_subject=ALL)))
        since = count_records(world)
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "the new filter is in effect")
        values = sorted(map(int, read_own(world, "c", "out-c")))
        assert values[0] <= since, "nothing that follows the answer is left out"
        assert [sequence for sequence, _ in find_own(world, "c", "out-c")] == list(range(1, len(values) + 1))
        await ack(world, "S", find_deliveries(world, "out-c")[:3])
        await until(lambda: 0 <= count_pending(crew[0]) <= len(read_own(world, "c", "out-c")) - 3, "acks count")
        config = describe_acked("out-c", filter_subject=ALL, max_ack_pending=7)
        took.append(await change(world, "r3", config=config))
        took.append(await change(world, "r4", "consumer.pause", consumer="c", pause_until="2099-01-01T00:00:00Z"))
        took.append(await change(world, "r5", "consumer.delete", consumer="c"))
        count = len(read_own(world, "c", "out-c"))
        await asyncio.sleep(1)
        assert len(read_own(world, "c", "out-c")) == count
        assert not is_known(session)
        assert find_session(crew[0]) is session, "no session was begun anew"

    assert run(act, partitions=partitions) < STAYS_S
    assert max(took) < 0.5, took


@pytest.mark.parametrize("partitions", [1, 2])
def test_another_filter_begins_with_what_is_not_delivered(partitions: int) -> None:
    """Five messages are pending, and many others wait behind them, of which some were offered. Both filters take all."""

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        await change(world, "c", config=describe_acked("out-c", max_ack_pending=5))
        await until(lambda: len(read_own(world, "c", "out-c")) == 5, "it is served")
        for turn in range(3):
            await asyncio.sleep(1)
            filters = [ALL, f"s.none{turn}"]
            await change(world, f"f{turn}", config=describe_acked("out-c", max_ack_pending=5, filter_subjects=filters))
        enough = asyncio.Event()
        acking = asyncio.create_task(serve_acks(world, "out-c", enough))
        await until(lambda: len(read_own(world, "c", "out-c")) >= count_records(world) - 20, "it has caught up")
        assert find_session(crew[0]) is session
        values = read_own(world, "c", "out-c")
        if partitions == 1:
            check_whole(world, "c", "out-c")
        assert sorted(map(int, values))[: len(values) - 20] == list(range(len(values) - 20)), "each once"
        enough.set()
        await acking

    assert run(act, partitions=partitions) < STAYS_S


@pytest.mark.parametrize("seed", range(3))
def test_a_namesake_is_another_consumer(seed: int) -> None:
    """Acks, naks and terms of the former one's deliveries come before, while and after it is deleted, and while the one of
    its name has the same messages pending."""

    async def act(world: World, crew: list[Worker]) -> None:
        session, words = find_session(crew[0]), (b"+ACK", b"+TERM", b"-NAK", b"+WPI")
        for turn in range(3):
            before = len(find_own(world, "c", "shared"))
            await change(world, f"c{turn}", config=describe_acked("shared", max_ack_pending=8))
            await until(lambda b=before: len(find_own(world, "c", "shared")) == b + 8, "it is served")  # type: ignore[misc]
            found = find_own(world, "c", "shared")[before:]
            assert found == [(number + 1, str(number)) for number in range(8)], "from the beginning, each once"
            # half of the former one's acks are on their way when it is deleted
            former = find_deliveries(world, "shared")[before:]
            acking = [asyncio.create_task(ack(world, "S", former[:4], word)) for word in words]
            await asyncio.sleep(0.02 * turn)
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            await change(world, f"n{turn}", config=describe_acked("shared", max_ack_pending=8))
            await asyncio.gather(*acking)
            for word in words:
                await ack(world, "S", former, word)
            await asyncio.sleep(1)
            assert find_session(crew[0]) is session
            given = find_own(world, "c", "shared")[before:]
            own = given[-8:]
            assert own == [(number + 1, str(number)) for number in range(8)], "nothing of it was acked or given again"
            assert count_pending(crew[0]) == 8
            await change(world, f"e{turn}", "consumer.delete", consumer="c")
            assert not is_known(session)

    assert run(act, seed) < STAYS_S


def test_a_pull_consumer_is_deleted_with_requests_that_wait() -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        world.cluster.create_topic(INBOX)
        for turn in range(2):
            known = len(read_topic(world.cluster, INBOX))
            config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": NONE}
            await change(world, f"c{turn}", config=config)
            await ask(world, f"p{turn}", "consumer.next", "S", inbox=INBOX, consumer="c", batch=1, expires="1h")
            await until(
                lambda: (info := find_info(crew[0])) is not None and info.num_waiting == 1, "it waits", 20, 0.02
            )
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            await until(lambda k=known: len(read_topic(world.cluster, INBOX)) > k, "it is told", 5)  # type: ignore[misc]
            (told,) = read_topic(world.cluster, INBOX)[known:]
            assert told.header("Nats-Status") == b"409"
            assert find_session(crew[0]) is session
            assert not is_known(session)

    assert run(act) < STAYS_S


def test_a_step_that_takes_long_holds_up_its_machines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads records again, from a partition that answers late. A change waits for it, and no neighbour without a
    machine does."""
    step, slow = DispatchLoop._step, [False]

    async def step_late(self: DispatchLoop, *args: Any) -> bool:
        if slow[0]:
            await asyncio.sleep(2)
        return await step(self, *args)

    monkeypatch.setattr(DispatchLoop, "_step", step_late)
    gaps: list[float] = []

    async def act(world: World, crew: list[Worker]) -> None:
        session, slow[0] = find_session(crew[0]), True
        watch = asyncio.create_task(measure(world, gaps))
        await change(world, "c", config=describe_acked("out-c"))
        await change(world, "f", config=describe_acked("out-c", filter_subject=ALL))
        await change(world, "d", "consumer.delete", consumer="c")
        watch.cancel()
        slow[0] = False
        assert find_session(crew[0]) is session

    run(act)
    assert max(gaps) < STAYS_S, "a neighbour without a machine was given records all the time"


async def measure(world: World, gaps: list[float]) -> None:
    """Note how long `n` was given nothing, until cancelled."""
    loop, known = asyncio.get_running_loop(), await last_value(world)
    since = loop.time()
    while True:
        await asyncio.sleep(0.05)
        if (value := await last_value(world)) != known:
            known, since = value, loop.time()
        gaps.append(loop.time() - since)


MOMENTS = ["_dismiss_machines", "_admit_machines", "_make_unit", "_finish"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_session_that_ends_while_it_takes_a_change_up(
    moment: str, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the change is committed, or after it and before the shard knows. Nothing is lost or comes twice."""
    place = SessionEnds(monkeypatch, moment, is_killed)

    async def act(world: World, crew: list[Worker]) -> None:
        worker = crew[0]
        change_with_an_end = functools.partial(place.change, world, worker)
        await change_with_an_end("c", config=describe_acked("shared", max_ack_pending=5))
        await until(lambda: len(read_own(world, "c", "shared")) == 5, "it is served")
        await change_with_an_end(
            "f", config=describe_acked("shared", max_ack_pending=5, filter_subjects=[ALL, "s.other"])
        )
        await ack(world, "S", find_deliveries(world, "shared"))
        await until(lambda: len(read_own(world, "c", "shared")) == 10, "it goes on")
        assert check_whole(world, "c", "shared") == list(range(10))
        await change_with_an_end("d", "consumer.delete", consumer="c")
        session = find_session(worker)
        assert not is_known(session)
        await change_with_an_end("n", config=describe_acked("shared", max_ack_pending=5))
        await until(lambda: len(read_own(world, "c", "shared")) == 15, "the one of its name is served")
        await asyncio.sleep(1)
        assert find_own(world, "c", "shared")[10:] == [(number + 1, str(number)) for number in range(5)]

    run(act)


def test_another_output_takes_a_new_session() -> None:
    """What is pending goes out again there."""

    async def act(world: World, crew: list[Worker]) -> None:
        await change(world, "c", config=describe_acked("out-c", max_ack_pending=5))
        await until(lambda: len(read_own(world, "c", "out-c")) == 5, "it is served")
        session = find_session(crew[0])
        await change(world, "o", config=describe_acked("out-d", max_ack_pending=5))
        await until(lambda: len(read_own(world, "c", "out-d")) == 5, "it delivers there")
        assert find_session(crew[0]) is not session
        assert read_own(world, "c", "out-d") == read_own(world, "c", "out-c")

    run(act)
