"""Transactions, fencing and timeouts: both sides answer alike."""

from __future__ import annotations

from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import EndTxnRequest, InitProducerIdRequest

from .requests import (
    UNCOMMITTED,
    Producer,
    add_offsets,
    add_partitions,
    await_end,
    commit_offsets,
    end,
    init_producer,
    list_offset,
    make_batch,
    note_fetch,
    of_producer,
    produce,
)
from .sides import Compare, Side


class Writer:
    """A transactional producer that counts its sequences."""

    def __init__(self, side: Side, name: str, producer: Producer) -> None:
        self.side, self.name, self.producer = side, name, producer
        self.sequences: dict[tuple[str, int], int] = {}

    @classmethod
    async def begin(cls, side: Side, name: str, timeout_ms: int = 60_000) -> Writer:
        full = side.name(name)
        code, producer = await init_producer(side, full, timeout_ms)
        side.note("init", (code, side.alias("producer", producer[0]), producer[1]))
        return cls(side, full, producer)

    async def add(self, *topics: str, partition: int = 0) -> None:
        wanted = {topic: [partition] for topic in topics}
        self.side.note("add", await add_partitions(self.side, self.name, self.producer, wanted))

    async def send(self, topic: str, count: int = 2, *, partition: int = 0, sequence: int | None = None) -> int:
        key = topic, partition
        first = self.sequences.get(key, 0) if sequence is None else sequence
        batch = make_batch(count, self.side.wall_ms, **of_producer(self.producer, first, transactional=True))
        name = self.name
        found = await produce(self.side.main, topic, batch, partition=partition, transactional_id=name)
        self.side.note("send", found[:2])
        if not found[0] and sequence is None:
            self.sequences[key] = first + count
        return found[0]

    async def end(self, *, commit: bool) -> None:
        self.side.note("end", await end(self.side, self.name, self.producer, commit=commit))

    async def settled(self, *topics: str, partition: int = 0) -> None:
        """Wait until the markers are there."""
        await self.side.sleep(0.2)
        for topic in topics:

            async def bounds(topic: str = topic) -> tuple[int, int]:
                stable = await list_offset(self.side, topic, -1, partition=partition)
                high = await list_offset(self.side, topic, -1, committed=False, partition=partition)
                return stable[2], high[2]

            self.side.note("settled", await self.side.until(bounds, lambda found: found[0] == found[1], 10.0))


async def test_commits_and_aborts_in_both_isolation_levels(compare: Compare) -> None:
    async def script(side: Side) -> None:
        one, two = await side.make_topic("one"), await side.make_topic("two")
        a, b = await Writer.begin(side, "a"), await Writer.begin(side, "b")
        for is_commit in (True, False, True, False):
            await a.add(one, two)
            await b.add(one)
            await a.send(one)
            await b.send(one, 1)
            await a.send(two, 3)
            await a.send(one, 1)
            for topic in (one, two):
                await note_fetch(side, "open", topic, 0)
                await note_fetch(side, "open", topic, 0, isolation=UNCOMMITTED)
                side.note("stable", await list_offset(side, topic, -1))
                side.note("newest", (await list_offset(side, topic, -3))[2:])
            _, _, end, _ = await list_offset(side, one, -1, committed=False)
            await a.end(commit=is_commit)
            await a.settled(two)
            await await_end(side, one, end + 1)
            await note_fetch(side, "one is open", one, 0)
            await b.end(commit=not is_commit)
            await a.settled(one)
        for offset in (0, 1, 3, 5, 7, 9, 12):
            for limit in (10, 300, 1 << 20):
                await note_fetch(side, f"from {offset}, {limit} bytes", one, offset, partition_bytes=limit)
                await note_fetch(side, f"from {offset}, {limit} bytes", two, offset, partition_bytes=limit)

    await compare(script)


