"""What has been fetched and not worked on yet, and what of it makes the next round.

A track of a stream of one partition works on all that its lane has, up to the track ahead of it. Tracks of a stream with a
ledger take from theirs what the order allows (order.py) and keep the rest at hand, while their lanes fetch on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.errors import SourceUnavailable
from overlay.kafka.fetcher import Fetched, Lane
from overlay.kafka.log_position import Mark, Source
from overlay.metrics import Metrics

from .assignment import Roster
from .cursors.cursor import Track, plan_round
from .cursors.order import plan_steps
from .cursors.positions import Place, Positions
from .round.pipeline import Progress, Task
from .round.sequencing import Linger
from .skip_routes import Detours

ROUND_BYTES = 8 << 20

Owners = list[tuple[Place, Track]]


@dataclass(slots=True)
class Intake:
    """`committed`: of the streams with a ledger, the first sequence that is not committed yet."""

    roster: Roster
    positions: Positions
    lanes: Mapping[Track, Lane]
    detours: Detours
    metrics: Metrics
    committed: Mapping[str, int]
    _held: dict[Track, Fetched] = field(default_factory=dict)
    _turn: int = 0
    _linger: Linger = field(default_factory=Linger)
    _resting: dict[str, float] = field(default_factory=dict)

    def take_round(self) -> tuple[list[Task], Owners]:
        """What there is to be worked on, as tasks and the tracks they belong to, up to ROUND_BYTES."""
        tasks: list[Task] = []
        owners: Owners = []
        size = 0
        seen: set[str] = set()
        places = list(self.positions.tracks)
        self._turn = (self._turn + 1) % max(1, len(places))  # so that a backlog of some does not starve the others
        for place in places[self._turn :] + places[: self._turn]:
            if size >= ROUND_BYTES or place[0] in seen:
                continue
            in_order = place[0] in self.positions.ordered
            fetches: set[int] = set()
            for task, owner in self._take_stream(place[0]) if in_order else self._take_place(place):
                tasks.append(task)
                owners.append(owner)
                size += 0 if id(task.fetched) in fetches else task.fetched.data.size
                fetches.add(id(task.fetched))
            if in_order:
                seen.add(place[0])
        return tasks, owners

    def _take_place(self, place: Place) -> Iterator[tuple[Task, tuple[Place, Track]]]:
        tracks = self.positions.tracks[place]
        for turn in plan_round(tracks, self._find_reach(tracks)):
            fetched = self._take(place, turn.track)
            yield self._make_task(place, turn.track, fetched, turn.track.position, turn.stop), (place, turn.track)

    def _take_stream(self, stream: str) -> Iterator[tuple[Task, tuple[Place, Track]]]:
        tracks = {source: some for (name, source), some in self.positions.tracks.items() if name == stream}
        every = [track for some in tracks.values() for track in some]
        ledger = self.roster.ledgers[stream]
        is_resting = monotonic() < self._resting.get(stream, 0.0)
        reach = self._find_reach([track for track in every if not (track.sequenced and is_resting)])
        plan = plan_steps(tracks, reach, ledger, self.committed.get(stream, ledger.next_sequence))
        for track in every:  # the head gives out the sequences that others may have everything at hand for
            self.lanes[track].urgent = track in plan.wanted or (track.sequenced and not is_resting)
        for step in plan.steps:
            place, track = (stream, step.source), step.track
            if track not in self._held:
                self._held[track] = self._take(place, track)
            yield self._make_task(place, track, self._held[track], step.start, step.stop), (place, track)

    def rest(self, given_out: Mapping[str, int]) -> float:
        """Have more come together for the next rounds of ledgers, where much comes. The longest pause, in seconds."""
        now = monotonic()
        pauses = {stream: self._linger.find_pause(stream, after, now) for stream, after in given_out.items()}
        self._resting.update((stream, now + pause) for stream, pause in pauses.items())
        return max(pauses.values(), default=0.0)

    def _find_reach(self, tracks: list[Track]) -> dict[Track, int]:
        """Where the data in hand ends, for tracks that have some."""
        reach: dict[Track, int] = {}
        for track in tracks:
            ready = self._held.get(track) or self.lanes[track].ready
            if isinstance(ready, Fetched) and not track.halted:
                reach[track] = ready.reach
        return reach

    def _take(self, place: Place, track: Track) -> Fetched:
        """What has come for a track. Its lane goes on where the track will, before the next fetch is sent."""
        lane = self.lanes[track]
        fetched = lane.take()
        assert isinstance(fetched, Fetched)
        if fetched.position > track.position:
            # nothing leads here, and if something did, nobody would get what lies between
            raise SourceUnavailable(
                f"{place[1]}: read from {fetched.position} instead of {track.position}. Reading again"
            )
        self.detours.lead(place, track, lane, fetched.mark)
        self.metrics.records_fetched.labels(place[0]).inc(fetched.records)
        return fetched

    def _make_task(self, place: Place, track: Track, fetched: Fetched, start: int, stop: int) -> Task:
        stream, source = place
        readers = tuple(self.roster.readers[consumer] for consumer in sorted(track.members))
        floors = self.positions.floors_at(track, source)
        return Task(
            stream, source, fetched, start, stop, readers, track.only, floors, track.indexed, track.sequenced,
            track.convoy, self._find_others(place, track),
        )  # fmt: skip

    def _find_others(self, place: Place, track: Track) -> dict[Source, tuple[int, int]]:
        """Where those on a track stand in the other partitions of a stream with a ledger, and the last stable offsets there."""
        stream, source = place
        if stream not in self.positions.ordered or not track.members:
            return {}
        others: dict[Source, tuple[int, int]] = {}
        for (name, other), tracks in self.positions.tracks.items():
            if name == stream and other != source:
                mine = next((each for each in tracks if each.convoy == track.convoy), None)
                lane = None if mine is None else self.lanes.get(mine)
                others[other] = (0, -1) if mine is None or lane is None else (mine.position, lane.stable_end)
        return others

    def keeps(self, track: Track, progress: Progress) -> bool:
        """Whether the rest of a fetch stays at hand, now that its track is where a task has brought it."""
        fetched = self._held.get(track)
        if fetched is None:
            return False
        if not progress.stopped and track.position == progress.task.stop < fetched.next_offset:
            return True
        del self._held[track]
        return False

    def find_need(self, track: Track) -> Mark:
        """Where a track needs more from, behind what is at hand for it; what it has leapt over does not stay at hand."""
        fetched = self._held.get(track)
        if fetched is None or fetched.next_offset <= track.position:
            self.drop(track)
            return track.mark
        return fetched.mark

    def drop(self, track: Track) -> None:
        """Keep nothing for a track: it goes on elsewhere, or not at all."""
        self._held.pop(track, None)
