"""A time at which a reading begins: for each of its ranges, also if a partition has several."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from overlay.client.connection import Connection
from overlay.client.read.bounds import begin_at
from overlay.client.read.offset_ranges import OffsetRange
from overlay.kafka.log_position import TopicPartition

SOURCE, OTHER, EMPTY = ("t", 0), ("t", 1), ("t", 2)
FOUND = {SOURCE: 25, OTHER: -1, EMPTY: -1}
"""The first offsets with the time; in two partitions Kafka finds none."""


class Admin:
    async def find_offsets(self, sources: Collection[TopicPartition], spec: object) -> dict[TopicPartition, int]:
        return {source: FOUND[source] for source in sources}


async def test_each_range_of_a_partition_begins_by_itself() -> None:
    ranges = [
        OffsetRange(SOURCE, 0, 10),
        OffsetRange(OTHER, 5, 9),
        OffsetRange(SOURCE, 20, 30),
        OffsetRange(EMPTY, 0, 9),
        OffsetRange(SOURCE, 40, 50),
    ]
    line = cast(Connection, SimpleNamespace(admin=cast(Any, Admin())))
    found = [(each.source, each.start, each.stop) for each in await begin_at(line, ranges, 1_000)]
    assert [(source, max(0, stop - start)) for source, start, stop in found] == [
        (SOURCE, 0),
        (OTHER, 4),
        (SOURCE, 5),
        (EMPTY, 0),
        (SOURCE, 10),
    ]
