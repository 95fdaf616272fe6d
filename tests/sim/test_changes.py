"""Consumers that are created, changed and deleted, beside neighbours that do not notice: their session goes on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from overlay.config import Loaded
from overlay.consumer.acks import parse_token
from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.own_topics import shard_of
from overlay.state.shard_state import ConsumerId
from overlay.worker import changes, shard
from overlay.worker.change_queue import ChangeQueue
from overlay.worker.change_setup import prepare
from overlay.worker.changes import Change
from overlay.worker.cursors import cursors
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.intake import Look, Round
from overlay.worker.session import Session

from .asking import ask, await_answer
from .host import Worker, read_config, warm_up
from .process import State
from .reading import read_topic
from .scenes import await_values, read_sequences, read_values, until
from .test_drained import find_owned, measure_gap, write
from .world import World
from .writing import New, send

NEIGHBOURS = {"n": "out-n", "p": "shared", "q": "shared"}
ALL, NONE = "s.k", "s.none"
STAYS_S = 0.4
"""Longest time without a delivery for a neighbour: two records and a transaction."""
READY_S = 3.0

Act = Callable[[World, list[Worker]], Awaitable[None]]


def describe(name: str, output: str, **more: Any) -> dict[str, Any]:
    return {"durable_name": name, "deliver_subject": output, "ack_policy": "none", **more}


def configure(world: World, worker: str, others: Mapping[str, Mapping[str, Any]]) -> Loaded:
    """`others`: further consumers by name, each with an output of its own."""
    service = {
        "kafka": {"bootstrap.servers": world.bootstrap},
        "shards": 1,
        "fleet": {"publish": False, "worker": worker},
        "topics": {"replication": 1},
    }
    stream: dict[str, Any] = {"name": "S", "topics": ["source"], "subject": {"template": "s.{key}"}}
    consumers = [describe(name, output) for name, output in NEIGHBOURS.items()]
    consumers += [describe(name, f"out-{name}", **more) for name, more in others.items()]
    return read_config(service, [stream], [{"stream": "S", **each} for each in consumers])


def run(
    act: Act,
    seed: int = 1,
    workers: int = 1,
    partitions: int = 1,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> float:
    """Have consumers change while records come. Check that each neighbour is given each record once, in order. Return the
    longest time without a delivery for one of them, in seconds. `others`: further neighbours (`configure`)."""
    warm_up()
    world = World(seed, brokers=1)
    outputs = NEIGHBOURS | {name: f"out-{name}" for name in others or ()}

    async def history(world: World) -> float:
        world.cluster.create_topic("source", partitions)
        crew = [Worker(world, f"w{n}", configure(world, f"w{n}", others or {})) for n in range(workers)]
        await begin(crew[0])
        enough = asyncio.Event()
        writing = asyncio.create_task(write(world, enough, partitions))
        await asyncio.sleep(READY_S)
        await act(world, crew)
        await asyncio.sleep(READY_S)
        enough.set()
        expected = [str(number) for number in range(await writing)]
        for name, output in outputs.items():
            await until(lambda n=name, o=output: len(read_own(world, n, o)) >= len(expected), name)  # type: ignore[misc]
            own = read_own(world, name, output)
            assert (own if partitions == 1 else sorted(own, key=int)) == expected, f"{name}: each once, in order"
            for parity in range(partitions):
                some = [int(value) for value in own if int(value) % partitions == parity]
                assert some == sorted(some), f"{name}: in the order of each partition"
        for worker in crew:
            if worker.process.state is not State.DEAD:
                await worker.stop()
        return max(measure_gap(world, output) for output in outputs.values())

    return world.run(history)


async def begin(worker: Worker) -> None:
    """Start a worker, and wait until it serves the shard."""
    worker.start()
    await asyncio.sleep(1)
    await until(lambda: bool(worker.service.sessions), "the shard is served")


def find_own(world: World, name: str, output: str) -> list[tuple[int, str]]:
    """Return the consumer sequence and the value of each of a consumer's deliveries, in order."""
    found = []
    for record in read_topic(world.cluster, output):
        token = parse_token((record.header("Nats-Reply-To") or b"").decode())
        if token is not None and token.consumer == name:
            found.append((token.consumer_seq, (record.value or b"").decode()))
    return found


