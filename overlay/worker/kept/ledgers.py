"""Opening of ledgers: what is known of a stream's sequences, and where giving them out goes on.

A ledger is opened in the first transaction of a session. Records that arrived while no worker gave
sequences out get theirs there, all at once, one partition after the other. So do records that are
older than the ledger. For a partition without new records, the transaction holds a restart at its
current position. That keeps the position known beyond the retention of the index topic.

Sequences that were given out must be known. The state says in which index topic (by Kafka's id) the
ledger of a stream is, and which sequence comes next. They are unknown if that topic was deleted or
replaced, if it holds no entry although the stream was read, if it has lost entries from its end or
its midst, or if its last entry cannot be read. Then the stream stops, and its error message
tells the operator what to do.

Entries of records that retention has deleted are dropped when a session begins, and about once a
minute while it runs. Entries of records that are still to be processed are kept.

A log that was truncated (docs/exactly-once.md#log-identity) is a different log from there on. Its
partition restarts behind the last chunk whose last batch is still the one that was read, or at the
log's start if there is none. The records that replace the old ones get new sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.clock import now_ms
from overlay.errors import OverlayError, SourceChanged, SourceUnavailable
from overlay.index.ledger.allocate import allocate, restart
from overlay.index.ledger.entries import MOST_SEQUENCE
from overlay.index.log_check import check_log_position, glimpse
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.logs import get_logger
from overlay.state.shard_state import Delta, ShardState
from overlay.worker.assignment import Assignment
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.round.sequencing import write_round

log = get_logger(__name__)

TRIM_EVERY_S = 60.0
"""Seconds between two looks at the starts of logs."""

_GIVE_UP = (
    "Put the topic back as it was; or give the sequences up with `overlay stream reset {stream}`, after which they begin at"
    " 1 again"
)


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A stream's ledger (which offsets have which sequences) as it was read from its topic, to be
    added to the assignment. `identity`: Kafka's id of the topic; `is_kept`: whether this shard
    gives the stream's sequences out."""

    stream: str
    topic: str
    identity: str
    index: Index
    is_kept: bool


def explain_refusal(stream: str, topic: str, reason: str, known: Mapping[str, str]) -> str:
    """Return the message for a stream that needs a ledger and has to stop because its index topic cannot be used.
    `reason`: why not. `known`: ids of the ledger topics in the state, by stream.
    """
    if stream in known:
        return f"the ledger of stream {stream} is not to be had: {reason}. {_GIVE_UP.format(stream=stream)}"
    return f"stream {stream} has no ledger yet: {reason}. The worker that keeps the stream's index makes it"


def find_trouble(opening: Opening, state: ShardState, assignment: Assignment) -> str:
    """Return why a stream has to stop, and what to do, if it is unknown which sequences were given out; empty
    otherwise.

    It is unknown if the ledger's topic was created again since the state knows it, if the topic that the state knows
    holds no entry although the stream was read (`_has_delivered`), or if entries were lost. It is also unknown, in a
    ledger that is kept here, if a record that cannot be read may have given sequences out.
    """
    stream, topic = opening.stream, opening.topic
    known, give_up = state.topics.get((stream, topic)), _GIVE_UP.format(stream=stream)
    if known is not None and known != opening.identity:
        return f"topic {topic} with the ledger of stream {stream} was deleted and created again. {give_up}"
    if known is not None and opening.index.ledger.next_sequence == 1 and _has_delivered(stream, state, assignment):
        return (
            f"topic {topic} holds no round of the ledger of stream {stream}. If `overlay stream extend {stream}` was"
            f" interrupted, run it again. {give_up}"
        )
    ledger = opening.index.ledger
    lost = opening.index.gap
    if opening.is_kept and ledger.next_sequence < state.sequences.get(stream, 0):
        lost = state.sequences[stream]
    if lost is not None:
        return (
            f"topic {topic} has lost rounds of the ledger of stream {stream}, below sequence {lost}: it is not known any more"
            f" which records have these sequences. Delete the topic and run `overlay stream reset {stream}`, after which"
            " sequences begin at 1 again"
        )
    if opening.is_kept and ledger.next_sequence > MOST_SEQUENCE:
        return (
            f"topic {topic} has a round of the ledger of stream {stream} that ends at sequence {ledger.next_sequence - 1}, to"
            f" which no stream comes: the overlay has not written it. See who may write to the topic, delete it, and run"
            f" `overlay stream reset {stream}`, after which sequences begin at 1 again"
        )
    if opening.is_kept and opening.index.doubt >= 0:
        return (
            f"the record at offset {opening.index.doubt} of topic {topic} cannot be read, and it may have given out sequences"
            f" of stream {stream}. Run the version of the overlay that wrote it; or delete the topic and run `overlay stream"
            f" reset {stream}`, after which sequences begin at 1 again"
        )
    return ""


