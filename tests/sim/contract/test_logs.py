"""Producing, fetching and finding offsets: both sides answer alike."""

from __future__ import annotations

from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest

from .requests import (
    COMMITTED,
    UNCOMMITTED,
    fetch,
    init_producer,
    list_offset,
    make_batch,
    note_fetch,
    of_producer,
    produce,
    read_partition,
)
from .sides import Compare, Side


async def test_batches_come_back_with_offsets_and_epochs(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        at = side.wall_ms
        for count in (1, 3, 2):
            side.note("produced", await produce(side.main, topic, make_batch(count, at)))
        for offset in (0, 1, 3, 5, 6):
            for isolation in (COMMITTED, UNCOMMITTED):
                await note_fetch(side, f"from {offset}", topic, offset, isolation=isolation)
        for offset in (7, -1, 1 << 40):
            await note_fetch(side, f"from {offset}", topic, offset)

    await compare(script)


async def test_every_codec_is_kept_as_it_is(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        for codec in range(5):
            batch = make_batch(20, 1_700_000_000_000, codec=codec)
            side.note("produced", (codec, await produce(side.main, topic, batch)))
        found = await note_fetch(side, "all", topic, 0)
        side.note("bytes", found["data"])

    await compare(script)


async def test_limits_of_a_fetch(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", 2)
        batches = [make_batch(5, 1_700_000_000_000) for _ in range(4)]
        for batch in batches:
            await produce(side.main, topic, batch)
            await produce(side.main, topic, batch, partition=1)
        size = len(batches[0])
        for limit in (0, 1, size - 1, size, size + 30, 3 * size):
            await note_fetch(side, f"partition {limit}", topic, 2, partition_bytes=limit)
            await note_fetch(side, f"whole {limit}", topic, 2, max_bytes=limit)
            wanted = [(topic, [(0, 0, limit), (1, 7, limit)])]
            for whole in (1, size, size + 10, 2 * size, 1 << 20):
                answer = await side.main.ask(FetchRequest(0, 1, whole, COMMITTED, wanted))
                sizes = [(entry[0], len(entry[-1])) for entry in answer.topics[0][1]]
                side.note(f"two of {limit}, whole {whole}", sizes)

    await compare(script)


async def test_a_fetch_waits_for_enough_bytes(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        batch = make_batch(5, 1_700_000_000_000)
        other = await side.connect()
        for min_bytes in (1, len(batch) + 1):
            start = (await fetch(side.main, topic, 0))["high"]
            waiting = await side.start(fetch(other, topic, start, wait_ms=3_000, min_bytes=min_bytes))
            side.note("waits", not waiting.done())
            await produce(side.main, topic, batch)
            await side.sleep(0.3)
            side.note("has enough", waiting.done())
            if not waiting.done():
                await produce(side.main, topic, batch)
            side.note("size", (await waiting)["size"])
        before = side.wall_ms
        side.note("nothing", (await fetch(other, topic, 15, wait_ms=300))["size"])
        side.note("waited", 290 <= side.wall_ms - before < 2_000)

    await compare(script)


async def test_unknown_places(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        for name, partition in ((topic, 4), (side.name("missing"), 0)):
            batch = make_batch(1, 1_700_000_000_000)
            side.note("produce", await produce(side.main, name, batch, partition=partition))
            answer = await side.main.ask(FetchRequest(100, 1, 1000, COMMITTED, [(name, [(partition, 0, 1000)])]))
            side.note("fetch", read_partition(answer.topics[0][1][0]))
            side.note("offset", await list_offset(side, name, -1, partition=partition))

    await compare(script)


async def test_bad_batches_are_refused(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", max_message_bytes=2_000)
        compacted = await side.make_topic("compacted", cleanup_policy="compact")
        at = side.wall_ms
        good = make_batch(3, at)
        cases = {
            "crc": make_batch(3, at, crc=7),
            "cut": good[:-3],
            "longer": good + b"123",
            "two": good + good,
            "empty": b"",
            "large": make_batch([(b"k", b"v" * 3_000)], at),
            "control": make_batch(1, at, control=True),
            "count": make_batch(3, at, count=2),
            "delta": make_batch(3, at, last_offset_delta=5),
            "no sequence": make_batch(1, at, producer_id=4, producer_epoch=0),
            "late": make_batch(1, at + 7_200_000),
            "early": make_batch(1, 1_000),
            "transactional": make_batch(1, at, transactional=True),
            "no records": make_batch([], at),
        }
        for name, batch in cases.items():
            offset = (await list_offset(side, topic, -1))[2]
            code, found, *rest = await produce(side.main, topic, batch)
            side.note(name, (code, found if found < 0 else found - offset, *rest))
        side.note("no key", await produce(side.main, compacted, make_batch([(b"k", b"v"), (None, b"v")], at)))
        side.note("key", await produce(side.main, compacted, make_batch([(b"k", None)], at)))
        for acks in (0, 1, 2):
            if acks:
                side.note(f"acks {acks}", await produce(side.main, topic, good, acks=acks))

    await compare(script)


async def test_sequences_of_an_idempotent_producer(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        code, producer = await init_producer(side, None)
        side.note("init", (code, producer[1]))
        at = side.wall_ms

        async def send(what: str, sequence: int, count: int = 2, epoch: int = 0, base: int | None = None) -> None:
            own = of_producer((base or producer[0], epoch), sequence)
            code, offset, timestamp, start = await produce(side.main, topic, make_batch(count, at, **own))
            side.note(what, (code, offset, timestamp if timestamp < 0 else timestamp - at, start))

        await send("not from zero, as nothing is known of it", 4)
        await send("next", 6)
        await send("again", 6)
        await send("again, longer", 6, 3)
        await send("gap", 9)
        for i in range(8, 20, 2):
            await send("next", i)
        await send("the last of five", 10)
        await send("older than five", 8)
        await send("new epoch, not from zero", 5, epoch=1)
        await send("new epoch", 0, epoch=1)
        await send("old epoch", 20)
        await send("old epoch, known batch", 18)
        _, other = await init_producer(side, None)
        await send("near the end of sequences", 2**31 - 2, 2, base=other[0])
        await send("wraps around", 0, 1, base=other[0])
        await send("after the end", 1, 1, base=other[0])
        side.note("end", await list_offset(side, topic, -1))

    await compare(script)


async def test_offsets_by_time(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t")
        empty = await side.make_topic("empty")
        at = 1_700_000_000_000
        for i, codec in enumerate((0, 3, 0)):
            await produce(side.main, topic, make_batch(4, at + 100 * (2 - i if i else 0), codec=codec))
        for when in (-1, -2, -3, at - 1, at, at + 2, at + 50, at + 102, at + 103, at + 203, at + 204):
            for committed in (True, False):
                side.note(f"at {when}", await list_offset(side, topic, when, committed=committed))
            if when > -3:
                answer = await side.main.ask(OffsetRequest(-1, 1, [(topic, [(0, when)])]))
                side.note(f"older version at {when}", list(map(tuple, answer.topics[0][1])))
            side.note("empty", await list_offset(side, empty, when))

    await compare(script)


async def test_log_append_time(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", message_timestamp_type="LogAppendTime")
        before = side.wall_ms
        code, offset, timestamp, start = await produce(side.main, topic, make_batch(3, 5, codec=3))
        side.note("produced", (code, offset, start, before - 5_000 <= timestamp <= side.wall_ms + 5_000))
        await note_fetch(side, "fetched", topic, 0)
        found = await list_offset(side, topic, -3)
        side.note("newest", (found[0], found[1] == timestamp, *found[2:]))
        found = await list_offset(side, topic, timestamp)
        side.note("at", (found[0], found[1] == timestamp, *found[2:]))

    await compare(script)
