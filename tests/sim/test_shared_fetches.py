"""The shards of a worker at the end of a log, which fetch each record once for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from overlay.config import Loaded
from overlay.kafka import shared_fetches as module
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Changed, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.own_topics import shard_of
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.kafka.shared_fetches import SharedFetches
from overlay.scan import Decoder, Records, make_plan

from .host import Worker, read_config, warm_up
from .kafka.fetch import Fetching
from .scenes import await_values, read_values, until
from .test_unclean import cut
from .world import World
from .writing import write

SHARDS = 8
TOPIC = "source"
JOINED_S = 15.0
"""Seconds until each shard has had an answer of its own, with which it joins the others: longer than a fetch
waits for records."""


def choose_names() -> list[str]:
    """Return the names of consumers of stream S, one for each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SHARDS:
        found.setdefault(shard_of(("S", f"c{number}"), SHARDS), f"c{number}")
        number += 1
    return list(found.values())


NAMES = choose_names()


def configure(world: World, shards: int) -> Loaded:
    return read_config(
        {"kafka": {"bootstrap.servers": world.bootstrap}, "shards": shards, "topics": {"replication": 1}},
        [{"name": "S", "topics": [TOPIC], "subject": {"template": "s.{key}"}}],
        [
            {"stream": "S", "durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none"}
            for name in NAMES
        ],
    )


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How many bytes brokers have sent of each topic; under "empty TOPIC" how many answers without any."""
    counts: Counter[str] = Counter()
    own = Fetching._give

    def give(self: Fetching, topics: list[Any]) -> None:
        for topic, rows in topics:
            counts[topic] += sum(len(row[-1]) for row in rows)
            counts[f"empty {topic}"] += not any(row[-1] for row in rows)
        own(self, topics)

    monkeypatch.setattr(Fetching, "_give", give)
    yield counts


def serve(sent: Counter[str], shards: int) -> tuple[float, int]:
    """Serve eight consumers while records come one by one. Return how many bytes were fetched for each byte written, and
    how many fetches brought nothing in the ten quiet seconds afterwards.
    """
    warm_up()
    world = World(1, brokers=1)

    async def history(world: World) -> tuple[float, int]:
        world.cluster.create_topic(TOPIC, 2)
        worker = Worker(world, "w", configure(world, shards))
        worker.start()
        values = [str(number) for number in range(42)]
        for partition in range(2):
            await write(world, TOPIC, values[partition : partition + 1], partition=partition)
        for name in NAMES:
            await await_values(world, f"out-{name}", values[:2])
        await asyncio.sleep(JOINED_S)
        before = sent[TOPIC]
        for number in range(2, len(values)):
            await write(world, TOPIC, values[number : number + 1], partition=number % 2)
        for name in NAMES:
            output = f"out-{name}"
            await until(lambda o=output: len(read_values(world, o)) == len(values), name)  # type: ignore[misc]
            assert sorted(read_values(world, output), key=int) == values
        fetched, empty = sent[TOPIC] - before, sent[f"empty {TOPIC}"]
        logs = [partition.log for partition in world.cluster.topics[TOPIC].partitions]
        written = sum(log.count_bytes(1, log.end, 1 << 30) for log in logs)
        await asyncio.sleep(10)
        empty = sent[f"empty {TOPIC}"] - empty
        await worker.stop()
        return fetched / written, empty

    return world.run(history)


def test_eight_shards_fetch_each_record_once(sent: Counter[str]) -> None:
    """They would fetch it eight times, and ask for the next ones in eight requests."""
    alone = serve(sent, 1)
    together = serve(sent, SHARDS)
    assert alone[0] == together[0] == 1
    assert alone[1] <= together[1] <= alone[1] + 1


@dataclass
class Sharers:
    """Fetchers with clients of their own, which share their fetches of partition 0 of topic `t`."""

    world: World
    sharing: SharedFetches
    fetchers: list[Fetcher]
    counted: list[int]

    async def begin(self, number: int, position: int = 0, epoch: int = -1) -> PartitionFetch:
        return await self.fetchers[number].open("t", 0, position, epoch=epoch)

    async def take(self, number: int, fetch: PartitionFetch) -> Fetched | Lost | Changed:
        changed = self.fetchers[number].changed
        async with asyncio.timeout(30):
            while (taken := fetch.take()) is None:
                changed.clear()
                await changed.wait()
        assert isinstance(taken, Fetched | Lost | Changed)
        return taken

    async def read(self, number: int, fetch: PartitionFetch, stop: int) -> list[int]:
        """Return the offsets of the records from a position up to `stop`, which the fetch comes to."""
        found: list[int] = []
        while not found or found[-1] < stop - 1:
            taken = await self.take(number, fetch)
            assert isinstance(taken, Fetched)
            found += list_offsets(taken)
        return found

    async def meet(self) -> list[PartitionFetch]:
        """Return a partition fetch of each fetcher, all of them at the front, which is the end of the log."""
        end = self.world.cluster.topics["t"].partitions[0].log.end
        fetches = [await self.begin(number, end) for number in range(len(self.fetchers))]
        await until(lambda: all(self.sharing.waits(each) for each in fetches), "all wait at the front")
        return fetches


def list_offsets(fetched: Fetched) -> list[int]:
    offsets: list[int] = []
    for piece in Decoder(make_plan()).decode(fetched.data, fetched.position, aborted=fetched.aborted):
        assert isinstance(piece, Records)
        offsets += piece.offset.tolist()
    return offsets


@asynccontextmanager
async def sharing(world: World, count: int) -> AsyncIterator[Sharers]:
    kafka = {"bootstrap.servers": world.bootstrap}
    stop, counted = asyncio.Event(), [0]

    def add(bytes: int) -> None:
        counted[0] += bytes

    shared = SharedFetches(kafka, add)
    running = asyncio.create_task(shared.run(stop))
    clients = [await open_client(kafka) for _ in range(count)]
    fetchers = [Fetcher(client, sharing=shared) for client in clients]
    try:
        yield Sharers(world, shared, fetchers, counted)
        assert not running.done()
    finally:
        for fetcher in fetchers:
            await fetcher.close()
        for client in clients:
            await client.close()
        stop.set()
        await running
    assert not shared._fronts and not shared._readers and not shared._order and not shared._bytes


def run(count: int, act: Callable[[Sharers], Awaitable[None]], brokers: int = 1) -> None:
    warm_up()
    world = World(1, brokers=brokers)

    async def history(world: World) -> None:
        world.cluster.create_topic("t")
        await write(world, "t", map(str, range(5)))
        async with sharing(world, count) as sharers:
            await act(sharers)

    world.run(history)


def test_an_answer_is_for_all_that_wait(sent: Counter[str]) -> None:
    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        before = sent["t"]
        await write(sharers.world, "t", map(str, range(5, 10)))
        for number, fetch in enumerate(fetches):
            assert await sharers.read(number, fetch, 10) == list(range(5, 10))
            assert (fetch.position, fetch.stable_end, fetch.end) == (10, 10, 10)
        log = sharers.world.cluster.topics["t"].partitions[0].log
        assert sent["t"] - before == sharers.counted[0] == log.count_bytes(5, 10, 1 << 30)
        assert not any(fetcher.bytes_fetched for fetcher in sharers.fetchers)

    run(3, act)


@pytest.mark.parametrize(
    ("limit", "wanted"), [(1 << 20, [[5], [6, 7, 8, 9, 10]]), (1, [[5], [6], [7], [8], [9], [10]])]
)
def test_a_slow_fetcher_holds_up_no_other_one_and_gets_what_is_kept(
    limit: int, wanted: list[list[int]], sent: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, as far as that is allowed. If it had a round for each answer, as the fast one has, it could not come
    after."""
    monkeypatch.setattr(module, "JOINED_BYTES", limit)

    async def act(sharers: Sharers) -> None:
        slow, fast = await sharers.meet()
        for end in range(6, 12):
            await write(sharers.world, "t", [str(end)])
            assert await sharers.read(1, fast, end) == [end - 1]
        before = sent["t"]
        found: list[list[int]] = []
        while sum(map(len, found)) < 6:
            taken = await sharers.take(0, slow)
            assert isinstance(taken, Fetched)
            found.append(list_offsets(taken))
        assert found == wanted
        assert sent["t"] == before

    run(2, act)


