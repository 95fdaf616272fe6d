"""When a round counts as part of a backlog, so that its transaction waits for more rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.kafka.log_position import LogPosition
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.intake import Round
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
