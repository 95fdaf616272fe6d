"""Where every consumer of a session stands, while records are on their way and before they are committed.

Holds the tracks of each partition and turns what a round has come to into the delta that accounts for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from overlay.kafka.log_position import Mark, Source
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta

from .cursor import Track, find_tail, join

Place = tuple[str, Source]  # stream and partition


@dataclass(slots=True)
class Positions:
    tracks: dict[Place, list[Track]] = field(default_factory=dict)
    sequences: dict[ConsumerId, int] = field(default_factory=dict)
    snapshots: dict[ConsumerId, Mapping[Source, int]] = field(default_factory=dict)
    floors: dict[ConsumerId, Mapping[Source, int]] = field(default_factory=dict)
    heard: dict[ConsumerId, Mapping[Source, int]] = field(default_factory=dict)
    """Positions in ack topics, where they differ from the stream's."""
    replays: dict[ConsumerId, int | None] = field(default_factory=dict)
    """Up to which sequence consumers replay the stream."""
    holds: dict[ConsumerId, dict[Source, int]] = field(default_factory=dict)
    """Offsets before which consumers stand who have a machine: what was read for them from there on is not delivered."""
    left: dict[ConsumerId, dict[Source, Mark]] = field(default_factory=dict)
    """Where consumers stand in partitions that their stream does not have now: it may have them again."""
    parked: dict[ConsumerId, dict[Source, Mark]] = field(default_factory=dict)
    """Where consumers stand who have left their tracks (worker/acks/backpressure.py)."""
    ordered: frozenset[str] = frozenset()
    """Streams with a ledger, whose tracks go in convoys (order.py)."""
    _convoys: int = 0

    def enlist(
        self, consumer: ConsumerId, state: ConsumerState, marks: Mapping[Source, Mark], *, careful: bool = False
    ) -> None:
        """Put a consumer on the track at its position in each partition, or on a new one.

        `careful`: in a stream with a ledger it may not be told of sequences before they are committed.
        """
        self.sequences[consumer] = state.sequence
        self.snapshots[consumer] = state.snapshot
        self.floors[consumer] = state.floor
        self.heard[consumer] = state.heard
        self.replays[consumer] = state.replay_until
        self.left[consumer] = {source: mark for source, mark in state.own.items() if source not in marks}
        convoy = self._find_convoy(consumer[0], state, marks, careful) if consumer[0] in self.ordered else 0
        for source, mark in marks.items():
            tracks = self.tracks.setdefault((consumer[0], source), [])
            end = state.snapshot.get(source, -1)
            here = _find_at(tracks, mark, convoy)
            if mark.position < end:
                snapshot, undecided = np.empty(0, np.int64), consumer[0] in self.ordered
                tracks.append(Track(mark, {consumer}, snapshot, end, undecided, convoy=convoy, careful=careful))
            elif here is not None:
                here.members.add(consumer)
            else:
                tracks.append(Track(mark, {consumer}, convoy=convoy, careful=careful))

    def _find_convoy(self, stream: str, state: ConsumerState, marks: Mapping[Source, Mark], careful: bool) -> int:
        """The convoy that stands at exactly these positions, or a new one."""
        tracks = {source: self.tracks.get((stream, source), []) for source in marks}
        some = next(iter(tracks.values()), [])
        if any(mark.position < state.snapshot.get(source, -1) for source, mark in marks.items()):
            return self._make_convoy()
        for number in {t.convoy for t in some if t.convoy and t.careful == careful}:
            if all(_find_at(tracks[source], mark, number) for source, mark in marks.items()):
                return number
        return self._make_convoy()

    def _make_convoy(self) -> int:
        self._convoys += 1
        return self._convoys

    def enlist_ledger(self, stream: str, heads: Mapping[Source, Mark]) -> None:
        """Have the sequences of a stream given out from these marks on. Before the consumers."""
        convoy = self._make_convoy()
        for source, mark in heads.items():
            self.tracks.setdefault((stream, source), []).append(Track(mark, sequenced=True, convoy=convoy))

    def enlist_index(self, place: Place, mark: Mark) -> None:
        """Have the chunk index of a partition made from `mark` on, by whoever reads there."""
        tracks = self.tracks.setdefault(place, [])
        ordered = place[0] in self.ordered
        here = next(
            (t for t in tracks if t.position == mark.position and not t.is_alone and t.sequenced == ordered), None
        )
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

    def align(self, stream: str) -> None:
        """Have convoys go together from now on that have met in every partition, and what only the index is made from go
        with the head."""
        tracks = {source: some for (name, source), some in self.tracks.items() if name == stream}
        places: dict[int, dict[Source, int]] = defaultdict(dict)
        apart: set[int] = set()
        careful: set[int] = set()
        waiting: set[int] = set()
        for source, some in tracks.items():
            head = next((track for track in some if track.sequenced), None)
            for track in some:
                if not track.convoy and head is not None and track.position == head.position:
                    track.convoy = head.convoy
                track.finish_snapshot()
                places[track.convoy][source] = track.position
                apart |= {track.convoy} if track.is_alone else set()
                careful |= {track.convoy} if track.careful else set()
                waiting |= {track.convoy} if track.waits else set()
        met: dict[tuple[object, ...], int] = {}
        for number, positions in sorted(places.items()):
            if not number or number in apart:
                continue
            into = met.setdefault((number in careful, number in waiting, *sorted(positions.items())), number)
            if into != number:
                for track in (track for some in tracks.values() for track in some if track.convoy == number):
                    track.convoy = into

    def part(self, stream: str, convoy: int, machines: Collection[ConsumerId]) -> list[tuple[Place, Track]]:
        """Have the consumers of a stopped convoy that are among `machines` wait, and the others go on without them.

        Returns the tracks of the others, if both are there: these are new and have no lanes yet.
        """
        tracks = [(place, track) for place, track in self.all() if place[0] == stream and track.convoy == convoy]
        members = {member for _, track in tracks for member in track.members}
        waiting = {member for member in members if member in machines}
        if not waiting:
            return []
        parted: list[tuple[Place, Track]] = []
        number = self._make_convoy()
        for place, track in tracks:
            if members - waiting:
                other = replace(track, members=track.members - waiting, convoy=number)
                self.tracks[place].append(other)
                parted.append((place, other))
            track.members &= waiting
            track.waits = True
        return parted

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
        own |= self.left.get(consumer, {}) | self.parked.get(consumer, {})
        return own | {source: Mark(offset) for source, offset in self.holds.get(consumer, {}).items()}

    def state_of(self, consumer: ConsumerId) -> ConsumerState:
        own = self.own(consumer)
        # by sequences a consumer may have to step back to below its floor or its snapshot's end (open_positions)
        kept = consumer[0] in self.ordered
        ends = self.snapshots[consumer].items()
        snapshot = {s: end for s, end in ends if kept or (s in own and own[s].position < end)}
        floor = {s: at for s, at in self.floors[consumer].items() if kept or at > self._position(consumer, s)}
        return ConsumerState(
            self.sequences[consumer], own, snapshot, floor, self.heard[consumer], self.replays[consumer]
        )

    def is_alone(self, consumer: ConsumerId) -> bool:
        """Whether it is still being given last messages, in any partition."""
        return any(track.is_alone and consumer in track.members for _, track in self.all())

    def park(self, consumer: ConsumerId) -> None:
        """Take a consumer off its tracks."""
        mine = [
            (place[1], track) for place, track in self.all() if consumer in track.members and place[0] == consumer[0]
        ]
        self.parked[consumer] = {source: track.mark for source, track in mine}
        for _, track in mine:
            track.members.discard(consumer)

    def unpark(self, consumer: ConsumerId, *, careful: bool) -> None:
        """Put a consumer on tracks again, where it left them."""
        state, marks = self.state_of(consumer), self.parked.pop(consumer)
        self.enlist(consumer, state, marks, careful=careful)

    def drop_empty(self) -> list[tuple[Place, Track]]:
        """Forget the tracks that nobody is on and nothing is made from; returns them."""
        empty = [(p, t) for p, t in self.all() if not t.members and not t.indexed and not t.sequenced]
        for place, track in empty:
            self.tracks[place].remove(track)
        return empty

    def _position(self, consumer: ConsumerId, source: Source) -> int:
        if consumer in self.parked:
            return self.parked[consumer][source].position
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


def _find_at(tracks: Iterable[Track], mark: Mark, convoy: int) -> Track | None:
    """The track at a position that others may join."""
    return next((t for t in tracks if t.position == mark.position and t.convoy == convoy and not t.is_alone), None)