def test_answers_that_end_within_a_batch_are_joined_without_its_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker cuts an answer off where enough bytes are sent, and the next answer has that batch whole."""
    monkeypatch.setattr("overlay.kafka.fetcher.PARTITION_BYTES", 200)

    async def act(sharers: Sharers) -> None:
        slow, fast = await sharers.meet()
        for number in range(5, 17):
            await write(sharers.world, "t", [str(number)])
        for number, fetch in ((1, fast), (0, slow)):
            assert await sharers.read(number, fetch, 17) == list(range(5, 17))

    run(2, act)


@pytest.mark.parametrize("limit", [("KEEP_BYTES", 0), ("KEEP_S", 0.5)])
def test_a_fetcher_that_lags_fetches_for_itself(limit: tuple[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs is not kept for so long."""
    monkeypatch.setattr(module, *limit)

    async def act(sharers: Sharers) -> None:
        slow, fast = await sharers.meet()
        for end in range(6, 12):
            await write(sharers.world, "t", [str(end)])
            if limit[0] == "KEEP_S":
                assert await sharers.read(1, fast, end) == [end - 1]
            await asyncio.sleep(2)
            assert sharers.sharing._bytes == 0
        assert await sharers.read(0, slow, 11) == list(range(5, 11))
        assert await sharers.read(1, fast, 11) if limit[0] == "KEEP_BYTES" else True
        assert any(fetcher.bytes_fetched for fetcher in sharers.fetchers)
        await until(lambda: sharers.sharing.waits(slow), "it has come to the front")

    run(2, act)


