"""The planning of a reading at the driver: from options to tasks, with bounds from Kafka and the
chunk index.

The steps are those of a reading in process (overlay/client/read/reader.py): get the log's ends from
Kafka, compare the index with the log, skip the chunks that cannot match. After the first step, Spark's
bounds are applied: offsets to begin and end at, and what predicates say of positions. If records that
were asked for do not exist any more, the query ends here, before any task has begun, unless
failOnDataLoss is off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from overlay.arrays import Ints
from overlay.client.connection import Connection
from overlay.client.read.bounds import NoSequence, ReadBounds
from overlay.client.read.indexes import Indexes
from overlay.client.read.question import CheckedQuestion
from overlay.client.read.reader import count_by_index, count_spans, make_read_plan
from overlay.errors import OverlayError, SourceChanged
from overlay.index.ledger.ledger import Ledger
from overlay.index.pending.by_subject import SubjectTally
from overlay.index.pending.last_per_subject import LastPerSubject
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.index.start_positions import find_offsets_since, run_search
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.logs import get_logger
from overlay.scan.decode import NO_STOP
from overlay.state.partitions import find_anew
from overlay.subject import Pattern

from .kept import keep
from .options import EARLIEST, LATEST, Ask, Ranges, ReadBound
from .partitions import RECORD_BYTES, TaskPartition, divide

log = get_logger(__name__)

T = TypeVar("T")

Ends = dict[TopicPartition, tuple[int, int]]
"""First and next offset of each partition."""


CREATED_AGAIN = "the topic was deleted and created again"
TRUNCATED = "the topic was truncated or made anew"


class DataLoss(OverlayError):
    """Records that were asked for are not in the log any more.

    The user decides whether that matters (failOnDataLoss).
    """


@dataclass(frozen=True, slots=True)
class PositionWindow:
    """Positions of the records that can pass, as start <= x < stop, from predicates.

    None for topics or partitions means all of them.
    """

    sequences: tuple[int, int] = (0, NO_STOP)
    offsets: tuple[int, int] = (0, NO_STOP)
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def clip(self, source: TopicPartition, first: int, end: int, *, sequenced: bool) -> tuple[int, int]:
        """Return the part start:stop of a partition's offsets first:end that is in the window;
        (end, end) if its topic or partition is not. `sequenced`: whether sequences are offsets + 1,
        as in a stream of one partition; otherwise the window's `sequences` are not used.
        """
        if self.topics is not None and source[0] not in self.topics:
            return end, end
        if self.partitions is not None and source[1] not in self.partitions:
            return end, end
        low, high = self.offsets
        if sequenced:
            low, high = max(low, self.sequences[0] - 1), min(high, self.sequences[1] - 1)
        start = min(max(first, low), end)
        return start, max(start, min(high, end))


EVERYTHING = PositionWindow()


class Planner:
    """A planner for the readings of one ask."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._kept = keep(ask)

    def plan(self, window: PositionWindow = EVERYTHING) -> list[TaskPartition]:
        """Return the tasks of a batch reading: all that the options ask for and that is in the
        window. Raises DataLoss, NoSequence, and what a reading raises.
        """
        starting, ending = self.renew(self.ask.starting, EARLIEST), self.renew(self.ask.ending, LATEST)
        ask = replace(self.ask, starting=starting, ending=ending)
        return self._divide(lambda bounds: choose(clip(bounds, find_ends(bounds, ask), window), ask.ranges))

    def count(self) -> dict[TopicPartition, SubjectTally]:
        """Return the number of records of each subject that pass, by partition, as far as the chunk
        index tells, and what a batch reading has to read for the rest.

        Raises as `plan` does.
        """
        starting, ending = self.renew(self.ask.starting, EARLIEST), self.renew(self.ask.ending, LATEST)
        ask = replace(self.ask, starting=starting, ending=ending)
        needs_order = ask.starting.sequence is not None or ask.ending.sequence is not None
        request = replace(ask.request, columns=("sequence",) if needs_order else ())

        def narrow(bounds: ReadBounds) -> ReadBounds:
            return clip(bounds, find_ends(bounds, ask), EVERYTHING)

        return self._run(lambda line: count_by_index(line, self._kept.indexes, request, narrow))

    def plan_between(
        self, ends: Ends, *, may_lose: bool = False, ranges: Ranges | None = None, ledger: Ledger | None = None
    ) -> list[TaskPartition]:
        """Return the tasks that read these offsets. `ends`: first and next offset of each
        partition. `ranges`: those of them to read, None for all. `ledger`: gives the sequences;
        None for the one in Kafka. Raises as `plan` does.

        With `may_lose` no offset that retention has removed is an error or left out here: the tasks
        find out how many these are.
        """

        def narrow(bounds: ReadBounds) -> ReadBounds:
            known = allow_retention(bounds, ends) if may_lose else bounds
            return choose(clip(bounds, check_loss(known, ends, self.ask.fails_on_loss), EVERYTHING), ranges)

        return self._divide(narrow, ledger)

    def find_lasts(self, spans: Ends) -> dict[TopicPartition, dict[str, int]]:
        """Return, for each partition, the offset of each wanted subject's last record in the partition's span, by subject,
        whatever the filter says of that record. `spans`: first and next offset by partition.

        What retention has removed does not count, also while this searches. Raises what a reading raises.
        """
        request = replace(self.ask.request, filter=None, values=None, last_per_subject=True, columns=())
        while True:
            bounds = self.look()
            left = {s: (max(start, bounds.log_starts.get(s, 0)), stop) for s, (start, stop) in spans.items()}
            try:
                return self._run(lambda line, left=left: _find_lasts(line, self._kept.indexes, request, left))  # type: ignore[misc]
            except SourceChanged:
                log_starts = self.look().log_starts
                if all(log_starts.get(source, 0) <= start for source, (start, stop) in left.items() if start < stop):
                    raise

    def look(self, *, with_ledger: bool = False) -> ReadBounds:
        """Ask Kafka for the current bounds of the log and return them.

        `with_ledger`: also read the stream's ledger, if it has one.
        """
        request = replace(self.ask.request, index=False, columns=("sequence",) if with_ledger else ())
        return self._run(lambda line: make_read_plan(line, self._kept.indexes, request))[0]

    def count_spans(
        self, wanted: Sequence[tuple[Pattern, ...]], spans: Sequence[tuple[TopicPartition, int, int]]
    ) -> Ints:
        """Return how many records of each list of patterns the chunk index counts in each span (partition, first and next
        offset), int64 [lists, spans]; -1 where it does not tell exactly."""
        request = replace(self.ask.request, columns=())
        return self._run(lambda line: count_spans(line, self._kept.indexes, request, wanted, spans))

    def find_ledger(self) -> Ledger | None:
        """Return the ledger of the stream as it is now, None if there is none."""
        return self.look(with_ledger=True).ledger

    def look_anew(self, bounds: ReadBounds, sources: Collection[TopicPartition]) -> ReadBounds:
        """Return the bounds with the ends of these partitions looked up again, from leaders that
        know everything that is committed. Other ends stay.
        """
        ends = self._run(lambda line: line.admin.find_bounds(sources))
        offset_ranges = tuple(
            replace(each, stop=ends[each.source][1]) if each.source in ends else each for each in bounds.offset_ranges
        )
        return replace(bounds, offset_ranges=offset_ranges)

    def find_cuts(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition whose log ends before its offset in `offsets`, also with the records
        of open transactions. Asks leaders that know everything that is committed, as `look_anew` does.
        """
        ends = self._run(lambda line: line.admin.find_bounds(offsets))
        whole = self._run(lambda line: line.admin.find_bounds(offsets, committed=False))
        return {source: ends[source][1] for source, at in offsets.items() if whole[source][1] < at}

    def find_ids(self) -> dict[str, str]:
        """Return Kafka's ids of the stream's topics, without topics that do not exist."""
        names = self.ask.request.stream.topic_names
        facts = self._run(lambda line: line.admin.find_topics(names, with_config=False))
        return {name: facts[name].identity for name in names if name in facts}

    def renew(self, bound: ReadBound, instead: int) -> ReadBound:
        """Return a bound with `instead` in place of the offsets of topics that were created again since it was written.
        A topic whose id the bound does not have counts as the same.

        Raises DataLoss for such a topic if failOnDataLoss is on.
        """
        anew = find_anew(bound.ids, self.find_ids()) if bound.ids else set()
        for topic in sorted(anew):
            report_loss(topic, CREATED_AGAIN, self.ask.fails_on_loss)
        offsets = {source: instead if source[0] in anew else at for source, at in (bound.offsets or {}).items()}
        return replace(bound, offsets=offsets) if anew else bound

    def find_since(self, since: int, log: Ends) -> dict[TopicPartition, int]:
        """Return the offsets at which the service would begin a consumer at the time `since` (ms since 1970).

        This is each partition's first record at or after that time, or the end of its log if there is none.
        `log`: first and next offset of each partition.
        """
        return self._run(lambda line: _find_since(line, Index(self.ask.request.stream), since, log))

    def weigh(self, ends: Ends) -> dict[TopicPartition, float]:
        """Return the bytes per offset of each partition, estimated from the batches at its first offset in `ends`;
        RECORD_BYTES if there are none.
        """
        return self._run(lambda line: _weigh(line, ends))

    def _divide(self, narrow: Callable[[ReadBounds], ReadBounds], ledger: Ledger | None = None) -> list[TaskPartition]:
        bounds, read_plan = self._run(lambda line: make_read_plan(line, self._kept.indexes, self.ask.request, narrow))
        pace, sequenced = self.ask.pace, bounds.sources.is_sequenced
        shares = divide(read_plan.offset_ranges, pace.task_bytes, pace.min_tasks)
        if "sequence" not in self.ask.request.columns:
            ledger = None
        elif ledger is None:
            ledger = bounds.ledger
        return [TaskPartition(offset_ranges, sequenced=sequenced, ledger=ledger) for offset_ranges in shares]

    def _run(self, ask: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        found: list[T] = []

        async def work(line: Connection) -> None:
            found.append(await ask(line))

        self._kept.lines.run(work)
        return found[0]


async def _find_since(line: Connection, index: Index, since: int, log: Ends) -> dict[TopicPartition, int]:
    return await find_offsets_since(await line.open(), line.admin, index, log, max(0, since))


async def _find_lasts(
    line: Connection, indexes: Indexes, request: CheckedQuestion, spans: Ends
) -> dict[TopicPartition, dict[str, int]]:
    bounds, read_plan = await make_read_plan(line, indexes, request, lambda bounds: clip(bounds, spans, EVERYTHING))
    client, stream, wanted = await line.open(), request.stream, request.patterns
    for topic in stream.topic_names:
        await client.add_topic(topic)
    none, found = Chunks(find_config_fingerprint(stream)), {}
    for each in bounds.offset_ranges:
        search = read_plan.searches.get(each.source) or LastPerSubject(none, wanted, each.start, each.stop)
        found[each.source] = await run_search(client, search, wanted, stream, each.source, each.stop)
    return found


async def _weigh(line: Connection, ends: Ends) -> dict[TopicPartition, float]:
    client, found = await line.open(), {}
    for source, (start, end) in ends.items():
        offsets = size = 0
        async for fetched in read_span(client, *source, start, min(start + 1, end)):
            offsets += int(fetched.batches[-1]["last_offset"]) + 1 - fetched.position if fetched.batches.size else 0
            size += fetched.data.size
        found[source] = size / offsets if offsets > 0 else RECORD_BYTES
    return found


def clip(bounds: ReadBounds, ends: Ends, window: PositionWindow) -> ReadBounds:
    """Return the bounds with each partition's range replaced by that part of `ends`, first and next
    offset, which is in the window. Partitions that `ends` does not name are left out.
    """
    sequenced = bounds.sources.is_sequenced
    kept = [
        replace(each, start=start, stop=stop)
        for each in bounds.offset_ranges
        if each.source in ends
        for start, stop in [window.clip(each.source, *ends[each.source], sequenced=sequenced)]
    ]
    return replace(bounds, offset_ranges=tuple(kept))


def choose(bounds: ReadBounds, ranges: Ranges | None) -> ReadBounds:
    """Return the bounds with only the offsets of these ranges, so that a partition may have several ranges or none; all
    of them for None.
    """
    if ranges is None:
        return bounds
    kept = tuple(
        replace(each, start=max(each.start, first), stop=min(each.stop, after))
        for each in bounds.offset_ranges
        for first, after in ranges.get(each.source, ())
        if first < each.stop and after > each.start
    )
    return replace(bounds, offset_ranges=kept)


def find_ends(bounds: ReadBounds, ask: Ask) -> Ends:
    """Return first and next offset to read of each partition, by the options and as far as the log has them. Raises
    DataLoss, NoSequence, and OverlayError for an offset of an unknown partition.
    """
    log = {each.source: (bounds.log_starts[each.source], each.stop) for each in bounds.offset_ranges}
    starts = resolve(ask.starting, bounds, log, EARLIEST)
    stops = resolve(ask.ending, bounds, log, LATEST, is_end=True)
    ends = {source: (starts[source], max(starts[source], min(stops[source], log[source][1]))) for source in log}
    return check_loss(bounds, ends, ask.fails_on_loss)


def resolve(
    bound: ReadBound,
    bounds: ReadBounds,
    log: Mapping[TopicPartition, tuple[int, int]],
    default: int,
    *,
    is_end: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition of `log` that a bound stands for. `log`: first and next
    offset by partition.

    Partitions that the bound does not name get `default`, EARLIEST or LATEST. The offsets need not
    be in the log. Raises NoSequence, and OverlayError for an offset of an unknown partition.

    If the bound is an end, its sequence is the first one that is not read.
    """
    if bound.sequence is not None:
        return _find_sequence(bound.sequence, bounds, log, is_end=is_end)
    everywhere = default if bound.everywhere is None else bound.everywhere
    given = bound.offsets or {}
    if strangers := sorted(set(given) - set(log)):
        topic, partition = strangers[0]
        raise OverlayError(f"offsets are given for {topic}-{partition}, which is not there. Leave it out")
    found = {}
    for source, (first, end) in log.items():
        offset = given.get(source, everywhere)
        found[source] = first if offset == EARLIEST else end if offset == LATEST else offset
    return found


def _find_sequence(
    sequence: int, bounds: ReadBounds, log: Mapping[TopicPartition, tuple[int, int]], *, is_end: bool
) -> dict[TopicPartition, int]:
    if bounds.sources.is_sequenced:
        return dict.fromkeys(log, sequence - 1)
    if bounds.ledger is None:
        which = "end" if is_end else "begin"
        raise NoSequence(
            f"the stream has {len(bounds.sources.partitions)} partitions and no ledger that gives an order over them, so there"
            f" is no sequence to {which} at. A service makes one; or use offsets or a time instead"
        )
    # records that the ledger does not know yet come after all its sequences
    places = bounds.ledger.positions_at(sequence)
    return {source: max(first, min(places.get(source, first), end)) for source, (first, end) in log.items()}


def check_loss(bounds: ReadBounds, ends: Ends, fails: bool) -> Ends:
    """Return the first and next offset of each partition, limited to what the log has.

    If records between them are missing, or an offset is beyond the log's end, DataLoss is raised if
    `fails` is set, else a warning is logged.
    """
    stops = {each.source: each.stop for each in bounds.offset_ranges}
    kept = {}
    for source, (start, stop) in ends.items():
        name = f"{source[0]}-{source[1]}"
        first, end = bounds.log_starts.get(source, 0), stops.get(source, 0)
        if start < first and start < stop:
            report_loss(
                name, f"offset {start} is gone: the log begins at {first} now (retention, or deleted records)", fails
            )
        elif start > end or (source not in stops and start < stop):
            report_loss(name, f"offset {start} is behind the log's end, {end}: {TRUNCATED}", fails)
        elif start < stop and end < stop:
            report_loss(name, f"the log ends at {end}, before {stop}: {TRUNCATED}", fails)
        kept[source] = (min(max(start, first), end), min(max(stop, first), end))
    return kept


def allow_retention(bounds: ReadBounds, ends: Ends) -> ReadBounds:
    """Return the bounds as if retention had removed none of these offsets: a log start above a
    partition's first offset in `ends` is lowered to it.
    """
    starts = {
        source: min(first, ends[source][0]) if source in ends else first for source, first in bounds.log_starts.items()
    }
    return replace(bounds, log_starts=starts)


def report_loss(where: str, what: str, fails: bool) -> None:
    """Raise DataLoss if `fails` is set, else log a warning. `where`: a topic or a partition.
    `what`: what is missing there, and why.
    """
    if fails:
        raise DataLoss(
            f"{where}: {what}. Begin later, or allow it with failOnDataLoss=false, and what is there will be read"
        )
    log.warning("records are lost", where=where, what=what)