def _has_delivered(stream: str, state: ShardState, assignment: Assignment) -> bool:
    """Return whether a consumer of the stream was given something, or the state has a position of the
    stream or of one of its consumers that is higher than the log's start."""
    if any(known.sequence for (name, _), known in state.consumers.items() if name == stream):
        return True
    own = [place for (name, _), known in state.consumers.items() if name == stream for place in known.own.items()]
    shared = [(source, log_position) for (name, source), log_position in state.cursors.items() if name == stream]
    return any(log_position.position > assignment.starts.get(source, 0) for source, log_position in (*own, *shared))


async def find_outdated(client: AIOKafkaClient, admin: Admin, opening: Opening, assignment: Assignment) -> str:
    """Return why the ledger of another shard cannot be followed yet; empty if it can be. Raises SourceUnavailable.

    If a log was cut, or its topic was created again, the ledger still numbers the records that are gone. Only the shard that
    keeps it may restart the partition, and until then the records in their place would be taken for them.
    """
    if cut := await _find_cuts(client, admin, opening, assignment):
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(cut))
        return f"the ledger of stream {opening.stream} is from before {names} was cut; the worker that keeps it restarts it"
    return ""


async def open_ledger(
    client: AIOKafkaClient, admin: Admin, opening: Opening, assignment: Assignment, delta: Delta
) -> None:
    """Add a ledger to the assignment, without the entries of records that retention has deleted. Add the id
    of its topic to `delta`, unless another shard keeps it and it is empty.

    If its sequences are given out here, also give sequences to the records that have none yet. Then the
    assignment's `opening` gets the new entries, which are still to be committed, its `heads` where that
    goes on, and `delta` the next sequence. Raises SourceUnavailable.
    """
    stream, ledger = opening.stream, opening.index.ledger
    ledger.drop({source: assignment.starts[source] for source in assignment.sources[stream].partitions})
    if opening.is_kept:
        assignment.heads[stream] = await _catch_up(client, admin, opening, assignment)
        delta.sequences[stream] = ledger.next_sequence
    if opening.is_kept or ledger.next_sequence > 1:
        delta.topics[stream, opening.topic] = opening.identity
    assignment.ledgers[stream], assignment.ledger_topics[stream] = ledger, opening.topic
    log.info("ledger opened", stream=stream, next_sequence=ledger.next_sequence, runs=len(ledger), kept=opening.is_kept)


async def follow_starts(
    admin: Admin,
    assignment: Assignment,
    cursors: Cursors,
    tell: Callable[[Mapping[str, int]], None],
    every_s: float = TRIM_EVERY_S,
) -> None:
    """Every `every_s` seconds, drop entries from the ledgers whose records retention has deleted and
    no cursor still has to process, and report the lowest sequences. Runs until cancelled.

    `tell` is called with the lowest stream sequence that is left, by stream (`find_low`): at once
    with all streams, and after each look at a stream with that one. Raises SourceUnavailable when
    retention has deleted a corrupt batch that stopped a partition: the next session reads what
    follows it.
    """
    tell({stream: find_low(assignment, stream, assignment.starts) for stream in assignment.sources})
    while True:
        await asyncio.sleep(every_s)
        for stream, sources in assignment.sources.items():
            try:
                bounds = await admin.find_bounds(sources.partitions)
            except OverlayError as error:
                log.warning("starts of logs cannot be looked at", stream=stream, reason=str(error))
                continue
            for source, (first, _) in bounds.items():
                if any(cursor.is_halted and cursor.position < first for cursor in cursors.of((stream, source))):
                    raise SourceUnavailable(
                        f"{source[0]}-{source[1]}: the corrupt batch is gone from the log. Going on"
                    )
            if stream in assignment.ledgers:
                assignment.ledgers[stream].drop(dict(_find_lows(stream, bounds, cursors)))
            tell({stream: find_low(assignment, stream, {source: first for source, (first, _) in bounds.items()})})


