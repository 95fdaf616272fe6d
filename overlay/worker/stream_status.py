"""What a worker's status tells of its streams. One pass over the cursors of all sessions describes all of them, since there
may be thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from overlay.config import StreamConfig
from overlay.fleet.status import StreamStatus, clean
from overlay.state.shard_state import StreamPartition

from .rates import Rates
from .session import Session

STOPPED = "stopped"
WAITING = "waiting"
RUNNING = "running"


@dataclass(slots=True)
class _Readings:
    """How far the sessions of a worker are in its streams, by stream."""

    partitions: Counter[str] = field(default_factory=Counter)
    places: dict[StreamPartition, tuple[int, int]] = field(default_factory=dict)
    """Position of the foremost cursor in each partition, and the end of the log, -1 if it is unknown."""
    stops: dict[str, str] = field(default_factory=dict)
    """Why a stream, or a partition of it, is not read, or waits."""
    halted: set[str] = field(default_factory=set)
    """Those of these streams that do not only wait for a transaction in their ledger."""
    reaches: dict[StreamPartition, tuple[int, int]] = field(default_factory=dict)
    """The same of the chunk index, in the partitions that are indexed here."""
    unindexed: set[str] = field(default_factory=set)
    """Streams whose index should be kept here and cannot be."""

    def add(self, session: Session) -> None:
        """Take in what a session reads."""
        assignment = session.assignment
        for stream, sources in assignment.sources.items():
            self.partitions[stream] = max(self.partitions[stream], len(sources.partitions))
        self.stops |= assignment.held | assignment.stopped
        self.stops |= {stream: str(why) for (stream, _), why in session.cursors.halts.items()}
        self.halted |= assignment.stopped.keys() - assignment.blocked.keys()
        self.halted |= {stream for stream, _ in session.cursors.halts}
        self.unindexed |= assignment.unindexed.keys()
        for place, cursors in session.cursors.partitions():
            position, end = self.places.get(place, (-1, -1))
            self.places[place] = (
                max([position, *(cursor.position for cursor in cursors)]),
                max([end, *(cursor.stable_end for cursor in cursors)]),
            )
        for place, reach in session.reaches.items():
            ends = [cursor.stable_end for cursor in session.cursors.of(place) if cursor.indexed]
            self.reaches[place] = reach.position, max(ends, default=-1)

    def find_state(self, stream: str, *, is_read: bool) -> str:
        """Return the state of a stream. `is_read`: whether a shard has cursors in it."""
        if stream in self.stops:
            return STOPPED if stream in self.halted else WAITING
        return RUNNING if is_read else "idle"


def sum_lags(places: Mapping[StreamPartition, tuple[int, int]]) -> dict[str, int | None]:
    """Return, by stream, how many offsets lie between the positions in its partitions and their ends, None if an end is not
    known. `places`: position and end, -1 if that is unknown, by partition.
    """
    found: dict[str, int | None] = {}
    for (stream, _), (position, end) in places.items():
        known = found.get(stream, 0)
        found[stream] = None if known is None or end < 0 else known + max(0, end - position)
    return found


def describe_streams(
    streams: Mapping[str, StreamConfig], names: Collection[str], sessions: Iterable[Session], rates: Rates, now: int
) -> list[StreamStatus]:
    """Return what a status tells of each of the streams `names`, as far as these sessions know it. `streams`: the configs,
    by name; a name without one is left out. `now`: ms since 1970.
    """
    readings = _Readings()
    for session in sessions:
        readings.add(session)
    lags, index_lags = sum_lags(readings.places), sum_lags(readings.reaches)
    return [
        StreamStatus(
            name=name,
            topic=clean(", ".join(streams[name].topic_names)),
            partitions=readings.partitions[name],
            state=readings.find_state(name, is_read=name in lags),
            reason=clean(readings.stops.get(name, "")),
            rate=round(rates.of_first_reads(name, now), 3),
            lag=lags.get(name),
            index=STOPPED if name in readings.unindexed else RUNNING if name in index_lags else "",
            index_lag=index_lags.get(name),
        )
        for name in sorted(streams.keys() & set(names))
    ]
