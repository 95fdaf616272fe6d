"""How far consumers are behind their streams, in records and in seconds, also while nothing is read for them.

A consumer's lag in seconds is the age of the oldest record that it has not been given, whether its
filter takes that record or not. It is never more than the time since the consumer was last seen at
the end of its log. So a filter that matches once a day has no lag, and a record with an old
timestamp counts from when it came.

While a partition is read, the last record before the position is close enough to the first one
behind it. Where nothing is read (a stalled consumer, a stopped stream, a shard that begins again),
or where nothing has moved, the record itself has to be looked up, and the end of the log to be
asked for. `Lags` says which questions to ask; state/lag_watch.py asks Kafka. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from overlay.kafka.log_position import TopicPartition

from .shard_state import ConsumerId

Spot = tuple[TopicPartition, int]
"""A partition and an offset in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a consumer is in one partition.

    `position`: the first offset that it has not been given. `end`: the last stable offset, -1 if
    unknown. `read_ms`: the timestamp of the last record that was read before the position, ms since
    1970; None if unknown. `is_live`: whether the partition is being read, so that a fetch keeps
    `end` up to date.
    """

    position: int
    end: int
    read_ms: int | None
    is_live: bool


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind. `records`: the offsets from its positions to the ends of its
    partitions, None if an end is unknown. `seconds`: the age of the oldest record that it has not been
    given, 0 at the ends; None if unknown."""

    records: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A place, when it was first seen with this position, and when the consumer was last seen at
    the partition's end (None: never). Times in ms since 1970."""

    place: Place
    since_ms: int
    done_ms: int | None


@dataclass(slots=True)
class Lags:
    """The lags of consumers (`find`): from the last known Place of each in each partition, and from
    the last stable offsets and record timestamps that Kafka was asked for. `list_unread` and
    `list_unknown` return what to ask for next. Outlives sessions.
    """

    _known: dict[ConsumerId, dict[TopicPartition, _Known]] = field(default_factory=dict)
    _ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Last stable offsets that Kafka was asked for."""
    _times: dict[Spot, int] = field(default_factory=dict)
    """Timestamps of the first record at or after an offset, ms since 1970."""
    _behind: set[Spot] = field(default_factory=set)
    """Where consumers were behind at the last call of `list_unknown`."""

    def note(self, places: Mapping[ConsumerId, Mapping[TopicPartition, Place]], now: int) -> None:
        """Set where consumers are, each in all its partitions. Other consumers keep their last
        places. `now`: ms since 1970."""
        # consumers on one cursor share their places, and so what follows from them
        made: dict[tuple[int, int], _Known] = {}
        for consumer, own in places.items():
            before = self._known.get(consumer, {})
            after = self._known[consumer] = {}
            for source, place in own.items():
                known = before.get(source)
                key = id(place), id(known)
                if (found := made.get(key)) is None:
                    found = made[key] = _follow(known, place, now)
                after[source] = found

    def forget(self, consumers: Iterable[ConsumerId]) -> None:
        """Drop consumers that are not served here any more."""
        for consumer in consumers:
            self._known.pop(consumer, None)

    def list_positions(self, consumer: ConsumerId) -> dict[TopicPartition, int]:
        """Return the offsets from which the lag of a consumer counts, in each partition; empty if no Place of it is known."""
        return {source: each.place.position for source, each in self._known.get(consumer, {}).items()}

    def find(self, consumer: ConsumerId, now: int) -> Lag:
        """Return by how many offsets and seconds a consumer is behind; Lag(None, None) if no Place
        of it is known (`note`). `now`: ms since 1970."""
        known = self._known.get(consumer)
        if not known:
            return Lag(None, None)
        records: int | None = 0
        oldest = now
        for source, each in known.items():
            end = self._find_end(source, each.place)
            records = None if end < 0 or records is None else records + max(0, end - each.place.position)
            if end > each.place.position:
                oldest = min(oldest, self._find_oldest(source, each))
        # at the end of what is known, while an end is unknown: that is no lag of 0
        return Lag(records, None if records is None and oldest == now else (now - oldest) / 1000)

    def _find_end(self, source: TopicPartition, place: Place) -> int:
        return place.end if place.is_live else max(place.end, self._ends.get(source, -1))

    def _find_oldest(self, source: TopicPartition, known: _Known) -> int:
        """Return the time of the oldest record of a partition that a consumer was not given, ms since 1970:
        the latest of the lower bounds that are known, or, if none is, when the consumer was first seen
        at its position."""
        bounds = (self._times.get((source, known.place.position)), known.place.read_ms, known.done_ms)
        return max((bound for bound in bounds if bound is not None), default=known.since_ms)

    # questions to Kafka

    def list_unread(self) -> set[TopicPartition]:
        """Return the partitions that are not being read for some consumer (its Place is not live),
        so that Kafka has to be asked for their ends."""
        return {source for own in self._known.values() for source, each in own.items() if not each.place.is_live}

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set the last stable offsets of partitions, in place of all that were set before."""
        self._ends = dict(ends)

    def list_unknown(self, most: int) -> dict[Spot, int]:
        """Return up to `most` offsets at which consumers are behind and whose timestamps are to be
        looked up, each with the last stable offset of its partition; first those at which a consumer has
        been the longest.

        If the consumer's partition is read (`Place.is_live`), an offset is returned only if a consumer
        was behind there at the last call too: most have moved on by then. Forgets timestamps of offsets
        at which no consumer is behind any more.
        """
        behind: dict[Spot, int] = {}
        wanted: dict[Spot, int] = {}
        for own in self._known.values():
            for source, each in own.items():
                spot = source, each.place.position
                if (end := self._find_end(source, each.place)) > each.place.position:
                    behind[spot] = end
                    if spot not in self._times and (not each.place.is_live or spot in self._behind):
                        wanted[spot] = min(wanted.get(spot, each.since_ms), each.since_ms)
        self._behind = set(behind)
        self._times = {spot: time for spot, time in self._times.items() if spot in behind}
        longest = sorted(wanted, key=lambda spot: (wanted[spot], spot))
        return {spot: behind[spot] for spot in longest[:most]}

    def note_time(self, spot: Spot, time: int) -> None:
        """Set the timestamp of the first record at or after the offset of `spot`, ms since 1970."""
        self._times[spot] = time


def _follow(before: _Known | None, place: Place, now: int) -> _Known:
    """Return what is known of a consumer that is seen at `place` at `now`, ms since 1970. At the end of a
    partition, if the place has it, `since_ms` and `done_ms` are `now`. Else `since_ms` is that of `before` if the
    position is the same, and `now` if not; `done_ms` is that of `before`, or None if the position fell.
    `before`: what was known of the consumer in the same partition, None if nothing was."""
    if 0 <= place.end <= place.position:
        return _Known(place, now, now)
    if before is None:
        return _Known(place, now, None)
    since = before.since_ms if before.place.position == place.position else now
    # one that was rewound has not had everything
    done = before.done_ms if before.place.position <= place.position else None
    return _Known(place, since, done)