async def test_a_new_producer_fences_the_old_one(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        old = await Writer.begin(side, "a")
        await old.add(topic)
        await old.send(topic)
        new = await Writer.begin(side, "a")
        await old.settled(topic)
        await old.send(topic)
        side.note("add", await add_partitions(side, old.name, old.producer, {topic: [0]}))
        side.note("end", await end(side, old.name, old.producer, commit=True))
        side.note("offsets", await add_offsets(side, old.name, old.producer, side.name("g")))
        await new.add(topic)
        await new.send(topic)
        await old.send(topic)
        await new.end(commit=True)
        await new.settled(topic)
        idle = await Writer.begin(side, "a")
        await new.send(topic)
        side.note("add", await add_partitions(side, new.name, new.producer, {topic: [0]}))
        await idle.add(topic)
        await idle.send(topic)
        await idle.end(commit=False)
        await idle.settled(topic)
        await note_fetch(side, "all", topic, 0)

    await compare(script)


async def test_batches_outside_of_a_transaction_are_refused(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 2)
        a = await Writer.begin(side, "a")
        await a.send(topic)
        await a.add(topic)
        await a.send(topic, partition=1)
        await a.send(topic)
        await a.send(topic, sequence=7)
        await a.send(topic, sequence=0)
        batch = make_batch(1, side.wall_ms, **of_producer(a.producer, 2))
        side.note("plain", await produce(side.main, topic, batch))
        batch = make_batch(1, side.wall_ms, **of_producer((1 << 40, 0), 0, transactional=True))
        side.note("unknown", await produce(side.main, topic, batch, transactional_id=side.name("a")))
        side.note("unknown", await produce(side.main, topic, batch, transactional_id=side.name("none")))
        await a.end(commit=True)
        await a.settled(topic)
        await a.send(topic)
        await a.send(topic, sequence=0)
        await a.add(topic)
        await a.send(topic)
        await a.send(topic, sequence=0)
        await a.end(commit=False)
        await a.settled(topic)
        await note_fetch(side, "all", topic, 0)

    await compare(script)


async def test_requests_to_the_coordinator_that_make_no_sense(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        a = await Writer.begin(side, "a")
        missing = side.name("missing")
        side.note("missing", await add_partitions(side, a.name, a.producer, {topic: [0, 3], missing: [0]}))
        for commit in (True, False):
            side.note("end of nothing", await end(side, a.name, a.producer, commit=commit))
        await a.add(topic)
        await a.end(commit=True)
        await a.settled(topic)
        for commit in (True, False):
            side.note("end again", await end(side, a.name, a.producer, commit=commit))
        await a.add(topic)
        await a.end(commit=False)
        await a.settled(topic)
        for commit in (False, True):
            side.note("end again", await end(side, a.name, a.producer, commit=commit))
        side.note("nothing in it", await list_offset(side, topic, -1))
        for producer in ((a.producer[0] + 1, 0), (a.producer[0], 5), (a.producer[0], -1)):
            side.note("add", await add_partitions(side, a.name, producer, {topic: [0]}))
            side.note("end", await end(side, a.name, producer, commit=True))
        side.note("never seen", await add_partitions(side, side.name("none"), a.producer, {topic: [0]}))
        side.note("empty", await add_partitions(side, "", a.producer, {topic: [0]}))
        for timeout_ms in (0, -1, 900_001):
            found = await side.main.ask(InitProducerIdRequest(a.name, timeout_ms))
            side.note(f"timeout {timeout_ms}", (found.error_code, found.producer_id, found.producer_epoch))
        found = await side.main.ask(InitProducerIdRequest("", 1_000))
        side.note("empty", (found.error_code, found.producer_id, found.producer_epoch))
        found = await side.main.ask(EndTxnRequest("", *a.producer, True))
        side.note("empty", found.error_code)

    await compare(script)


async def test_a_transaction_past_its_timeout_is_aborted(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        a = await Writer.begin(side, "a", timeout_ms=500)
        await a.add(topic)
        await a.send(topic)
        await a.settled(topic)
        await note_fetch(side, "aborted", topic, 0)
        await a.send(topic)
        side.note("add", await add_partitions(side, a.name, a.producer, {topic: [0]}))
        side.note("end", await end(side, a.name, a.producer, commit=True))
        again = await Writer.begin(side, "a", timeout_ms=60_000)
        await again.add(topic)
        await again.send(topic)
        await again.end(commit=True)
        await again.settled(topic)
        await note_fetch(side, "all", topic, 0)

    await compare(script)


async def test_offsets_in_transactions(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic, group = await side.make_topic("t", 2), side.name("g")
        a = await Writer.begin(side, "a")
        await side.find_coordinator(group, 0)

        async def note_offsets(what: str) -> None:
            found = await side.main.ask(OffsetFetchRequest(group, [(topic, [0, 1])]))
            side.note(what, (found.error_code, [list(map(tuple, one[1])) for one in found.topics]))

        offsets = {(topic, 0): 5, (topic, 1): 6}
        side.note("not added", await commit_offsets(side, a.name, a.producer, group, offsets))
        for is_commit in (False, True):
            side.note("add", await add_offsets(side, a.name, a.producer, group))
            side.note("commit", await commit_offsets(side, a.name, a.producer, group, offsets))
            await note_offsets("open")
            await a.end(commit=is_commit)
            await side.sleep(0.5)
            await note_offsets("ended")
        side.note("add", await add_offsets(side, a.name, a.producer, group))
        missing = {(side.name("missing"), 0): 1, (topic, 9): 3}
        side.note("missing", await commit_offsets(side, a.name, a.producer, group, missing))
        side.note("old epoch", await commit_offsets(side, a.name, (a.producer[0], 7), group, offsets))
        side.note("no group", await commit_offsets(side, a.name, a.producer, "", offsets))

    await compare(script)


async def test_many_requests_of_one_transaction_in_flight(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 3)
        a = await Writer.begin(side, "a")
        side.note("add", await add_partitions(side, a.name, a.producer, {topic: [0, 1, 2]}))
        batches = [(i, make_batch(2, side.wall_ms, **of_producer(a.producer, 0, transactional=True))) for i in range(3)]
        answer = await side.main.ask(ProduceRequest(a.name, -1, 5_000, [(topic, batches)]))
        side.note("sent", sorted(tuple(one) for one in answer.topics[0][1]))
        await a.end(commit=True)
        found = await side.main.ask(FindCoordinatorRequest(a.name, 1))
        side.note("coordinator", (found.error_code, found.coordinator_id))
        for i in range(3):
            await side.until(
                lambda i=i: list_offset(side, topic, -1, partition=i),  # type: ignore[misc]
                lambda found: found[2] == 3,
                10.0,
            )
            await note_fetch(side, f"partition {i}", topic, 0, partition=i)

    await compare(script)