def read_own(world: World, name: str, output: str) -> list[str]:
    """Return the values of a consumer's deliveries, in order."""
    return [value for _, value in find_own(world, name, output)]


def check_whole(world: World, name: str, output: str) -> list[int]:
    """Check that a consumer was given records without a gap, with sequences from 1 on. Return their values."""
    found = find_own(world, name, output)
    values = [int(value) for _, value in found]
    assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
    assert values == list(range(values[0], values[0] + len(values)))
    return values


def find_session(worker: Worker) -> Session:
    (session,) = worker.service.sessions
    return session


async def change(world: World, id: str, op: str = "consumer.create", **body: Any) -> float:
    """Ask for something and wait for the answer. Return how many seconds that took."""
    began = asyncio.get_running_loop().time()
    await ask(world, id, op, "S", **body)
    answer = await await_answer(world, id)
    assert "error" not in answer, answer
    return asyncio.get_running_loop().time() - began


def count_records(world: World) -> int:
    """Return how many records there are, of which the last has this number less one."""
    return len(read_topic(world.cluster, "source"))


async def last_value(world: World) -> int:
    return int(read_values(world, "out-n")[-1])


@pytest.mark.parametrize("output", ["out-c", "shared"])
def test_a_consumer_that_comes_changes_and_goes_pauses_no_neighbour(output: str) -> None:
    took: list[float] = []

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        took.append(await change(world, "r1", config=describe("c", output, filter_subject=NONE, deliver_policy="new")))
        await asyncio.sleep(1)
        assert not read_own(world, "c", output)
        took.append(await change(world, "r2", config=describe("c", output, filter_subject=ALL, deliver_policy="new")))
        since = await last_value(world)
        await until(lambda: len(read_own(world, "c", output)) > 10, "the new filter is in effect")
        assert check_whole(world, "c", output)[0] <= since + 1, "nothing that follows the answer is left out"
        took.append(await change(world, "r3", "consumer.delete", consumer="c"))
        count = len(read_own(world, "c", output))
        await asyncio.sleep(1)
        assert len(read_own(world, "c", output)) == count
        assert "c" not in {name for _, name in session.commits.state.consumers}
        assert find_session(crew[0]) is session, "no session was begun anew"

    assert run(act) < STAYS_S
    assert max(took) < 0.5, took


def test_an_update_is_answered_when_it_is_in_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def prepare_late(*args: Any) -> Any:
        await asyncio.sleep(2)
        return await prepare(*args)

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        await change(world, "r1", config=describe("c", "out-c", filter_subject=NONE))
        monkeypatch.setattr(shard, "prepare", prepare_late)
        await change(world, "r2", config=describe("c", "out-c", filter_subject=ALL))
        since = await last_value(world)
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "the new filter is in effect")
        assert check_whole(world, "c", "out-c")[0] <= since + 1, "nothing that follows the answer is left out"
        assert find_session(crew[0]) is session

    assert run(act) < STAYS_S


def test_a_neighbour_that_shares_its_output_gets_another_filter_and_its_own_again() -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        await change(world, "r1", config=describe("c", "shared", filter_subject=NONE))
        for turn in range(3):
            await change(world, f"r2-{turn}", config=describe("c", "shared", filter_subject=ALL))
            await asyncio.sleep(0.5)
            await change(world, f"r3-{turn}", config=describe("c", "shared", filter_subject=NONE))
            await asyncio.sleep(0.5)
        sequences = [sequence for sequence, _ in find_own(world, "c", "shared")]
        assert sequences
        assert sequences == list(range(1, len(sequences) + 1))
        assert find_session(crew[0]) is session

    assert run(act) < STAYS_S


