"""Who comes back from backpressure, and on which cursors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from overlay.kafka.log_position import LogPosition
from overlay.state.shard_state import ConsumerState
from overlay.worker.backpressure import Backpressure
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.dispatch_loop import DispatchLoop
from overlay.worker.round.pending_estimate import PendingEstimate

PLACE = ("S", ("t", 0))
A, B, C = ("S", "a"), ("S", "b"), ("S", "c")


def test_who_comes_back_to_a_cursor_that_is_there_changes_it() -> None:
    """What that cursor may leave out has to be planned anew, so there is a new wish for it."""
    cursors, full = Cursors(), {A, C}
    for consumer, at in ((A, 10), (B, 500), (C, 10)):
        cursors.enlist(consumer, ConsumerState(), {PLACE[1]: LogPosition(at)})
    dispatch_loop = cast(DispatchLoop, SimpleNamespace(find_held=lambda size: set(full)))
    backpressure = Backpressure(cursors, dispatch_loop, PendingEstimate({}, {}))
    list(cursors.take_wishes())
    backpressure.resume(0)
    assert not list(cursors.take_wishes())
    assert backpressure.park() == ({PLACE}, {A, B, C}, ())
    assert [cursor.position for cursor in cursors.take_gone()] == [10]
    full.remove(A)
    backpressure.resume(0)
    ((place, cursor, wish),) = cursors.take_wishes()
    assert (place, cursor.position, cursor.members) == (PLACE, 10, {A}) and wish is not None
    full.clear()
    backpressure.resume(0)
    assert [cursor for _, cursor, _ in cursors.take_wishes()] == [cursor] and cursor.members == {A, C}
    backpressure.resume(0)
    assert not list(cursors.take_wishes()) and not cursors.parked
