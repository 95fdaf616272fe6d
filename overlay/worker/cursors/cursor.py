"""Which consumers read a partition together.

A track is one reading position of a partition and the consumers that stand there. The foremost track is the tail: its
position is the stream's cursor. The others are catching up. A track reads up to where the next one stands and then joins
it, so that every batch is fetched and decoded once for all consumers at the same place.

A round handles what has been fetched for some tracks. When a track is going to reach the next one in this round, that one
sits the round out; otherwise it would always be a step ahead and the two would never meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from overlay.kafka.log_position import Mark
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId


@dataclass(slots=True, eq=False)
class Track:
    """`mark`: what its consumers have been given lies before it."""

    mark: Mark
    members: set[ConsumerId] = field(default_factory=set)
    only: npt.NDArray[np.int64] | None = None
    """Offsets to deliver and no others, up to `snapshot_end`; such a track is by itself (last_per_subject)."""
    snapshot_end: int = NO_STOP
    undecided: bool = False
    """Which offsets `only` has is not known yet: the track stays where it is (worker/last_messages.py)."""
    indexed: bool = False
    """Whether the stream's chunk index is made of what this track reads, beside what its members want."""
    sequenced: bool = False
    """Whether what this track reads gets its sequences then; it is the foremost (worker/round/sequencing.py)."""
    convoy: int = 0
    """Tracks of several partitions with the same number go together (order.py); 0 for one that is by itself."""
    careful: bool = False
    """Whether its members may not be told of sequences that are not committed yet."""
    halted: bool = False
    """A corrupt batch is in the way; those who reach it stop as well."""
    waits: bool = False
    """Whether a corrupt batch in any partition of its convoy stops it (order.py)."""

    @property
    def position(self) -> int:
        return self.mark.position

    @property
    def is_alone(self) -> bool:
        return self.only is not None

    def finish_snapshot(self) -> None:
        """Once the last messages are delivered, go on like any other."""
        if self.is_alone and self.position >= self.snapshot_end:
            self.only, self.snapshot_end = None, NO_STOP


@dataclass(frozen=True, slots=True)
class Turn:
    """One track's part in a round: read to `stop`, exclusive."""

    track: Track
    stop: int


def find_tail(tracks: Sequence[Track]) -> Track | None:
    """The foremost track, whose position is the stream's cursor; one that is alone never is."""
    return max((track for track in tracks if not track.is_alone), key=lambda track: track.position, default=None)


def plan_round(tracks: Sequence[Track], fetched_to: Mapping[Track, int]) -> list[Turn]:
    """Turns for the tracks of one partition. `fetched_to`: where the data in hand ends, for tracks that have some."""
    turns: list[Turn] = []
    held: set[Track] = set()
    joinable = sorted((track for track in tracks if not track.is_alone), key=lambda track: track.position)
    for i, track in enumerate(joinable):
        if track in held or track not in fetched_to:
            continue
        ahead = joinable[i + 1] if i + 1 < len(joinable) else None
        stop = NO_STOP if ahead is None else ahead.position
        if ahead is not None and fetched_to[track] >= stop:
            held.add(ahead)
        turns.append(Turn(track, stop))
    turns += [Turn(track, track.snapshot_end) for track in tracks if track.is_alone and track in fetched_to]
    return turns


def join(tracks: list[Track]) -> list[Track]:
    """Merge tracks that have met, changing `tracks`; returns those that are no longer needed."""
    met: dict[tuple[int, int], Track] = {}
    spent: list[Track] = []
    for track in tracks:
        if track.is_alone:
            continue
        first = met.setdefault((track.position, track.convoy), track)
        if first is not track:
            first.members |= track.members
            first.halted |= track.halted
            first.indexed |= track.indexed
            first.sequenced |= track.sequenced
            spent.append(track)
    tracks[:] = [track for track in tracks if track not in spent]
    return spent
