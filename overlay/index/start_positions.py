"""The start positions of a new consumer: its deliver policy turned into a position in each
partition.

- all: the log start.
- new: the end at the moment of creation. Records that a transaction had written by then are left
  out, even if it was still open.
- by_start_sequence: sequence - 1, or the closest offset that the log still has. A sequence that
  does not exist yet is waited for. With several partitions the ledger gives the offset of the
  sequence, and of the next ones in the other partitions.
- by_start_time: the first record at or after the time; the end if there is none yet. Brokers know
  the offset. Where they do not, the parts of the log that chunk headers do not rule out are read.
- last: the last record with a matching subject and everything after it, searched from the end in
  chunks that may hold one.
- last_per_subject: the last record of every matching subject, then everything after: a snapshot,
  see overlay/worker/last_messages.py.

With several partitions `last` is the matching record with the highest sequence, and the other
partitions start after it. If some partition's last matching record has no sequence yet, it is the
latest of these by timestamp, and the other partitions start at their ends.

For `new`, `last` and `last_per_subject` the end is that at the consumer's creation, known from its
definition (overlay/control/creation.py). If it is not known, the end when `find_start` is called is
used.

The index only tells what need not be read. Without it the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.config.consumer import ConsumerConfig, DeliverPolicy
from overlay.config.stream import StreamConfig
from overlay.errors import SourceChanged
from overlay.kafka.admin import Admin, OffsetSpec
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.match import Addressed, Audience, make_addressing
from overlay.schemas.gate import open_gate
from overlay.subject import Pattern
from overlay.units import INT64_MAX

from .ledger.ledger import Ledger
from .pending.estimate import simplify
from .pending.last_per_subject import LastPerSubject, Piece, find_since, find_tail
from .skip.chunks import Chunks
from .skip.derive import derive
from .skip.plan import plan, weigh
from .skip.prune import evaluate
from .topic import Index

WINDOW = 20_000
"""Offsets of the first window in the search for the last message; each further window is twice as
large.
"""

_NONE_YET = 1 << 62

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""By partition, the log start and the last stable offset."""
Step = Callable[[int, int], None]
"""Called with the number of settled offsets of a search, and the bytes fetched since last time."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new consumer begins, as offsets by partition. It reads from `positions` on. A record
    below `floor` is read and not delivered. Of the records below `snapshot` only the last matching
    one of each subject is delivered. A partition that is not in `floor` or `snapshot` has no such
    limit.
    """

    positions: Mapping[TopicPartition, int]
    snapshot: Mapping[TopicPartition, int] = field(default_factory=dict)
    floor: Mapping[TopicPartition, int] = field(default_factory=dict)


