"""A stream's chunk index as any reader reads it, held against what a client reads from the source topic."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from overlay.config import load
from overlay.index.skip.chunks import Chunks
from overlay.index.topic import Index
from overlay.kafka.admin import connect
from overlay.kafka.own_topics import index_topic
from overlay.subject import Pattern
from tests.worker.scenes import Scene, expect, read_committed


def read_index(scene: Scene, stream: str = "S") -> Index:
    """What the stream's index topic says now."""

    async def read() -> Index:
        loaded = load(scene.folder)
        topic, index = index_topic(scene.prefix, stream), Index(loaded.streams[stream])
        async with connect(loaded.service.kafka) as (admin, client):
            if await admin.find_topics([topic], with_config=False):
                first, end = (await admin.find_bounds([(topic, 0)]))[topic, 0]
                index.position = first
                await index.read(client, topic, end)
        return index

    return asyncio.run(read())


def check_chunks(chunks: Chunks, scene: Scene, topic: str, first: int = 0, partition: int = 0) -> None:
    """The chunks lie one behind the other from `first` on, and count what the source topic holds."""
    assert chunks.first_offset[0] == first
    assert chunks.first_offset[1:].tolist() == chunks.next_offset[:-1].tolist()
    records = [r for r in read_committed(scene.bootstrap, topic) if r.partition == partition]
    offsets = [record.offset for record in records]
    for row, (low, high) in enumerate(zip(chunks.first_offset.tolist(), chunks.next_offset.tolist(), strict=True)):
        held = records[bisect_left(offsets, low) : bisect_left(offsets, high)]
        assert chunks.records[row] == len(held)
        assert chunks.addressed[row] == len(expect(held))
    for pattern in ("a.*", "*.y", ">"):
        counts, known = chunks.subject_counts([Pattern(pattern)])
        assert known.all()
        below = [record for record in expect(records, [pattern], prefix="") if record.offset < chunks.next_offset[-1]]
        assert counts.sum() == len([record for record in below if record.offset >= first])
