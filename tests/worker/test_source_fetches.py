"""When a round counts as part of a backlog, so that its transaction waits for more rounds; a halted cursor whose last
fetch is answered late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.kafka.fetched import Lost
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.metrics import Metrics
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerState
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.intake import Round
from overlay.worker.cursors.table import State
from overlay.worker.source_fetches import BACKLOG_BYTES, SourceFetches

PLACE = ("S", ("source", 0))
MUCH, LITTLE = BACKLOG_BYTES, 100


@pytest.mark.parametrize(
    ("cursors", "expected"),
    [
        ([(MUCH, 5, True)], True),
        ([(MUCH, 0, True)], False),
        ([(LITTLE, 5, True)], False),
        ([(MUCH, 5, True), (LITTLE, 5, True)], True),
        ([(MUCH, 5, True), (LITTLE, 0, True)], False),
        # no reader waits for what is there for the index alone
        ([(MUCH, 5, True), (LITTLE, 0, False)], True),
        ([], False),
    ],
)
def test_a_round_with_records_of_the_tail_is_no_backlog(cursors: list[tuple[int, int, bool]], expected: bool) -> None:
    """Of each cursor: the bytes of its data, the offsets left, and whether it has consumers."""
    nothing, made = cast("Any", None), Round()
    fetches = SourceFetches(nothing, nothing, nothing, nothing)
    for size, left, has_members in cursors:
        cursor = Cursor(LogPosition(10), {("S", "c")} if has_members else set())
        fetches._fetches[cursor] = cast("Any", SimpleNamespace(stable_end=20, position=20 - left))
        made.tasks.append(cast("Any", SimpleNamespace(fetched=SimpleNamespace(data=SimpleNamespace(size=size)))))
        made.owners.append((PLACE, cursor))
    assert fetches.has_backlog(made) is expected


@pytest.mark.parametrize(("state", "position", "lost"), [(State.READING, 30, 20), (State.HALTED, 10, 0)])
async def test_a_halted_cursor_that_retention_passes_stays_and_has_lost_nothing_yet(
    state: State, position: int, lost: int
) -> None:
    """Its last fetch was in flight when it halted."""

    async def find_bounds(sources: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(sources, (30, 50))

    cursors, metrics = Cursors(), Metrics()
    cursors.enlist(("S", "c"), ConsumerState(), {PLACE[1]: LogPosition(10)})
    ((_, cursor),) = cursors.all()
    cursor.state = state
    fetcher = cast("Any", SimpleNamespace(wake=lambda: None))
    fetch = PartitionFetch(fetcher, *PLACE[1], 12, NO_STOP)
    fetch.rest()
    fetch.ready = Lost(12)
    fetches = SourceFetches(cursors, fetcher, cast("Any", SimpleNamespace(find_bounds=find_bounds)), metrics)
    fetches._fetches[cursor] = fetch
    moved = await fetches.recover()
    assert moved.partitions == ({PLACE} if lost else set())
    assert (cursor.state, cursor.position) == (state, position)
    assert fetches._fetches[cursor].ready is None
    assert (metrics.registry.get_sample_value("overlay_records_lost_total", {"stream": "S"}) or 0) == lost
    assert (await fetches.recover()).partitions == set()