def test_a_fetcher_that_lags_joins_where_the_others_are(sent: Counter[str]) -> None:
    """In the middle of what another fetch has brought."""

    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        late = await sharers.begin(2, 2)
        await write(sharers.world, "t", map(str, range(5, 10)))
        assert await sharers.read(2, late, 10) == list(range(2, 10))
        for number, fetch in enumerate(fetches[:2]):
            assert await sharers.read(number, fetch, 10) == list(range(5, 10))
        await until(lambda: all(map(sharers.sharing.waits, (*fetches[:2], late))), "all wait at one place")

    run(3, act)


def test_a_fetcher_at_the_end_waits_for_none_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front is where it is from then on."""
    monkeypatch.setattr("overlay.kafka.fetcher.PARTITION_BYTES", 1)

    async def act(sharers: Sharers) -> None:
        behind = [await sharers.begin(number) for number in range(2)]
        await until(lambda: all(each.ready is not None for each in behind), "each has a batch")
        for number in range(5, 9):
            await write(sharers.world, "t", [str(number)])
        ahead = await sharers.begin(2, 8)
        assert await sharers.read(2, ahead, 9) == [8]
        assert all(each.position < 8 for each in behind)
        assert sharers.counted == [0], "what is between was not fetched"
        await until(lambda: sharers.sharing.waits(ahead), "the front has moved")
        for number, each in enumerate(behind):
            assert await sharers.read(number, each, 9) == list(range(9))
        await until(lambda: all(map(sharers.sharing.waits, behind)), "they have come to it")

    run(3, act)


def test_no_answer_is_used_that_was_asked_for_before_the_reader_began(sent: Counter[str]) -> None:
    """Neither one that is kept nor one on its way: the reader may have compared the log with its state since."""

    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        await write(sharers.world, "t", ["5"])
        for number in range(2):
            assert await sharers.read(number, fetches[number], 6) == [5]
        await asyncio.sleep(0.1)  # the next answer is asked for
        kept = await sharers.begin(2, 5)
        flying = await sharers.begin(2, 6)
        await until(lambda: kept.ready is not None, "it has fetched for itself")
        assert sharers.fetchers[2].bytes_fetched > 0
        assert not sharers.sharing.waits(flying)
        assert list_offsets(await sharers.take(2, kept)) == [5]  # type: ignore[arg-type]
        await until(lambda: sharers.sharing.waits(flying), "it waits with the others once it was answered")

    run(3, act)


@pytest.mark.parametrize("more", [0, 2, 9])
def test_each_finds_that_the_log_has_lost_its_end(more: int) -> None:
    """Whether it has grown again past the front or not."""

    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        await write(sharers.world, "t", ["5"])
        await until(lambda: all(each.ready is not None for each in fetches), "each has the record")
        await cut(sharers.world, "t", 3)
        await write(sharers.world, "t", map(str, range(more)))
        for number, fetch in enumerate(fetches):
            assert await sharers.read(number, fetch, 6) == [5]
        for number, fetch in enumerate(fetches):
            assert await sharers.take(number, fetch) == (Lost(6) if more < 3 else Changed(6, 3))
        assert not sharers.sharing._fronts, "nothing is shared where the log is another one"

    run(2, act, brokers=3)


def test_what_is_kept_is_dropped_when_an_end_is_set_back() -> None:
    async def act(sharers: Sharers) -> None:
        slow, fast = await sharers.meet()
        await write(sharers.world, "t", map(str, range(5, 10)))
        assert await sharers.read(1, fast, 10) == list(range(5, 10))
        await until(lambda: slow.ready is not None, "the slow one has what is kept")
        await cut(sharers.world, "t", 3)
        assert await sharers.take(1, fast) == Lost(10)
        assert not sharers.sharing._order

    run(2, act, brokers=3)


def test_another_leader_is_passed_over_in_silence() -> None:
    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        for end in (6, 7, 8):
            await write(sharers.world, "t", [str(end)])
            for number, fetch in enumerate(fetches):
                assert await sharers.read(number, fetch, end) == [end - 1]
            with sharers.world.at_cluster("another leader") as cluster:
                cluster.move_leader("t", 0)
        assert {fetch.epoch for fetch in fetches} == {2}

    run(2, act, brokers=3)


def test_answers_of_another_epoch_are_not_used() -> None:
    """A reader that knows another epoch of the batch before its position compares the log itself."""

    async def act(sharers: Sharers) -> None:
        first, second = await sharers.meet()
        first.epoch = 7
        await write(sharers.world, "t", ["5"])
        assert await sharers.take(0, first) == Changed(5, 0)
        assert await sharers.read(1, second, 6) == [5]

    run(2, act)


def test_a_fetcher_that_ends_leaves_the_others(sent: Counter[str]) -> None:
    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        await sharers.fetchers[0].close()
        await write(sharers.world, "t", ["5"])
        assert await sharers.read(1, fetches[1], 6) == [5]
        await until(lambda: sharers.sharing.waits(fetches[1]), "it shares with the third")
        await sharers.fetchers[2].close()
        assert not sharers.sharing._fronts
        await write(sharers.world, "t", ["6"])
        assert await sharers.read(1, fetches[1], 7) == [6]
        assert sharers.fetchers[1].bytes_fetched > 0

    run(3, act)


def test_what_is_kept_is_for_reading_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all that is fetched: kernels would be compiled once more for data that can be written to."""
    monkeypatch.setattr("overlay.kafka.fetcher.PARTITION_BYTES", 1)

    async def act(sharers: Sharers) -> None:
        await sharers.meet()
        for number in range(5, 9):
            await write(sharers.world, "t", [str(number)])
        ahead = await sharers.begin(2, 8)
        assert await sharers.read(2, ahead, 9) == [8]
        assert not any(answer.fetched.data.flags.writeable for _, answer, _ in sharers.sharing._order)
        assert sharers.sharing._order

    run(3, act)