def find_low(assignment: Assignment, stream: str, starts: Mapping[TopicPartition, int]) -> int:
    """Return the lowest stream sequence that the logs of a stream may still have, by its ledger or, if it
    has none, by the start of its only partition; 0 if unknown. `starts`: the start of each partition's
    log."""
    if (ledger := assignment.ledgers.get(stream)) is not None:
        return ledger.first_sequence
    sources = assignment.sources[stream].partitions
    return starts[sources[0]] + 1 if len(sources) == 1 else 0


def _find_lows(
    stream: str, bounds: Mapping[TopicPartition, tuple[int, int]], cursors: Cursors
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition with the offset below which the ledger is not needed any more.

    That is the log's start, or the lowest position of a cursor if that is lower: fetched records
    may be older than the log's start and still need their sequences.
    """
    for source, (first, _) in bounds.items():
        yield source, min([first, *(cursor.position for cursor in cursors.of((stream, source)))])


async def _catch_up(
    client: AIOKafkaClient, admin: Admin, opening: Opening, assignment: Assignment
) -> Mapping[TopicPartition, LogPosition]:
    """Append the entries to a ledger kept here that must be recorded before the first record is read: restarts of
    partitions whose log was cut, and sequences for all records that have none yet. Unless the ledger is still empty
    then, also an entry that repeats the positions of all other partitions. Add them to `assignment.opening`, which
    the session commits first. Return the log position in each partition from which records get sequences next.
    """
    # three kinds of entries: restarts of truncated partitions, sequences for records that have none
    # yet, and restarts that repeat the positions of all other partitions
    ledger, sources = opening.index.ledger, assignment.sources[opening.stream].partitions
    cut = await _find_cuts(client, admin, opening, assignment)
    heads = await find_ends(client, admin, sources)
    rounds = [restart(ledger.standing, cut)] if cut else []
    for round in rounds:
        ledger.append(round)
    taken = {source: (assignment.starts[source], log_position) for source, log_position in heads.items()}
    if (fresh := allocate(ledger.standing, taken)) is not None:
        rounds.append(fresh)
        ledger.append(fresh)
    named = {run.source for round in rounds for run in round.runs}
    if ledger.next_sequence > 1 and (idle := {s: ledger.log_position_of(s) for s in sources if s not in named}):
        rounds.append(restart(ledger.standing, idle))
        ledger.append(rounds[-1])
    assignment.opening += [write_round(opening.topic, opening.stream, round, now_ms()) for round in rounds]
    return {s: heads[s] if heads[s].position >= ledger.end_of(s) else ledger.log_position_of(s) for s in sources}


async def _find_cuts(
    client: AIOKafkaClient, admin: Admin, opening: Opening, assignment: Assignment
) -> dict[TopicPartition, LogPosition]:
    """Compare each partition's log with the one that got sequences. Return the log position from which sequences are
    given out anew in each partition whose log differs: the end of its last chunk, or the log's start if it has none.
    Empty if no log differs.
    """
    index, cut = opening.index, dict[TopicPartition, LogPosition]()
    sources = assignment.sources[opening.stream].partitions
    bounds = await admin.find_bounds(sources, committed=False)
    for source in sources:
        log_position, compacted = index.ledger.log_position_of(source), assignment.is_compacted(source[0])
        try:
            await check_log_position(client, opening.stream, source, log_position, bounds[source], compacted=compacted)
        except SourceChanged as error:
            chunks = index.of(source)  # the chunks that are left were checked
            cut[source] = chunks.log_position(len(chunks) - 1) if len(chunks) else LogPosition(bounds[source][0])
            if opening.is_kept:
                at = cut[source].position
                log.error("partition restarts in the ledger", partition=source, at=at, reason=str(error))
    return cut


async def find_ends(
    client: AIOKafkaClient, admin: Admin, sources: tuple[TopicPartition, ...]
) -> dict[TopicPartition, LogPosition]:
    """Return the last stable offset of each partition as a log position, with epoch and checksum of
    the batch before it. Raises SourceUnavailable."""
    ends = {}
    try:
        for source, (first, end) in (await admin.find_bounds(sources)).items():
            await client.add_topic(source[0])
            ends[source] = (await glimpse(client, source, max(first, end - 1))).log_position
    except (KafkaError, OSError) as error:
        raise SourceUnavailable(
            f"the end of a log cannot be looked at: {str(error) or type(error).__name__}"
        ) from error
    return ends
