"""In which order the partitions of a stream with a ledger are read: consumers are given its records by their sequences. No IO.

In a stream of one partition a consumer's place is an offset, and a track is all there is. Where there are several, a
consumer's place is a sequence: below it it has been given everything, in all partitions, and nothing from there on. So
its tracks go together, one in each partition, as a convoy. A round takes a convoy from run to run of the ledger, through
one partition after the other, as far as records are at hand and the ledger reaches. What is at hand beyond that is kept
for the next round.

Convoys meet as tracks do: one that is going to reach the next one in this round has that one sit it out, and then they are
one. The foremost, where the ledger is kept, is the head: what it reads is what gets sequences next, so it is in no need
of an order. Convoys of those who must not be told of a sequence before it is committed never join it, and stop where the
committed part of the ledger ends.

A track that only the chunk index is made from has no order to keep. It reads its partition up to the head, and joins it.

A partition that a corrupt batch stops is left out, and the others go on. Not so for consumers with machines: a machine takes
records by rising sequences, so it would refuse what lies behind the batch once the others had gone on. In a convoy of their
own (`waits`) they wait at the batch, until the next session finds it gone.

Records whose sequence is lost (index/ledger/ledger.py) are
read with those that come after them in their partition; those that nothing comes after yet, once all others are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from overlay.index.ledger.ledger import Ledger
from overlay.kafka.log_position import Source

from .cursor import Track

STEPS = 64
"""Of a convoy in a round, at most: each has its price, and the head waits meanwhile."""


@dataclass(frozen=True, slots=True)
class Step:
    """A track's part in a round, from `start` to `stop`; in one round it may have several."""

    source: Source
    track: Track
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`steps` in order; `wanted`: the tracks without whose data others cannot go on, however much those have at hand."""

    steps: Sequence[Step]
    wanted: frozenset[Track] = frozenset()


def plan_steps(
    tracks: Mapping[Source, Sequence[Track]], fetched_to: Mapping[Track, int], ledger: Ledger, committed: int
) -> Plan:
    """What to work on in a round. `fetched_to`: where the data in hand ends, for tracks that have some; `committed`: the
    first sequence that is not committed yet."""
    head = {source: track for source, some in tracks.items() for track in some if track.sequenced}
    steps, held, sitting, wanted = list[Step](), set[Source](), set[int](), set[Track]()
    for source, some in tracks.items():
        if source in head:
            steps += _follow(source, some, head[source], fetched_to, held)
    convoys = sorted(_find_convoys(tracks), key=lambda convoy: convoy.find_place(ledger))
    for i, convoy in enumerate(convoys):
        if convoy.number in sitting or convoy.is_undecided:
            continue
        goal, ahead = committed if convoy.careful else ledger.next_sequence, None
        for other in convoys[i + 1 :]:
            if convoy.may_join(other) and (place := other.find_place(ledger)) < goal:
                goal, ahead = place, other
                break
        own, missing = convoy.advance(fetched_to, ledger, goal)
        steps += own
        wanted |= missing
        if own and convoy.reaches(own, goal, ledger):
            if ahead is not None:
                sitting.add(ahead.number)
            elif not convoy.careful:
                held |= head.keys()
    steps += [
        Step(source, track, track.position, fetched_to[track])
        for source, track in sorted(head.items())
        if source not in held and track in fetched_to and fetched_to[track] > track.position
    ]
    return Plan(steps, frozenset(wanted))


@dataclass(frozen=True, slots=True)
class _Convoy:
    number: int
    tracks: dict[Source, Track]

    @property
    def waits(self) -> bool:
        return any(track.waits for track in self.tracks.values())

    @property
    def places(self) -> dict[Source, int]:
        """The position in each partition, but for those that are left out."""
        return {source: track.position for source, track in self.tracks.items() if self.waits or not track.halted}

    @property
    def careful(self) -> bool:
        return any(track.careful for track in self.tracks.values())

    @property
    def is_alone(self) -> bool:
        return any(track.is_alone for track in self.tracks.values())

    @property
    def is_undecided(self) -> bool:
        return any(track.undecided for track in self.tracks.values())

    def may_join(self, other: _Convoy) -> bool:
        is_alike = (self.careful, self.waits) == (other.careful, other.waits)
        return is_alike and not self.is_alone and not other.is_alone

    def find_place(self, ledger: Ledger) -> int:
        """The sequence that comes next."""
        return min((ledger.sequence_from(*place) for place in self.places.items()), default=ledger.next_sequence)

    def advance(self, fetched_to: Mapping[Track, int], ledger: Ledger, goal: int) -> tuple[list[Step], set[Track]]:
        """The steps to the sequence `goal`, as far as they are possible now, and the track that lacks data for more."""
        steps = list[Step]()
        at = self.places
        for source, stop in self._list_stops(at, ledger, goal):
            if source not in at or at[source] >= stop:
                continue
            if len(steps) == STEPS:
                break
            track, start = self.tracks[source], at[source]
            reach = min(stop, fetched_to.get(track, start), max(start, track.snapshot_end))
            if reach > start:
                steps.append(Step(source, track, start, reach))
                at[source] = reach
            if reach < stop:
                return steps, set() if track.halted else {track}
        return steps, set()

    def _list_stops(self, at: Mapping[Source, int], ledger: Ledger, goal: int) -> Iterator[tuple[Source, int]]:
        """Up to where each partition is read, one after the other, until all below the sequence `goal` is."""
        sequence = self.find_place(ledger)
        while sequence < goal and (run := ledger.locate(sequence)) is not None and run.first_sequence < goal:
            sequence = run.next_sequence
            yield run.source, run.first_offset + min(run.count, goal - run.first_sequence)
        yield from _find_ends(at, ledger, goal).items()

    def reaches(self, steps: Sequence[Step], goal: int, ledger: Ledger) -> bool:
        """Whether some steps lead to the sequence `goal`."""
        at = self.places | {step.source: step.stop for step in steps}
        ends = _find_ends(at, ledger, goal)
        return all(position >= ends.get(source, 0) for source, position in at.items())


def _find_ends(at: Mapping[Source, int], ledger: Ledger, goal: int) -> dict[Source, int]:
    """Return where the sequences from `goal` on begin, in partitions that the ledger has got further in than `at`.

    Between the last run of a partition and its end there may be offsets whose runs the ledger has lost.
    """
    if all(position >= ledger.end_of(source) for source, position in at.items()):
        return {}
    return ledger.positions_at(goal)


def _find_convoys(tracks: Mapping[Source, Sequence[Track]]) -> list[_Convoy]:
    """All but the head."""
    found: dict[int, dict[Source, Track]] = defaultdict(dict)
    for source, some in tracks.items():
        for track in some:
            if track.convoy and not track.sequenced:
                found[track.convoy][source] = track
    return [_Convoy(number, convoy) for number, convoy in found.items()]


def _follow(
    source: Source, tracks: Sequence[Track], head: Track, fetched_to: Mapping[Track, int], held: set[Source]
) -> Iterator[Step]:
    """The tracks of a partition that only the index is made from."""
    for track in tracks:
        if not track.convoy and track in fetched_to:
            stop = min(fetched_to[track], head.position)
            if stop > track.position:
                if stop == head.position:
                    held.add(source)
                yield Step(source, track, track.position, stop)
