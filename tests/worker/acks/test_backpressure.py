"""Who comes back from backpressure, and on which cursors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from overlay.kafka.log_position import LogPosition
from overlay.state.shard_state import ConsumerState
from overlay.worker.acks.backpressure import Backpressure
from overlay.worker.acks.dispatch_loop import DispatchLoop
from overlay.worker.cursors.positions import Positions
from overlay.worker.round.task import Reader

PLACE = ("S", ("t", 0))
A, B, C = ("S", "a"), ("S", "b"), ("S", "c")


def test_who_comes_back_to_a_cursor_that_is_there_changes_it() -> None:
    """What that cursor may leave out has to be planned anew, so it is among those that are named."""
    positions, full = Positions(), {A, C}
    for consumer, at in ((A, 10), (B, 500), (C, 10)):
        positions.enlist(consumer, ConsumerState(), {PLACE[1]: LogPosition(at)})
    dispatch_loop = cast(DispatchLoop, SimpleNamespace(find_held=lambda size: set(full)))
    backpressure = Backpressure(positions, dispatch_loop, {each: Reader(each, (), None) for each in (A, B, C)})
    assert backpressure.come_back() == []
    left, empty = backpressure.leave()
    assert left == {A, C} and [(place, cursor.position) for place, cursor in empty] == [(PLACE, 10)]
    full.remove(A)
    ((place, cursor),) = backpressure.come_back()
    assert (place, cursor.position, cursor.members) == (PLACE, 10, {A})
    full.clear()
    assert backpressure.come_back() == [(PLACE, cursor)] and cursor.members == {A, C}
    assert backpressure.come_back() == [] and backpressure.returned == {A, C}
