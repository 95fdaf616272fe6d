"""Which consumers read a partition together.

A track is one reading position of a partition and the consumers that stand there. The foremost track is the tail: its
position is the stream's cursor. The others are catching up. A track reads up to where the next one stands and then joins
it, so that every batch is fetched and decoded once for all consumers at the same place.

A round handles what has been fetched for some tracks. When a track is going to reach the next one in this round, that one
sits the round out; otherwise it would always be a step ahead and the two would never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

LaneT = TypeVar("LaneT")


@dataclass(slots=True, eq=False)
class Track(Generic[LaneT]):
    """`position`: the next offset that its consumers have not been given."""

    position: int
    lane: LaneT
    members: set[tuple[str, str]] = field(default_factory=set)
    alone: bool = False
    """Whether it must not join another yet: it delivers selected records only (last_per_subject)."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[LaneT]):
    """One track's part in a round: read to `stop`, exclusive."""

    track: Track[LaneT]
    stop: int


def plan_round(tracks: list[Track[LaneT]], fetched_to: dict[int, int], no_stop: int) -> list[Turn[LaneT]]:
    """Turns for the tracks of one partition. `fetched_to`: where the data in hand ends, by id() of the track."""
    turns: list[Turn[LaneT]] = []
    held: set[int] = set()
    ordered = sorted(tracks, key=lambda track: track.position)
    for track, ahead in zip(ordered, [*ordered[1:], None], strict=True):
        end = fetched_to.get(id(track))
        if end is None or id(track) in held:
            continue
        stop = no_stop if ahead is None or track.alone else ahead.position
        if ahead is not None and not track.alone and end >= stop:
            held.add(id(ahead))
        turns.append(Turn(track, stop))
    return turns


def join(tracks: list[Track[LaneT]]) -> list[Track[LaneT]]:
    """Merge tracks that have met; returns those that are no longer needed. `tracks` is changed in place."""
    by_position: dict[int, Track[LaneT]] = {}
    spent: list[Track[LaneT]] = []
    for track in tracks:
        first = by_position.setdefault(track.position, track) if not track.alone else track
        if first is not track:
            first.members |= track.members
            spent.append(track)
    tracks[:] = [track for track in tracks if track not in spent]
    return spent