def test_a_consumer_that_is_made_again_begins_at_the_beginning() -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        for turn in range(3):
            await change(world, f"c{turn}", config=describe("c", f"out-{turn}"))
            await until(lambda turn=turn: len(read_own(world, "c", f"out-{turn}")) > 10, "it is served")  # type: ignore[misc]
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            assert check_whole(world, "c", f"out-{turn}")[0] == 0
        assert find_session(crew[0]) is session

    assert run(act) < STAYS_S


@pytest.mark.parametrize(("most_behind", "waits"), [(5, False), (1_000, True)])
def test_a_new_consumer_beside_neighbours_that_are_behind(
    most_behind: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their cursor stands still, as if it had a long way to go. A new consumer joins it if that is a few offsets behind;
    else it is served at once, also by the next session. It is given nothing that is older than itself."""
    monkeypatch.setattr(cursors, "MOST_BEHIND", most_behind)
    slow, take_round = set[ConsumerId](), Cursors.take_round

    def take_others(self: Cursors, looks: Mapping[Cursor, Look], now: float) -> Round:
        return take_round(self, {each: look for each, look in looks.items() if not each.members & slow}, now)

    monkeypatch.setattr(Cursors, "take_round", take_others)

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        slow.update(("S", name) for name in NEIGHBOURS)
        await asyncio.sleep(2)
        before = count_records(world)
        assert await change(world, "c", config=describe("c", "out-c", deliver_policy="new")) < 0.5
        after = count_records(world)
        assert len(session.cursors.of(("S", ("source", 0)))) == (1 if waits else 2)
        await asyncio.sleep(1)
        assert bool(read_own(world, "c", "out-c")) is not waits
        assert find_session(crew[0]) is session
        crew[0].kill()
        await begin(crew[0])
        known = len(read_own(world, "c", "out-c"))
        await asyncio.sleep(1)
        assert (len(read_own(world, "c", "out-c")) > known) is not waits
        slow.clear()
        await until(lambda: len(read_own(world, "c", "out-c")) > known + 20, "it is served")
        assert before <= check_whole(world, "c", "out-c")[0] <= after

    run(act)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_killed_between_changes_loses_none(seed: int) -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        worker = crew[0]

        async def begin_again() -> None:
            worker.kill()
            await begin(worker)

        await change(world, "r1", config=describe("c", "out-c", deliver_policy="new"))
        since = await last_value(world)
        await begin_again()
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "it is served")
        assert check_whole(world, "c", "out-c")[0] <= since + 1
        await change(world, "r2", config=describe("c", "out-c", filter_subject=ALL, deliver_policy="new"))
        await begin_again()
        await asyncio.sleep(1)
        await change(world, "r3", "consumer.delete", consumer="c")
        values = check_whole(world, "c", "out-c")
        await begin_again()
        await asyncio.sleep(2)
        assert check_whole(world, "c", "out-c") == values, "it is not served any more"
        assert "c" not in {name for _, name in find_session(worker).commits.state.consumers}

    run(act, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_change_while_the_shard_moves(seed: int) -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        first, second = crew
        second.start()
        await asyncio.sleep(1)
        await until(lambda: second.service.shard_manager is not None, "it is a member")
        stopping = asyncio.create_task(first.stop())
        for turn in range(3):
            await change(world, f"c{turn}", config=describe("c", f"out-{turn}"))
            await change(world, f"f{turn}", config=describe("c", f"out-{turn}", filter_subject=ALL))
            await until(lambda turn=turn: len(read_own(world, "c", f"out-{turn}")) > 10, "it is served")  # type: ignore[misc]
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            assert check_whole(world, "c", f"out-{turn}")[0] == 0
        await stopping
        assert find_owned(second)

    run(act, seed, workers=2)


def test_a_consumer_that_delivers_elsewhere_goes_on_with_its_sequence() -> None:
    outputs = ["out-0", "out-1", "shared", "out-2"]

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        for output in outputs:
            known = len(read_own(world, "c", output))
            await change(world, f"to-{output}", config=describe("c", output))
            await until(lambda o=output, k=known: len(read_own(world, "c", o)) > k + 10, "it delivers there")  # type: ignore[misc]
        found = sorted(each for output in outputs for each in find_own(world, "c", output))
        assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
        assert [int(value) for _, value in found] == list(range(len(found)))
        assert find_session(crew[0]) is session

    assert run(act) < STAYS_S


@pytest.mark.parametrize("policy", ["all", "new"])
def test_consumers_of_a_stream_with_a_ledger_come_and_go(policy: str) -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        for turn in range(2):
            output = f"out-{turn}"
            await change(world, f"c{turn}", config=describe("c", output, deliver_policy=policy))
            since = 0 if policy == "all" else max(map(int, read_values(world, "out-n")))
            await until(lambda o=output: len(read_own(world, "c", o)) > 10, "it is served")  # type: ignore[misc]
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            found = find_own(world, "c", output)
            assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
            values = [int(value) for _, value in found]
            for parity in range(2):
                own = [value for value in values if value % 2 == parity]
                assert own == list(range(own[0], own[-1] + 1, 2)), "each once, in the order of its partition"
                assert own[0] <= since + 2
        assert find_session(crew[0]) is session

    assert run(act, partitions=2) < STAYS_S


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("ahead", [-10, 20])
def test_a_consumer_that_begins_at_a_sequence_comes(ahead: int, partitions: int) -> None:
    """It may be behind its neighbours, or ahead of them; also the next owner gives it nothing below."""

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        first = max(map(int, read_values(world, "out-n"))) + ahead
        config = describe("c", "out-c", deliver_policy="by_start_sequence", opt_start_seq=first + 1)
        await change(world, "c", config=config)
        assert find_session(crew[0]) is session
        crew[0].kill()
        await begin(crew[0])
        await until(lambda: len(read_own(world, "c", "out-c")) > 20, "it is served")
        found = sorted(read_sequences(world, "out-c"))
        assert found == list(range(first + 1, first + 1 + len(found)))
        if partitions == 1:
            assert check_whole(world, "c", "out-c")[0] == first

    run(act, partitions=partitions)


def test_a_neighbour_with_a_machine_goes_on() -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        await change(world, "c", config=describe("c", "out-0", filter_subject=NONE))
        await change(world, "f", config=describe("c", "out-0", filter_subject=ALL))
        await change(world, "m", config=describe("c", "out-1", filter_subject=ALL))
        await until(lambda: len(read_own(world, "c", "out-1")) > 10, "it delivers there")
        await change(world, "d", "consumer.delete", consumer="c")
        assert find_session(crew[0]) is session
        assert session.dispatch_loop is not None

    acked = {"ack_policy": "explicit", "ack_wait": "1h", "interest": "always"}
    assert run(act, others={"acked": acked}) < STAYS_S


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_consumer_outside_of_transactions_gets_another_filter(partitions: int) -> None:
    async def act(world: World, crew: list[Worker]) -> None:
        config = describe("c", "out-c", delivery="at_least_once", deliver_policy="new")
        await change(world, "c", config={**config, "filter_subject": NONE})
        await until(lambda: bool(crew[0].service.sessions), "the shard is served again")
        session = find_session(crew[0])
        await change(world, "f", config={**config, "filter_subject": ALL})
        since = count_records(world)
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "the new filter is in effect")
        found = find_own(world, "c", "out-c")
        assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
        values = sorted(int(value) for _, value in found)
        assert len(set(values)) == len(values)
        assert set(range(since, values[-1] - 2 * partitions)) <= set(values), (
            "nothing that follows the answer is left out"
        )
        assert find_session(crew[0]) is session

    run(act, partitions=partitions)


def test_a_change_that_is_taken_up_after_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session takes it up and commits it all the same, and is ended; the next one finds it done."""
    put, late = ChangeQueue.put, list[asyncio.Task[bool]]()

    async def put_late(self: ChangeQueue, change: Change) -> bool:
        late.append(asyncio.create_task(put(self, change)))
        await asyncio.sleep(0.05)
        raise TimeoutError

    monkeypatch.setattr(ChangeQueue, "put", put_late)

    async def act(world: World, crew: list[Worker]) -> None:
        for turn in range(2):
            session = find_session(crew[0])
            await change(world, f"c{turn}", config=describe("c", f"out-{turn}"))
            await until(lambda turn=turn: len(read_own(world, "c", f"out-{turn}")) > 10, "it is served")  # type: ignore[misc]
            assert find_session(crew[0]) is not session
            await change(world, f"f{turn}", config=describe("c", f"out-{turn}", filter_subject=ALL))
            await change(world, f"d{turn}", "consumer.delete", consumer="c")
            assert check_whole(world, "c", f"out-{turn}")[0] == 0
            await until(lambda: bool(crew[0].service.sessions), "the shard is served again")
            assert "c" not in {name for _, name in find_session(crew[0]).commits.state.consumers}
        assert len(late) == 6
        assert any(each.done() and each.result() for each in late), "some were committed"

    run(act)


def test_many_consumers_with_batches_of_their_own_share_them_in_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_APART", 2)

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        for name in ("c0", "c1", "alone"):
            await change(world, name, config=describe(name, "out-a" if name == "alone" else "shared"))
        assert find_session(crew[0]) is session
        assert len(session.assignment.apart) == 3
        await change(world, "c2", config=describe("c2", "shared"))
        await until(lambda: bool(crew[0].service.sessions), "the shard is served again")
        assert find_session(crew[0]) is not session
        assert not find_session(crew[0]).assignment.apart
        for name in ("c0", "c1", "c2"):
            await until(lambda name=name: len(read_own(world, name, "shared")) > 10, "it is served")  # type: ignore[misc]
            assert check_whole(world, name, "shared")[0] == 0

    run(act)


def test_an_output_that_was_left_may_be_deleted() -> None:
    """The session does not need it any more, and does not ask for it after a while, which would create it again."""

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        await change(world, "c", config=describe("c", "out-0"))
        await until(lambda: len(read_own(world, "c", "out-0")) > 10, "it is served")
        await change(world, "m", config=describe("c", "out-1"))
        await asyncio.sleep(15)
        world.cluster.delete_topic("out-0")
        await asyncio.sleep(5)
        # has the producer ask for metadata
        await change(world, "d", config=describe("d", "out-d"))
        await asyncio.sleep(5)
        assert "out-0" not in world.cluster.topics
        assert "out-0" not in {tp.topic for tp in session.commits.transactions._produce._queues}
        assert find_session(crew[0]) is session

    assert run(act) < STAYS_S


def test_a_consumer_of_a_stream_in_which_its_session_has_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another shard keeps the stream's index, and the only other consumer here has been stalled since the session began."""
    warm_up()
    world = World(1, brokers=1)
    stalled, made = [name for name in "abcdefgh" if shard_of(("T", name), 2) != shard_of(("T",), 2)][:2]
    reads = next(name for name in "abcdefgh" if shard_of(("S", name), 2) != shard_of(("T",), 2))
    monkeypatch.setattr(shard.Shard, "_left_out", lambda _: ({("T", stalled): "its output refuses"}, {}))

    async def history(world: World) -> None:
        for topic in ("source", "other"):
            world.cluster.create_topic(topic)
        service = {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": 2, "topics": {"replication": 1}}
        streams = [
            {"name": name, "topics": [topic], "subject": {"template": "s.{key}"}}
            for name, topic in (("S", "source"), ("T", "other"))
        ]
        consumers = [
            {"stream": "S", **describe(reads, "out-n")},
            {"stream": "T", **describe(stalled, "out-s")},
        ]
        worker = Worker(world, "w", read_config(service, streams, consumers))
        await begin(worker)
        await until(lambda: len(worker.service.sessions) == 2, "both shards are served")

        def find() -> Session:
            return next(session for session in worker.service.sessions if ("S", reads) in session.assignment.readers)

        session = find()
        assert ("T", stalled) in session.assignment.stalled and "T" in session.assignment.sources
        await ask(world, "c", "consumer.create", "T", config=describe(made, "out-c"))
        assert "error" not in await await_answer(world, "c")
        await send(world, "other", [New(0, b"k", b"0")])
        await await_values(world, "out-c", ["0"], 20.0)
        assert find() is session
        await worker.stop()

    world.run(history)


@pytest.mark.parametrize(
    "error", [KafkaConnectionError(), KeyError("a bug"), asyncio.CancelledError(), OverlayError("no")]
)
def test_a_change_that_the_session_cannot_prepare_is_taken_up_by_a_new_one(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise error

    async def act(world: World, crew: list[Worker]) -> None:
        session = find_session(crew[0])
        monkeypatch.setattr(shard, "prepare", fail)
        await change(world, "c", config=describe("c", "out-c"))
        assert find_session(crew[0]) is not session
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "it is served")
        await change(world, "d", "consumer.delete", consumer="c")
        check_whole(world, "c", "out-c")
        await until(lambda: bool(crew[0].service.sessions), "the shard is served again")
        assert "c" not in {name for _, name in find_session(crew[0]).commits.state.consumers}

    run(act)


class SessionEnds:
    """Ends a session once at a place where it takes a change up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moment: str, is_killed: bool) -> None:
        """`moment`: the method of ChangeQueue after which it ends. `is_killed`: with its worker, else by an error of Kafka."""
        self._is_killed, self._ends = is_killed, list[Callable[[], None]]()
        own = getattr(ChangeQueue, moment)

        def end_then(*args: Any) -> Any:
            result = own(*args)
            if self._ends:
                self._ends.pop()()
            return result

        monkeypatch.setattr(ChangeQueue, moment, end_then)

    async def change(self, world: World, worker: Worker, id: str, op: str = "consumer.create", **body: Any) -> None:
        """Ask for a change, whose session ends at the place, and wait until it is answered and the shard served again."""
        session = find_session(worker)
        self._ends.append(worker.kill if self._is_killed else fail)
        await ask(world, id, op, "S", **body)
        await until(lambda: self._has_ended(worker, session), "the session ends", pause_s=0.01)
        assert not self._ends, "it has come to the place where it is ended"
        if self._is_killed:
            await begin(worker)
        assert "error" not in await await_answer(world, id)
        await until(lambda: bool(worker.service.sessions), "the shard is served again")

    def _has_ended(self, worker: Worker, session: Session) -> bool:
        return worker.process.state is State.DEAD if self._is_killed else session not in worker.service.sessions


def fail() -> None:
    raise SourceUnavailable("Kafka is away for a moment")


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("moment", ["_change", "_finish"])
def test_a_session_that_ends_while_it_takes_a_change_up(
    moment: str, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the change is committed, or after it and before the shard knows."""
    place = SessionEnds(monkeypatch, moment, is_killed)

    async def act(world: World, crew: list[Worker]) -> None:
        worker = crew[0]
        change_with_an_end = functools.partial(place.change, world, worker)
        await change_with_an_end("c", config=describe("c", "out-c"))
        await until(lambda: len(read_own(world, "c", "out-c")) > 10, "it is served")
        await change_with_an_end("m", config=describe("c", "out-d"))
        await until(lambda: len(read_own(world, "c", "out-d")) > 10, "it delivers there")
        await change_with_an_end("d", "consumer.delete", consumer="c")
        await asyncio.sleep(2)
        found = sorted(each for output in ("out-c", "out-d") for each in find_own(world, "c", output))
        assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
        assert [int(value) for _, value in found] == list(range(len(found)))
        await asyncio.sleep(2)
        assert len(found) == sum(len(read_own(world, "c", output)) for output in ("out-c", "out-d"))
        assert "c" not in {name for _, name in find_session(worker).commits.state.consumers}

    run(act)