async def find_start(
    client: AIOKafkaClient,
    admin: Admin,
    config: ConsumerConfig,
    stream: StreamConfig,
    sources: Sequence[TopicPartition],
    ledger: Ledger | None = None,
    index: Index | None = None,
    created: Mapping[TopicPartition, int] | None = None,
    bounds: Bounds | None = None,
) -> Start:
    """Return where a consumer begins that has no position yet, by its deliver policy. Asks the
    brokers, and for some policies reads parts of the log.

    `ledger`: of a stream whose sequences are not offset + 1. `index`: the stream's chunks, as far
    as they are indexed. `created`: the high watermarks at the consumer's creation; if it is None,
    those of now are used. `bounds`: log start and last stable offset by partition, as Kafka told
    them after that creation; None to ask Kafka.

    Raises SourceUnavailable, CredentialsRefused, and SourceChanged, also for by_start_sequence over
    several partitions without a ledger.
    """
    index = index or Index(stream)
    bounds = bounds or await admin.find_bounds(sources)
    earliest = {source: first for source, (first, _) in bounds.items()}
    ends = {source: end for source, (_, end) in bounds.items()}
    # policies that begin at the end use the end at the consumer's creation
    if config.deliver_policy.begins_at_end:
        if created is None:
            created = await admin.find_offsets(sources, OffsetSpec.latest(), committed=False)
        ends = {source: min(max(at, earliest[source]), ends[source]) for source, at in created.items()}
        bounds = {source: (earliest[source], end) for source, end in ends.items()}
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return Start(earliest)
        case DeliverPolicy.NEW:
            assert created is not None
            # The end is the last stable offset: leave out records of open transactions up to
            # `created`.
            beyond = {source: at for source, at in created.items() if at > ends[source]}
            return Start(ends, floor={**ends, **beyond} if ledger is not None else beyond)
        case DeliverPolicy.LAST_PER_SUBJECT:
            return Start(earliest, ends)
        case DeliverPolicy.BY_START_SEQUENCE:
            if ledger is not None:
                return Start(_find_places(ledger, find_first(config), bounds))
            if len(sources) > 1:
                raise SourceChanged(
                    f"consumer {config.id[1]}: by_start_sequence needs the stream's ledger, which is not there"
                )
            only = sources[0]
            first = find_first(config) - 1
            return Start({only: min(max(first, earliest[only]), ends[only])}, floor={only: first})
        case DeliverPolicy.BY_START_TIME:
            # refused by validation otherwise: docs/jetstream.md#errors, 10094
            assert config.opt_start_time is not None
            # A time between two milliseconds begins at the later one: the record must not be older.
            # Below 0 Kafka's timestamps have special meanings.
            since = max(0, -(-config.opt_start_time // 1_000_000))
            return _start_at(await find_offsets_since(client, admin, index, bounds, since), ledger)
        case DeliverPolicy.LAST:
            return _start_at(await _find_last(client, config, index, bounds, ledger), ledger)


def find_first(config: ConsumerConfig) -> int:
    """Return the stream sequence at which a consumer with by_start_sequence begins. JetStream's sequences have 64 bits
    without a sign, and the overlay's 63: above these it begins where no stream comes to.
    """
    return min(config.opt_start_seq, INT64_MAX)


async def find_replay_end(
    admin: Admin, sources: Sequence[TopicPartition], starts: Mapping[TopicPartition, int], ledger: Ledger | None = None
) -> int:
    """Return the last sequence of a stream below the last stable offsets of now; 0 if no offset ever
    had one. Retention does not lower it. `starts`: the log start of each partition; used with a ledger
    only.

    Offsets without a sequence yet are counted: the ledger gives them the next sequences. Sequences that
    entries without offsets have used up are not: no delivery has them. Raises SourceUnavailable or
    CredentialsRefused.
    """
    ends = {source: end for source, (_, end) in (await admin.find_bounds(sources)).items()}
    if ledger is None:
        return max(ends.values(), default=0)
    waiting = sum(max(0, end - max(ledger.end_of(source), starts[source])) for source, end in ends.items())
    if waiting:
        return ledger.next_sequence - 1 + waiting
    lasts = {source: at - 1 for source, at in ledger.standing.ends.items() if at}
    found = [int(ledger.sequence_of(source, np.array([at]))[0]) for source, at in lasts.items()]
    # retention has removed those without a sequence: theirs may have been the last ones
    return max(found, default=0) if all(found) else ledger.next_sequence - 1


def _start_at(positions: Mapping[TopicPartition, int], ledger: Ledger | None) -> Start:
    """Return a start at one position per partition. With a ledger the positions are also the
    `floor`, below which nothing is delivered: a merge by sequence may begin at earlier records.
    """
    return Start(positions, floor={} if ledger is None else positions)


async def find_offsets_since(
    client: AIOKafkaClient,
    admin: Admin,
    index: Index,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    since: int,
) -> dict[TopicPartition, int]:
    """Return for each partition the offset of its first record with timestamp >= since (ms since
    1970), or its end if there is none. `bounds`: log start and end of each partition.

    The brokers are asked. If they know no such record although the beginning of the log was
    deleted, the record that they name as the newest is read. Unless that one is older than `since`,
    the parts of the log are read that chunk headers do not rule out.
    """
    found = await admin.find_offsets(bounds, OffsetSpec.for_timestamp(since))
    # If the first such record was deleted, brokers answer that there is none, though later ones may
    # exist.
    doubtful = {source: bounds[source] for source, at in found.items() if at < 0 < bounds[source][0]}
    newest = await admin.find_offsets(doubtful, OffsetSpec.max_timestamp())
    for source, (first, end) in doubtful.items():
        at = newest[source]
        if first <= at < end and await _find_first(client, index.stream, source, (at, at + 1), since) is None:
            continue
        for span in find_since(index.of(source), since, first, end):
            begin = await _find_first(client, index.stream, source, (span.first_offset, span.next_offset), since)
            if begin is not None:
                found[source] = begin
                break
    return {source: at if at >= 0 else bounds[source][1] for source, at in found.items()}


async def _find_first(
    client: AIOKafkaClient, stream: StreamConfig, source: TopicPartition, span: tuple[int, int], since: int
) -> int | None:
    """Read a range of a partition, and return the offset of its first record with timestamp >=
    since (ms since 1970), None if there is none. `span`: first offset, and the offset after the
    range.

    Corrupt batches are skipped, as in `_scan`.
    """
    addressing = make_addressing(stream)
    async with aclosing(read_span(client, *source, *span)) as fetches:
        async for fetched in fetches:
            position = max(fetched.position, span[0])
            for piece in addressing.read(*source, fetched.data, position, stop=span[1], aborted=fetched.aborted):
                if isinstance(piece, Addressed) and (late := np.flatnonzero(piece.records.timestamp >= since)).size:
                    return int(piece.records.offset[late[0]])
    return None


def _find_places(
    ledger: Ledger, sequence: int, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return for each partition the first offset whose sequence is at or above `sequence`. If the
    partition has none, it is the ledger's end of the partition; if the ledger does not know the
    partition, the log start. `bounds`: log start and end, between which results are clipped.
    """
    places = ledger.positions_at(sequence)
    return {source: min(max(places.get(source, 0), first), end) for source, (first, end) in bounds.items()}


def patterns(config: ConsumerConfig) -> tuple[Pattern, ...]:
    """Return a consumer's subject filters as patterns; `>` if it has none."""
    return tuple(Pattern.parse(text) for text in config.filters or (">",))


async def _find_last(
    client: AIOKafkaClient,
    config: ConsumerConfig,
    index: Index,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    ledger: Ledger | None,
) -> dict[TopicPartition, int]:
    """Return start positions by partition, such that the last record that matches the consumer's
    subject filters is delivered first. Of each partition only its last matching record, by offset,
    is looked at. Of these it is one without a sequence, which is taken to get the highest; of
    several such, and without a ledger, the one with the latest timestamp; otherwise the one with
    the highest sequence.

    The other partitions start at their first sequence above it, or at their ends if it has no
    sequence. If nothing matches, all start at their ends. `bounds`: log start and end of each
    partition.
    """
    found = {
        source: last
        for source, (first, end) in bounds.items()
        if (last := await _find_last_in(client, config, index, source, first, end)) is not None
    }
    return choose_last(found, bounds, ledger)


def choose_last(
    found: Mapping[TopicPartition, tuple[int, int]],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    ledger: Ledger | None,
) -> dict[TopicPartition, int]:
    """Return start positions by partition, such that the last of some records is delivered first.

    `found`: timestamp (ms) and offset of the last matching record of each partition that has one.
    `bounds`: log start and end of each partition. The last one is a record without a sequence yet,
    of several such the one with the latest timestamp; otherwise the one with the highest sequence. A
    record whose sequence is lost counts as coming right before the next one of its partition. The
    other partitions start at their first sequence above it, or at their ends if it has none yet.
    """
    ends = {source: end for source, (_, end) in bounds.items()}
    if not found:
        return ends
    ranked = ((_rank(ledger, source, offset), time, source, offset) for source, (time, offset) in found.items())
    sequence, _, source, offset = max(ranked)
    others = ends if ledger is None or sequence == _NONE_YET else _find_places(ledger, sequence, bounds)
    return {**others, source: offset}


def _rank(ledger: Ledger | None, source: TopicPartition, offset: int) -> int:
    """Return the sequence of a record as `choose_last` counts it: _NONE_YET if it will get one."""
    if ledger is None or offset >= ledger.end_of(source):
        return _NONE_YET
    known = int(ledger.sequence_of(source, np.array([offset]))[0])
    return known or ledger.sequence_from(source, offset) - 1


async def _find_last_in(
    client: AIOKafkaClient, config: ConsumerConfig, index: Index, source: TopicPartition, first: int, end: int
) -> tuple[int, int] | None:
    """Return timestamp (ms) and offset of the last record with first <= offset < end whose subject
    matches the consumer's filters, None if nothing matches. Reads the log backwards in growing
    windows, without those chunks that cannot have a match and are worth a skip (skip/plan.py).
    """
    stream, chunks, wanted = index.stream, index.of(source), patterns(config)
    route = plan(evaluate(derive(stream, wanted, None, None, now=0), chunks), chunks, first, end)
    # By exact counts a match is at or after this offset, unless the topic has lost it since.
    enough = find_tail(chunks, simplify(stream, wanted), first, end, 1)
    window = WINDOW
    for span in reversed(list(route)):
        stop = span.next_offset
        while stop > span.first_offset:
            low = max(span.first_offset, stop - window, enough if enough < stop else first)
            found: list[tuple[int, int]] = []

            def note(piece: Addressed, rows: Ints, found: list[tuple[int, int]] = found) -> None:
                if rows.size:
                    found[:] = [(int(piece.records.timestamp[rows[-1]]), int(piece.records.offset[rows[-1]]))]

            size = int(weigh(chunks, np.array([low]), np.array([stop]))[0])
            await _scan(client, wanted, stream, source, Piece(low, stop, size), note)
            if found:
                return found[0]
            stop, window = low, window * 2
    return None


async def find_lasts(
    client: AIOKafkaClient,
    wanted: Sequence[Pattern],
    stream: StreamConfig,
    source: TopicPartition,
    span: tuple[int, int],
    chunks: Chunks,
    step: Step,
    fetcher: Fetcher | None = None,
) -> dict[str, int]:
    """Return by subject the offset of its last record in a range of a partition, for the subjects
    that match `wanted`. `span`: first offset, and the offset after the range.

    Reads backwards what `chunks` do not rule out, and small gaps between
    (overlay/index/pending/last_per_subject.py). `fetcher`: by default one on the connections of
    `client`. `step`: called after each fetch with the number of the range's offsets that are read
    or passed over so far, counted from its end, and the bytes of the fetch. Raises SourceChanged,
    CredentialsRefused or SourceUnavailable.
    """
    search = LastPerSubject(chunks, wanted, *span)
    return await run_search(client, search, wanted, stream, source, span[1], step, fetcher)


async def run_search(
    client: AIOKafkaClient,
    search: LastPerSubject,
    wanted: Sequence[Pattern],
    stream: StreamConfig,
    source: TopicPartition,
    end: int,
    step: Step = lambda done, size: None,
    fetcher: Fetcher | None = None,
) -> dict[str, int]:
    """Read what `search` asks for until it is over, and return by subject the offset of its last
    record in the range of the search, without the chunks that the search leaves out (`may_hold`).

    `wanted`: the patterns of the search. `end`: the offset after its range. `step`: as in
    `find_lasts`. `fetcher`: by default one on the connections of `client`. Raises SourceChanged,
    CredentialsRefused or SourceUnavailable.
    """
    lasts: dict[str, int] = {}

    def note(slice_: Addressed, rows: Ints) -> None:
        codes, index = np.unique(slice_.codes[rows][::-1], return_index=True)
        offsets = slice_.records.offset[rows][::-1][index]
        subjects = slice_.dictionary.subjects
        lasts.update((subjects[code], offset) for code, offset in zip(codes.tolist(), offsets.tolist(), strict=True))

    while pieces := search.next():
        for piece in pieces:
            shifted = _shift(step, end - piece.next_offset)
            await _scan(client, wanted, stream, source, piece, note, shifted, fetcher)
            search.take(lasts.items())
            lasts.clear()
    return search.found


def _shift(step: Step, settled: int) -> Step:
    return lambda done, size: step(settled + done, size)


async def _scan(
    client: AIOKafkaClient,
    wanted: Sequence[Pattern],
    stream: StreamConfig,
    source: TopicPartition,
    part: Piece,
    note: Callable[[Addressed, Ints], None],
    step: Step = lambda done, size: None,
    fetcher: Fetcher | None = None,
) -> None:
    """Read the range `part` of a partition. Call `note` with every slice of decoded records and the
    row numbers of the records with a subject that matches `wanted`, and `step` after each fetch
    with the number of the range's offsets read so far and the bytes of that fetch.

    Batches whose records cannot be read are skipped here, whatever the stream's `on_corrupt`: a
    delivery that follows meets them again. After a batch whose header cannot be read, nothing more
    is read.
    """
    addressing = make_addressing(stream)
    audience = Audience(addressing.dictionary(*source), [wanted])
    first, end, size = part
    gate = open_gate(stream)
    reading = read_span(client, *source, first, end, size=size if size > 0 else None, fetcher=fetcher, gate=gate)
    async with aclosing(reading) as fetches:
        async for fetched in fetches:
            position = max(fetched.position, first)
            for slice_ in addressing.read(*source, fetched.data, position, stop=end, aborted=fetched.aborted):
                if isinstance(slice_, Addressed):
                    note(slice_, audience.select(slice_.codes).of(0))
            step(min(fetched.next_offset, end) - first, fetched.data.size)