def test_a_topic_that_is_learnt_slowly_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        assert sharers.sharing._client is not None
        asked: list[str] = []

        async def never(topic: str) -> None:
            asked.append(topic)
            await asyncio.Event().wait()

        monkeypatch.setattr(sharers.sharing._client, "add_topic", never)
        sharers.world.cluster.create_topic("u")
        for fetcher in sharers.fetchers:
            await fetcher.open("u", 0, 0)
        await until(lambda: asked == ["u"], "the other topic is asked for")
        await write(sharers.world, "t", ["5"])
        for number, fetch in enumerate(fetches):
            assert await sharers.read(number, fetch, 6) == [5]
        assert not any(fetcher.bytes_fetched for fetcher in sharers.fetchers)

    run(2, act)


def test_a_connection_that_answers_nothing_holds_up_no_fetcher_for_long() -> None:
    """The connection of the shared fetches. Without another way the fetchers would wait until the request times out."""

    async def act(sharers: Sharers) -> None:
        loop = asyncio.get_running_loop()
        fetches = await sharers.meet()
        client = sharers.sharing._client
        assert client is not None
        await asyncio.sleep(60)
        assert all(map(sharers.sharing.waits, fetches)), "they wait for records for as long as there are none"
        for connection in client._conns.values():
            connection._is_stalled = True
        began = loop.time()
        for end in range(6, 9):
            await write(sharers.world, "t", [str(end)])
            for number, fetch in enumerate(fetches):
                assert await sharers.read(number, fetch, end) == [end - 1]
            assert loop.time() - began < module.find_patience() + 3 * module.LOOK_S, "it waits once"
        await until(lambda: all(map(sharers.sharing.waits, fetches)), "the request has timed out")
        before = [fetcher.bytes_fetched for fetcher in sharers.fetchers]
        await write(sharers.world, "t", ["9"])
        for number, fetch in enumerate(fetches):
            assert await sharers.read(number, fetch, 9) == [8]
        assert [fetcher.bytes_fetched for fetcher in sharers.fetchers] == before, "it is shared again"

    run(2, act)


