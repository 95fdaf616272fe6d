"""Where the consumers of a session are, for their lag (overlay/state/lag.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from overlay.kafka.log_position import TopicPartition
from overlay.state.lag import Place
from overlay.state.shard_state import ConsumerId, ShardState

if TYPE_CHECKING:
    from .session import Session


def find_places(
    session: Session, newest: Mapping[ConsumerId, int], only: ConsumerId | None = None
) -> dict[ConsumerId, dict[TopicPartition, Place]]:
    """Return where the consumers of a session are: all, or `only` one.

    `newest`: by consumer, the timestamp of the last record that was delivered to it, ms since 1970.
    A consumer whose matching records wait to be delivered is where the first of these is. A consumer
    that is stalled, or whose stream is stopped, is where the state says.
    """
    found: dict[ConsumerId, dict[TopicPartition, Place]] = {}
    ends: dict[TopicPartition, int] = {}
    for (stream, source), cursors in session.cursors.partitions():
        if only is not None and stream != only[0]:
            continue
        for cursor in cursors:
            is_live = not cursor.is_halted and cursor.stable_end >= 0
            place = Place(cursor.position, cursor.stable_end, cursor.read_ms, is_live)
            ends[source] = max(ends.get(source, -1), cursor.stable_end)
            for consumer in cursor.members if only is None else cursor.members & {only}:
                found.setdefault(consumer, {})[source] = place
    for consumer in session.assignment.readers if only is None else [only]:
        if consumer in session.assignment.readers:
            _hold_back(session, consumer, found.setdefault(consumer, {}), ends, newest.get(consumer))
    for consumer in _list_unread(session, only):
        found[consumer] = _find_kept(session.commits.state, consumer, newest.get(consumer))
    return found


def _hold_back(
    session: Session,
    consumer: ConsumerId,
    places: dict[TopicPartition, Place],
    ends: Mapping[TopicPartition, int],
    newest: int | None,
) -> None:
    """Set in `places`, by partition, where a consumer is: at the first matching record that waits to be
    delivered to it, else where it has left its cursors (parked). A partition in which it is at neither, or
    already at a lower offset, is left as it is. `ends`: last stable offsets. `newest`: the timestamp of the last
    record delivered to it, ms since 1970, None if unknown."""
    standing = session.cursors.standing(consumer)
    waiting = {source: at.position for source, at in (standing.parked or {}).items()} | dict(standing.holds)
    for source, position in waiting.items():
        here = places.get(source)
        if here is None:
            places[source] = Place(position, ends.get(source, -1), newest, False)
        elif position < here.position:
            places[source] = Place(position, here.end, newest, here.is_live)


def _list_unread(session: Session, only: ConsumerId | None) -> list[ConsumerId]:
    """Return the consumers that the state knows and for which nothing is read: those that are
    stalled, and those of stopped streams; all, or `only` one. Those of Spark jobs have their
    positions elsewhere."""
    assignment, known = session.assignment, session.commits.state.consumers
    return [
        consumer
        for consumer in (known if only is None else known.keys() & {only})
        if (consumer in assignment.stalled or consumer[0] in assignment.stopped) and not known[consumer].job
    ]


def _find_kept(state: ShardState, consumer: ConsumerId, newest: int | None) -> dict[TopicPartition, Place]:
    """Return where a consumer is by the state: at its own position in each partition, or at its stream's if
    it has none of its own. `newest`: the timestamp of the last record delivered to it, ms since 1970, None
    if unknown."""
    at = {source: position for (stream, source), position in state.cursors.items() if stream == consumer[0]}
    at |= state.consumers[consumer].own
    return {source: Place(position.position, -1, newest, False) for source, position in at.items()}
