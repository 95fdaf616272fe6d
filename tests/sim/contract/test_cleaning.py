"""Retention and compaction: both sides keep and delete the same batches."""

from __future__ import annotations

import pytest

from tests.oracle.batches import parse

from .requests import UNCOMMITTED, fetch, init_producer, list_offset, make_batch, note_fetch, of_producer, produce
from .sides import Compare, Side
from .test_transactions import Writer

LIMIT_S = 30.0
HOUR_MS = 3_600_000


async def read_all(side: Side, topic: str, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of every record that is not a marker, aborted ones included."""
    rows: list[tuple[int, bytes | None, bytes | None]] = []
    while True:
        found = await fetch(side.main, topic, start, isolation=UNCOMMITTED)
        batches = parse(found["data"])
        if not batches:
            return rows
        for batch in batches:
            rows += [(one.offset, one.key, one.value) for one in batch.records if not batch.is_control]
        start = batches[-1].last_offset + 1


async def read_shapes(side: Side, topic: str) -> list[tuple[int, int, int, int]]:
    """Return (base offset, last offset, records, attributes) of every batch."""
    shapes: list[tuple[int, int, int, int]] = []
    start = 0
    while True:
        found = await fetch(side.main, topic, start, isolation=UNCOMMITTED)
        if not found["batches"]:
            return shapes
        shapes += [(base, last, count, attributes) for base, last, count, _, attributes in found["batches"]]
        start = found["batches"][-1][1] + 1


async def test_old_segments_expire(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic("t", retention_ms=HOUR_MS, segment_ms=60_000)
        at = side.wall_ms
        # a batch whose timestamp is a minute after its segment's first one begins another
        for minutes in (-50, -49.5, -48, -30, 0, 0.5):
            await produce(side.main, topic, make_batch(2, int(at + minutes * 60_000)))
        side.note("bounds", [(await list_offset(side, topic, when))[2] for when in (-2, -1)])
        for _ in range(3):
            await side.sleep(0.3)
        side.note("kept", await read_shapes(side, topic))
        old = await side.make_topic("old", retention_ms=HOUR_MS, segment_ms=60_000)
        for minutes in (-130, -129.5, -128, -70, -65, -10, 0):
            await produce(side.main, old, make_batch(2, int(at + minutes * 60_000)))

        async def find_start() -> int:
            return (await list_offset(side, old, -2))[2]

        side.note("start", await side.until(find_start, lambda start: start == 10, LIMIT_S))
        await note_fetch(side, "before", old, 0)
        await note_fetch(side, "from the start", old, 10)
        everything = await side.make_topic("everything", retention_ms=HOUR_MS)
        await produce(side.main, everything, make_batch(3, at - 2 * HOUR_MS))

        async def find_empty() -> int:
            return (await list_offset(side, everything, -2))[2]

        side.note("start", await side.until(find_empty, lambda start: start == 3, LIMIT_S))
        side.note("end", await list_offset(side, everything, -1))
        side.note("newest", await list_offset(side, everything, -3))
        await note_fetch(side, "at the end", everything, 3)
        side.note("goes on", await produce(side.main, everything, make_batch(1, at)))

    await compare(script)


async def test_large_logs_lose_their_first_segments(compare: Compare) -> None:
    async def script(side: Side) -> None:
        size = len(make_batch([(b"k", b"v" * 300_000)], side.wall_ms))
        topic = await side.make_topic("t", segment_bytes=1 << 20, retention_bytes=2 * size)
        for _ in range(8):
            await produce(side.main, topic, make_batch([(b"k", b"v" * 300_000)], side.wall_ms))

        async def find_start() -> int:
            return (await list_offset(side, topic, -2))[2]

        await side.until(find_start, lambda start: start >= 3, LIMIT_S)
        await side.sleep(0.6)
        side.note("start", await find_start())
        side.note("kept", await read_shapes(side, topic))
        await produce(side.main, topic, make_batch(1, side.wall_ms))
        await side.sleep(0.6)
        side.note("start", await find_start())

    await compare(script)


async def test_compaction_keeps_last_values(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic(
            "t", cleanup_policy="compact", segment_ms=60_000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=500
        )
        at = side.wall_ms - 1_000_000
        batches: list[list[tuple[bytes | None, bytes | None]]] = [
            [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")],
            [(b"a", b"2"), (b"b", None)],
            [(b"d", b"1"), (b"a", b"3")],
            [(b"c", b"2")],
            [(b"e", b"1"), (b"e", b"2"), (b"f", None)],
        ]
        for i, pairs in enumerate(batches):
            await produce(side.main, topic, make_batch(pairs, at + 100_000 * i, codec=(0, 1)[i % 2]))
        last = [(b"a", b"4"), (b"z", b"1")]
        await produce(side.main, topic, make_batch(list(last), at + 600_000))

        async def read_values() -> list[tuple[int, bytes | None, bytes | None]]:
            return [row for row in await read_all(side, topic) if row[2] is not None]

        side.note("values", await side.until(read_values, lambda found: len(found) == 6, LIMIT_S))
        await side.sleep(1.0)
        # another cleaning, after the delete horizon
        await produce(side.main, topic, make_batch([(b"y", b"1")], at + 700_000))
        await produce(side.main, topic, make_batch([(b"y", b"2")], at + 800_000))

        async def has_tombstones() -> bool:
            return any(row[2] is None for row in await read_all(side, topic))

        await side.until(has_tombstones, lambda found: not found, LIMIT_S)
        await side.sleep(1.0)
        side.note("rows", await read_all(side, topic))
        side.note("shapes", await read_shapes(side, topic))
        side.note("bounds", [(await list_offset(side, topic, when))[2] for when in (-2, -1)])
        for offset in (0, 1, 4, 6):
            found = await fetch(side.main, topic, offset)
            side.note(f"from {offset}", found["batches"][:1])

    await compare(script)


async def test_compaction_of_transactions_and_producers(compare: Compare) -> None:
    async def script(side: Side) -> None:
        topic = await side.make_topic(
            "t", cleanup_policy="compact", segment_ms=60_000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=500
        )
        _, producer = await init_producer(side, None)
        at = side.wall_ms - 1_000_000
        for i, value in enumerate((b"1", b"2")):
            own = of_producer(producer, 2 * i)
            await produce(side.main, topic, make_batch([(b"p", value), (b"q", value)], at + 100_000 * i, **own))
        for i, commit in enumerate((True, False, True)):
            writer = await Writer.begin(side, f"w{i}")
            await writer.add(topic)
            await writer.send(topic)
            await writer.end(commit=commit)
            await writer.settled(topic)
        for i in range(3):
            await produce(side.main, topic, make_batch([(b"p", b"9"), (b"k", b"9")], side.wall_ms + 400_000 * (i + 1)))

        async def find_values() -> list[bytes | None]:
            return [row[2] for row in await read_all(side, topic) if row[1] == b"q"]

        await side.until(find_values, lambda found: found == [b"2"], LIMIT_S)
        await side.sleep(2.0)
        await produce(side.main, topic, make_batch([(b"y", b"1")], side.wall_ms + 2_000_000))
        await side.sleep(1.5)
        side.note("rows", await read_all(side, topic))
        side.note("shapes", await read_shapes(side, topic))
        found = await fetch(side.main, topic, 0)
        side.note("aborted", [(side.alias("producer", id), first) for id, first in found["aborted"]])
        own = of_producer(producer, 2)
        again = make_batch([(b"p", b"2"), (b"q", b"2")], at + 100_000, **own)
        side.note("sent again", (await produce(side.main, topic, again))[:2])
        own = of_producer(producer, 4)
        side.note("next", (await produce(side.main, topic, make_batch(1, side.wall_ms, **own)))[0])

    await compare(script)


async def test_compaction_forgets_aborted_transactions(compare: Compare) -> None:
    """A reader who is told of an aborted transaction passes over its producer's records up to the marker, which may be gone."""

    async def script(side: Side) -> None:
        topic = await side.make_topic(
            "t", cleanup_policy="compact", segment_ms=60_000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=500
        )
        writer = await Writer.begin(side, "w")
        for commit in (False, True):
            await writer.add(topic)
            await writer.send(topic)
            await writer.end(commit=commit)
            await writer.settled(topic)

        async def find_first() -> int:
            return (await read_shapes(side, topic))[0][0]

        # the records go in the first cleaning, and the marker in one that comes 0.5 s later
        for minutes in (2, 8):
            for value in (b"1", b"2"):
                await produce(side.main, topic, make_batch([(b"p", value)], side.wall_ms + minutes * 60_000))
            await produce(side.main, topic, make_batch([(b"q", b"1")], side.wall_ms + (minutes + 3) * 60_000))
            await side.sleep(1.5)
        side.note("first", await side.until(find_first, lambda first: first == 3, LIMIT_S))
        side.note("aborted", (await fetch(side.main, topic, 0))["aborted"])

    await compare(script)


pytestmark = pytest.mark.slow