def test_a_topic_that_is_read_no_more_is_asked_for_no_more() -> None:
    async def act(sharers: Sharers) -> None:
        first, second = await sharers.meet()
        client = sharers.sharing._client
        assert client is not None and client._topics == {"t"}
        sharers.fetchers[0].shut(first)
        assert client._topics == {"t"}
        sharers.fetchers[1].shut(second)
        assert client._topics == set() and not sharers.sharing._topics
        await sharers.meet()
        assert client._topics == {"t"}

    run(2, act)


def test_damaged_headers_give_the_front_up() -> None:
    """Each reader finds the batch for itself, and acts by its own rules."""

    async def act(sharers: Sharers) -> None:
        fetches = await sharers.meet()
        log = sharers.world.cluster.topics["t"].partitions[0].log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(log), "read", damage(type(log).read))
            await write(sharers.world, "t", ["5"])
            for number, fetch in enumerate(fetches):
                taken = await sharers.take(number, fetch)
                assert isinstance(taken, Fetched) and taken.unreadable == 5
            assert not sharers.sharing._fronts

    run(2, act)


def damage(read: Callable[..., tuple[bytes, int]]) -> Callable[..., tuple[bytes, int]]:
    """Return a log's `read` whose batches have an unknown format."""

    def damaged(*arguments: Any, **more: Any) -> tuple[bytes, int]:
        data, bound = read(*arguments, **more)
        return (data[:16] + b"\x07" + data[17:], bound) if data else (data, bound)

    return damaged


def test_shards_fetch_for_themselves_while_no_client_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    async def refuse(kafka: object) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError("away") if attempts < 3 else ValueError("unforeseen")

    monkeypatch.setattr(module, "open_client", refuse)

    async def act(sharers: Sharers) -> None:
        fetches = [await sharers.begin(number) for number in range(2)]
        for number, fetch in enumerate(fetches):
            assert await sharers.read(number, fetch, 5) == list(range(5))
        await until(lambda: attempts > 3, "the client is opened again and again")

    run(2, act)
