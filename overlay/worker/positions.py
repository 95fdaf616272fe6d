"""Where every consumer of a session stands, while records are on their way and before they are committed.

Holds the tracks of each partition and turns what a round has come to into the delta that accounts for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from overlay.deliver.state import ConsumerId, ConsumerState, Delta
from overlay.scan.decode import NO_STOP
from overlay.source.mark import Mark, Source

from .tracks import Track, find_tail, join

Place = tuple[str, Source]  # stream and partition


@dataclass(slots=True)
class Positions:
    tracks: dict[Place, list[Track]] = field(default_factory=dict)
    sequences: dict[ConsumerId, int] = field(default_factory=dict)
    snapshots: dict[ConsumerId, Mapping[Source, int]] = field(default_factory=dict)
    floors: dict[ConsumerId, Mapping[Source, int]] = field(default_factory=dict)

    def enlist(self, consumer: ConsumerId, state: ConsumerState, marks: Mapping[Source, Mark]) -> None:
        """Put a consumer on the track at its position in each partition, or on a new one."""
        self.sequences[consumer] = state.sequence
        self.snapshots[consumer] = state.snapshot
        self.floors[consumer] = state.floor
        for source, mark in marks.items():
            tracks = self.tracks.setdefault((consumer[0], source), [])
            end = state.snapshot.get(source, -1)
            here = next((t for t in tracks if t.position == mark.position and not t.is_alone), None)
            if mark.position < end:
                tracks.append(Track(mark, {consumer}, only=np.empty(0, np.int64), snapshot_end=end))
            elif here is not None:
                here.members.add(consumer)
            else:
                tracks.append(Track(mark, {consumer}))

    def enlist_index(self, place: Place, mark: Mark) -> None:
        """Have the chunk index of a partition made from `mark` on, by whoever reads there."""
        tracks = self.tracks.setdefault(place, [])
        here = next((t for t in tracks if t.position == mark.position and not t.is_alone), None)
        if here is None:
            here = Track(mark)
            tracks.append(here)
        here.indexed = True

    def all(self) -> Iterator[tuple[Place, Track]]:
        for place, tracks in self.tracks.items():
            for track in tracks:
                yield place, track

    def find_ahead(self, place: Place, track: Track) -> int:
        """Where the next track stands that this one can join; NO_STOP when there is none."""
        if track.is_alone:
            return NO_STOP
        others = (t.position for t in self.tracks[place] if not t.is_alone and t.position > track.position)
        return min(others, default=NO_STOP)

    def floors_at(self, track: Track, source: Source) -> dict[ConsumerId, int]:
        """The floors of a track's members that lie ahead of it."""
        floors = {consumer: self.floors[consumer].get(source, 0) for consumer in track.members if self.floors[consumer]}
        return {consumer: floor for consumer, floor in floors.items() if floor > track.position}

    def settle(self, place: Place) -> list[Track]:
        """Join the tracks of a partition that have met; returns those that are no longer needed."""
        for track in self.tracks[place]:
            track.finish_snapshot()
        return join(self.tracks[place])

    def own(self, consumer: ConsumerId) -> dict[Source, Mark]:
        """The consumer's positions that are not the cursor's."""
        own = {}
        for (stream, source), tracks in self.tracks.items():
            if stream == consumer[0]:
                tail = find_tail(tracks)
                for track in tracks:
                    if consumer in track.members and track is not tail:
                        own[source] = track.mark
        return own

    def state_of(self, consumer: ConsumerId) -> ConsumerState:
        own = self.own(consumer)
        snapshot = {s: end for s, end in self.snapshots[consumer].items() if s in own and own[s].position < end}
        floor = {s: at for s, at in self.floors[consumer].items() if at > self._position(consumer, s)}
        return ConsumerState(self.sequences[consumer], own, snapshot, floor)

    def _position(self, consumer: ConsumerId, source: Source) -> int:
        tracks = self.tracks.get((consumer[0], source), ())
        return next((track.position for track in tracks if consumer in track.members), 0)

    def delta(self, moved: Iterable[Place], changed: Iterable[ConsumerId]) -> Delta:
        """What to remember after a round: the cursors of the partitions that moved, and the consumers that changed."""
        tails = {place: find_tail(self.tracks[place]) for place in moved}
        cursors = {place: tail.mark for place, tail in tails.items() if tail is not None}
        return Delta(cursors, {consumer: self.state_of(consumer) for consumer in sorted(changed)})

    def everything(self) -> Delta:
        """All of it. A session begins with this, so that each partition has a cursor before a consumer is written without
        a position of its own."""
        return self.delta(self.tracks, self.sequences)
