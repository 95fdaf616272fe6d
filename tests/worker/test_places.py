"""Where the consumers of a session are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from overlay.kafka.log_position import LogPosition
from overlay.state.lag import Place
from overlay.state.shard_state import ConsumerState, ShardState
from overlay.worker.places import find_places

C, D = ("S", "c"), ("S", "d")
T0, T1 = ("t", 0), ("t", 1)


def unread(position: int) -> Place:
    return Place(position, -1, None, is_live=False)


def test_places_of_one_consumer_are_those_it_has_among_all() -> None:
    """Nothing is read for them: one is stalled, one is of a stopped stream, and one is a Spark job's."""
    stopped, job = ("R", "c"), ("R", "d")
    own = {T0: LogPosition(3)}
    consumers = {C: ConsumerState(own=own), D: ConsumerState(), stopped: ConsumerState(), job: ConsumerState(job="j")}
    assignment = SimpleNamespace(readers={}, stalled={C: "full"}, stopped={"R": "gone"})
    state = ShardState({("S", T0): LogPosition(7), ("R", T1): LogPosition(9)}, consumers)
    cursors, commits = SimpleNamespace(partitions=lambda: ()), SimpleNamespace(state=state)
    session = cast("Any", SimpleNamespace(assignment=assignment, cursors=cursors, commits=commits))
    every = find_places(session, {})
    assert every == {C: {T0: unread(3)}, stopped: {T1: unread(9)}}
    for consumer in (*consumers, ("S", "unknown")):
        only = {consumer: every[consumer]} if consumer in every else {}
        assert find_places(session, {}, consumer) == only
