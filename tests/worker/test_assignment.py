"""Where new consumers begin, and how often Kafka is asked for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from overlay.config import LogEnds
from overlay.kafka.log_position import TopicPartition
from overlay.state.partitions import Sources
from overlay.worker.assignment import Assignment, _find_start
from tests.control.registries import make_config, make_files

SOURCE = ("source", 0)
START, END = 3, 9


class Asked:
    """An admin whose log grows by a record each time that it is asked."""

    def __init__(self) -> None:
        self.times = 0

    async def find_bounds(
        self, sources: Iterable[TopicPartition], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        self.times += 1
        return dict.fromkeys(sources, (START, END + self.times))

    async def find_offsets(
        self, sources: Iterable[TopicPartition], spec: object, *, committed: bool = True
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(sources, END + self.times)


@pytest.mark.parametrize(
    ("policy", "has_ends", "times", "positions"),
    [
        ({"deliver_policy": "all"}, False, 1, [START, START]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 6}, False, 1, [5, 5]),
        ({"deliver_policy": "new"}, True, 1, [7, 7]),
        # a record that comes while the first is enlisted is older than the second
        ({"deliver_policy": "new"}, False, 2, [END + 1, END + 2]),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"}, False, 2, [END + 1, END + 2]),
    ],
)
async def test_kafka_is_asked_once_for_all_new_consumers(
    policy: dict[str, Any], has_ends: bool, times: int, positions: list[int]
) -> None:
    assignment, admin = Assignment(), Asked()
    assignment.streams.update(make_files().streams)
    assignment.sources["S"] = Sources((SOURCE,), {"source": "id"})
    ends = LogEnds({"source": ("id", (7,))}) if has_ends else None
    bounds: dict[str, Any] = {}
    starts = [
        await _find_start(cast("Any", None), cast("Any", admin), make_config(name, **policy), ends, bounds, assignment)
        for name in ("a", "b")
    ]
    assert [start.positions[SOURCE] for start in starts] == positions
    assert admin.times == times
