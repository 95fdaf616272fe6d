"""What /streams says of streams, gathered in one pass over all consumers and cursors of a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.config.consumer import Engine
from overlay.kafka.log_position import TopicPartition
from overlay.state.shard_state import ConsumerId
from overlay.units import format_time

from .commit.first_reads import ReadCounts
from .cursors.cursor import Cursor

if TYPE_CHECKING:
    from .rates import Rates
    from .session import Session


@dataclass(slots=True)
class _Gathered:
    """What is known of one stream."""

    consumers: list[str] = field(default_factory=list)
    """Names of its consumers."""
    readers: int = 0
    """How many of them the service delivers."""
    places: list[tuple[TopicPartition, list[Cursor]]] = field(default_factory=list)
    """Its partitions with their cursors, in the order of the sessions."""
    chunks: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By session, what its index has of each partition, as `report_streams` says it."""


def report_streams(
    loaded: Loaded, sessions: list[Session], rates: Rates, names: Iterable[str], elsewhere: Collection[ConsumerId]
) -> Iterator[dict[str, Any]]:
    """Yield what /streams says of each of the streams `names` of `loaded`. Consumers and cursors are gone through once,
    however many streams there are. `elsewhere`: consumers whose shards other workers own.
    """
    gathered, stops = _gather(loaded, sessions, names), find_stops(sessions)
    away = Counter(stream for stream, _ in elsewhere)
    for name, known in gathered.items():
        stream, reads = loaded.streams[name], rates.reads.streams.get(name, ReadCounts())
        found: dict[str, Any] = {
            "name": name,
            "topics": list(stream.topic_names),
            "subjects": list(stream.subjects),
            "state": "elsewhere" if 0 < known.readers <= away[name] else "idle",
            "reason": "",
            "decoded": reads.first,
            "read_again": reads.again,
            "unaddressed": dict(reads.unaddressed),
            "unaddressed_at": reads.example,
            "rate": rates.of_stream(name, now_ms()),
            "consumers": sorted(known.consumers),
            "partitions": _report_partitions(known),
            "waiting": report_waits(sessions, name),
            "index": None,
        }
        if found["partitions"]:
            found["state"] = "running"
        for number, session in enumerate(sessions):
            if (index := _report_index(session, name, known.chunks.get(number, {}))) is not None:
                found["index"] = index | {"rate": rates.of_index(name, now_ms())}
            if name in session.assignment.sources and session.assignment.sources[name].unread:
                found["reason"] = f"not read until `overlay stream extend`: {session.assignment.sources[name].unread}"
        if (why := stops.get(name)) is not None:
            found |= {"state": "waiting" if _is_blocked(sessions, name) else "stopped", "reason": why}
        yield found


def _gather(loaded: Loaded, sessions: list[Session], names: Iterable[str]) -> dict[str, _Gathered]:
    """Return what is known of each of these streams, in their order."""
    gathered = {name: _Gathered() for name in names}
    for (stream, consumer), config in loaded.consumers.items():
        if (known := gathered.get(stream)) is not None:
            known.consumers.append(consumer)
            known.readers += config.engine is Engine.SERVICE
    for number, session in enumerate(sessions):
        for (stream, source), cursors in session.cursors.partitions():
            if (known := gathered.get(stream)) is not None:
                known.places.append((source, cursors))
        for (stream, source), reach in session.reaches.items():
            if (known := gathered.get(stream)) is not None:
                ends = [cursor.stable_end for cursor in session.cursors.of((stream, source)) if cursor.indexed]
                entry: dict[str, Any] = {
                    "chunks": reach.chunks,
                    "position": reach.position,
                    "end": max(ends, default=-1),
                }
                counts = reach.addresses
                entry |= {"records": counts.records, "unaddressed": counts.unaddressed, "unaddressed_in": counts.last}
                known.chunks.setdefault(number, {})[_name(source)] = entry
    return gathered


def _report_partitions(known: _Gathered) -> dict[str, dict[str, int]]:
    found = {}
    for source, cursors in known.places:
        # if there are consumers, a cursor that only serves the index says nothing of them
        if reading := [cursor for cursor in cursors if cursor.members or not known.readers]:
            end, position = max(each.stable_end for each in reading), max(each.position for each in reading)
            found[_name(source)] = {"end": end, "position": position}
    return found


def find_stops(sessions: Iterable[Session]) -> dict[str, str]:
    """Return why streams are stopped or wait, by name: all reasons, in the order of the sessions. Shards stop one after the
    other; a stop reported by one of them outweighs what the others still say.
    """
    found: dict[str, list[str]] = {}
    for session in sessions:
        for name, why in (*session.assignment.stopped.items(), *session.assignment.held.items()):
            found.setdefault(name, []).append(why)
        for (name, _), halt in session.cursors.halts.items():
            found.setdefault(name, []).append(str(halt))
    return {name: "; ".join(dict.fromkeys(reasons)) for name, reasons in found.items()}


def _is_blocked(sessions: Iterable[Session], stream: str) -> bool:
    """Return whether nothing stops a stream but open transactions in its ledger: it goes on by itself."""
    return not any(
        (stream in session.assignment.stopped and stream not in session.assignment.blocked)
        or any(name == stream for name, _ in session.cursors.halts)
        for session in sessions
    )


def report_waits(sessions: Iterable[Session], stream: str) -> dict[str, dict[str, Any]]:
    """Return what /streams says of the partitions of a stream whose records wait for the schema registry, by
    `TOPIC-NUMBER`: the id of the `schema`, the first `offset` that waits, `since` when, and as `reason` why the
    last question was not answered, empty if none was so far.
    """
    return {
        _name(source): {
            "schema": wait.id,
            "offset": wait.offset,
            "since": format_time(wait.since * 1_000_000),
            "reason": wait.trouble,
        }
        for session in sessions
        if stream in session.gates
        for source, wait in session.gates[stream].waits.items()
    }


def _report_index(session: Session, stream: str, partitions: dict[str, dict[str, int]]) -> dict[str, Any] | None:
    """Return what /streams says of a stream's chunk index, None if this session has no index of it.

    The keys: `partitions`: by `TOPIC-NUMBER`, for the partitions whose index this session makes, the number of
    `chunks`, the `position` up to which they go, as `end` the last stable offset of the log, -1 if unknown, the number of
    `records` in the chunks, how many of these are `unaddressed`, without a subject in the stream, and in `unaddressed_in`
    first and next offset of the last chunk that has one, null if none has.
    Chunks are those made with the current config; retention may have deleted some. `reason`: why the index is not
    kept for now, empty if it is. `ledger`: the first and last sequence that were given out, and in how many runs;
    None if sequences come from offsets, or if none was given out yet.
    """
    if stream in session.assignment.unindexed:
        return {"reason": session.assignment.unindexed[stream], "partitions": {}, "ledger": None}
    if stream not in session.assignment.indexes:
        return None
    ledger = session.assignment.ledgers.get(stream)
    given_out = None
    if ledger is not None and ledger.next_sequence > 1:
        last = ledger.next_sequence - 1
        given_out = {"first_sequence": ledger.first_sequence, "last_sequence": last, "runs": len(ledger)}
    return {"reason": "", "partitions": partitions, "ledger": given_out}


def _name(source: TopicPartition) -> str:
    return f"{source[0]}-{source[1]}"
