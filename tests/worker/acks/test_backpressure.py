"""Who comes back from parking, and on which tracks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from overlay.kafka.log_position import Mark
from overlay.state.shard_state import ConsumerState
from overlay.worker.acks.backpressure import Parking
from overlay.worker.acks.dispatch_loop import Clerk
from overlay.worker.cursors.positions import Positions
from overlay.worker.round.pipeline import Reader

PLACE = ("S", ("t", 0))
A, B, C = ("S", "a"), ("S", "b"), ("S", "c")


def test_who_comes_back_to_a_track_that_is_there_changes_it() -> None:
    """What that track may leave out has to be planned anew, so it is among those that are named."""
    positions, full = Positions(), {A, C}
    for consumer, at in ((A, 10), (B, 500), (C, 10)):
        positions.enlist(consumer, ConsumerState(), {PLACE[1]: Mark(at)})
    clerk = cast(Clerk, SimpleNamespace(find_held=lambda size: set(full)))
    parking = Parking(positions, clerk, {each: Reader(each, (), None) for each in (A, B, C)})
    assert parking.come_back() == []
    left, empty = parking.leave()
    assert left == {A, C} and [(place, track.position) for place, track in empty] == [(PLACE, 10)]
    full.remove(A)
    ((place, track),) = parking.come_back()
    assert (place, track.position, track.members) == (PLACE, 10, {A})
    full.clear()
    assert parking.come_back() == [(PLACE, track)] and track.members == {A, C}
    assert parking.come_back() == [] and parking.returned == {A, C}
