"""The chunk indexes of a client, kept from one reading to the next.

Each reading fetches only what is new in an index. An index helps but is never required. If there is
none, or it may not be read, or its content is invalid, everything is read as if there were no
index. An index is used as far as its chunks were made from the log that exists now. For that, the
batch at the end of the last chunk is compared with the log before each reading
(overlay/index/log_check.py).

overlay/index/skip/prune.py says which chunks need not be read, and overlay/index/skip/plan.py makes
the route. overlay/index/pending/estimate.py may know how many records of some subjects there are
without reading any.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from aiokafka.errors import KafkaError

from overlay.arrays import Ints
from overlay.client.connection import Connection
from overlay.config.stream import StreamConfig
from overlay.errors import CredentialsRefused, OverlayError, SourceChanged, SourceUnavailable
from overlay.index.log_check import void
from overlay.index.pending.by_subject import SubjectTally, count_by_subject
from overlay.index.pending.estimate import count_pending, simplify
from overlay.index.pending.last_per_subject import LastPerSubject, find_tail
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import plan
from overlay.index.skip.probes import Answer, Conditions, Everything
from overlay.index.skip.prune import Answers, evaluate
from overlay.index.topic import Index
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic
from overlay.logs import get_logger
from overlay.subject import Pattern
from overlay.waits import finish_in_thread

from .bounds import ReadBounds
from .offset_ranges import OffsetRange, size_route
from .question import CheckedQuestion
from .sequences import LedgerOrder

log = get_logger(__name__)

LOOK_AGAIN_S = 10.0
"""Seconds for which a stream without an index is assumed to have none."""
TURN_S = 0.002
SMALL_CHUNKS = 20_000
"""Most chunks that are evaluated in the event loop: they take a millisecond or two."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What a reading has to read, as far as the chunk index tells."""

    offset_ranges: tuple[OffsetRange, ...]
    counted: int = 0
    """Number of matching records that need not be read, because only their number is asked for."""
    searches: Mapping[TopicPartition, LastPerSubject] = field(default_factory=dict)
    """Searches for the last record of each subject, by partition."""


class KeptIndex:
    """The chunk index and the ledger of one stream, as far as a client has read them. They are kept
    in memory from one reading to the next. Readings in several threads use them one at a time.
    """

    def __init__(self, topic: str, stream: StreamConfig, *, needs_ledger: bool = False) -> None:
        self.topic, self._stream, self._needs_ledger = topic, stream, needs_ledger
        self._index = Index(stream)
        self._is_there, self._looked = False, float("-inf")
        self._compacted: frozenset[str] = frozenset()
        self._turn = threading.Lock()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """By partition, the last offset that its chunks cover, and for the index topic itself the next
        offset to read. A reading looks at the batches there to learn whether the index is valid.

        Empty if there is no index or another reading uses it now.
        """
        if not self._is_there or not self._turn.acquire(blocking=False):
            return {}
        try:
            ends = {source: int(c.next_offset[-1]) - 1 for source, c in self._index.chunks.items() if len(c)}
            return {**ends, (self.topic, 0): self._index.position}
        finally:
            self._turn.release()

    async def find_read_plan(
        self, line: Connection, request: CheckedQuestion, conditions: Conditions, bounds: ReadBounds
    ) -> ReadPlan | None:
        """Read what is new in the index, and return the parts of the bounds that have to be read for a
        request, since the index does not rule them out. None if there is no index, or if it cannot be
        read, which is logged. Waits while another reading uses the index.
        """
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds):
                    return None
                await self._check(line, bounds)
                counts = is_count(request) and not await self._find_compacted(line, in_doubt=True)
                question = request, conditions, bounds.offset_ranges, counts
                is_small = sum(map(len, self._index.chunks.values())) <= SMALL_CHUNKS
                return self._plan(*question) if is_small else await finish_in_thread(self._plan, *question)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            log.warning("everything is read: the index cannot be", stream=self._stream.name, reason=str(error))
            return None

    async def count_by_subject(
        self, line: Connection, request: CheckedQuestion, conditions: Conditions, bounds: ReadBounds
    ) -> dict[TopicPartition, SubjectTally] | None:
        """Read what is new in the index, and return, by partition, what it knows of the number of records
        of each subject within the bounds that pass the request. None if there is no index, or if it
        cannot be read, which is logged. Waits while another reading uses the index.
        """
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds):
                    return None
                await self._check(line, bounds)
                compacted = await self._find_compacted(line, in_doubt=True)
                question = request, conditions, bounds.offset_ranges, compacted
                return await finish_in_thread(self._count_by_subject, *question)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            log.warning("everything is read: the index cannot be", stream=self._stream.name, reason=str(error))
            return None

    async def count_spans(
        self,
        line: Connection,
        bounds: ReadBounds,
        wanted: Sequence[tuple[Pattern, ...]],
        spans: Sequence[tuple[TopicPartition, int, int]],
    ) -> Ints | None:
        """Read what is new in the index, and return how many records that match each list of patterns
        in `wanted` it counts in each of `spans` (partition, first and next offset), int64 [lists,
        spans]: -1 where it does not tell exactly, 0 for a list without patterns. None if there is no
        index, or if it cannot be read, which is logged. Waits while another reading uses the index.
        """
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds):
                    return None
                await self._check(line, bounds)
                compacted = await self._find_compacted(line, in_doubt=True)
                return await finish_in_thread(self._count_spans, wanted, spans, compacted)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            log.warning(
                "what lies ahead is not known: the index cannot be read", stream=self._stream.name, reason=str(error)
            )
            return None

    async def find_order(self, line: Connection, bounds: ReadBounds, *, gives_sequences: bool) -> LedgerOrder | None:
        """Read what is new in the index, and return a copy of the stream's ledger for one reading.
        None if the stream has no ledger or an empty one, or if it cannot be read, which is logged.
        Waits while another reading uses the index.

        `gives_sequences`: whether the reading gives its caller sequences. If this index was made with
        `needs_ledger`, such a reading raises SourceUnavailable if the ledger cannot be read now; not
        if its topic is another one or this user may not read it, which count as no ledger.
        """
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds) or self._index.ledger.next_sequence == 1:
                    return None
                index = Index(self._stream, with_chunks=False)
                index.ledger, index.position = copy.deepcopy(self._index.ledger), self._index.position
                return LedgerOrder(self.topic, index)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            if gives_sequences and self._needs_ledger and not isinstance(error, (SourceChanged, CredentialsRefused)):
                raise SourceUnavailable(
                    f"the ledger of stream {self._stream.name!r} cannot be read: {error}"
                ) from error
            log.warning("the ledger cannot be read", stream=self._stream.name, reason=str(error))
            return None

    @contextlib.asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        # a lock of threads, because each reading has a loop of its own
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110 - nothing in this loop knows when it is free
            await asyncio.sleep(TURN_S)
        try:
            yield
        finally:
            self._turn.release()

    async def _read_on(self, line: Connection, bounds: ReadBounds) -> bool:
        """Read what was added to the index since the last time. Return False if there is no index: its topic does not
        exist or may not be read. If it was not there less than LOOK_AGAIN_S seconds ago, Kafka is only asked again with
        `needs_ledger`.
        """
        if own := bounds.seen.get((self.topic, 0)):
            end = own.end
        else:
            is_known = not self._is_there and time.monotonic() - self._looked < LOOK_AGAIN_S
            if is_known and not self._needs_ledger:
                return False
            self._looked = time.monotonic()
            self._is_there = await self._find(line)
            if not self._is_there:
                return False
            first, end = (await line.admin.find_bounds([(self.topic, 0)]))[self.topic, 0]
            if end < self._index.position:
                self._index = Index(self._stream)  # the topic was created again
            self._index.position = max(self._index.position, first)
            await (await line.open()).add_topic(self.topic)
        if end > self._index.position:
            await self._index.read(await line.open(), self.topic, end)
        return True

    async def _find(self, line: Connection) -> bool:
        """Return whether the index topic exists and may be read. If so, also look up which topics
        of the stream are compacted; if not, drop what was read of the index.
        """
        # a client that may not read the index reads everything, as if there were none
        if self.topic not in await line.admin.find_topics([self.topic], with_config=False, denied={}):
            self._index = Index(self._stream)
            return False
        self._compacted = await self._find_compacted(line)
        return True

    async def _find_compacted(self, line: Connection, *, in_doubt: bool = False) -> frozenset[str]:
        """Return the compacted topics of the stream, whose records may vanish at any offset.
        `in_doubt`: also topics with a configuration that this user may not read.
        """
        topics = await line.admin.find_topics(self._stream.topic_names)
        policies = {name: facts.config.get("cleanup.policy") for name, facts in topics.items()}
        return frozenset(
            name for name, policy in policies.items() if (in_doubt if policy is None else "compact" in policy)
        )

    async def _check(self, line: Connection, bounds: ReadBounds) -> None:
        """Compare the chunks of the partitions in `bounds` with the log, and drop those that were made
        from another log or whose records do not exist any more. Raises what a fetch raises.
        """
        doubtful: list[TopicPartition] = []
        for source, first in bounds.log_starts.items():
            chunks = self._index.of(source)
            chunks.drop(first)
            seen = bounds.seen.get(source)
            if len(chunks) and (seen is None or seen.log_position != chunks.log_position(len(chunks) - 1)):
                doubtful.append(source)
        if not doubtful:
            return
        # chunks may have been sealed after the bounds were looked up
        now = await line.admin.find_bounds(doubtful, committed=False)
        client = await line.open()
        for source in doubtful:
            compacted = source[0] in self._compacted
            await void(client, self._stream.name, source, self._index.of(source), now[source], compacted=compacted)

    def _plan(
        self, request: CheckedQuestion, conditions: Conditions, offset_ranges: Sequence[OffsetRange], counts: bool
    ) -> ReadPlan:
        if counts and (read_plan := self._count(request, offset_ranges)) is not None:
            return read_plan
        if request.last_per_subject:
            return ReadPlan(
                tuple(offset_ranges), searches={s.source: self._search(request, conditions, s) for s in offset_ranges}
            )
        answers: dict[TopicPartition, Answers] = {}
        return ReadPlan(tuple(self._find_sized_route(request, conditions, each, answers) for each in offset_ranges))

    def _search(self, request: CheckedQuestion, conditions: Conditions, offset_range: OffsetRange) -> LastPerSubject:
        chunks = self._index.of(offset_range.source)
        may_hold = evaluate(conditions, chunks).levels != Answer.NO
        return LastPerSubject(chunks, request.patterns, offset_range.start, offset_range.stop, may_hold)

    def _count_by_subject(
        self,
        request: CheckedQuestion,
        conditions: Conditions,
        offset_ranges: Sequence[OffsetRange],
        compacted: frozenset[str],
    ) -> dict[TopicPartition, SubjectTally]:
        return {
            each.source: count_by_subject(
                conditions,
                request.patterns,
                self._index.of(each.source),
                each.start,
                each.stop,
                compacted=each.source[0] in compacted,
            )
            for each in offset_ranges
        }

    def _count_spans(
        self,
        wanted: Sequence[tuple[Pattern, ...]],
        spans: Sequence[tuple[TopicPartition, int, int]],
        compacted: frozenset[str],
    ) -> Ints:
        counts = np.zeros((len(wanted), len(spans)), np.int64)
        for row, patterns in enumerate(wanted):
            simple = simplify(self._stream, patterns)
            for column, (source, first, end) in enumerate(spans if patterns else ()):
                found = count_pending(self._index.of(source), simple, first, end)
                is_exact = found.is_exact and not (found.count and source[0] in compacted)
                counts[row, column] = -1 if found.to_scan or not is_exact else found.count
        return counts

    def _find_sized_route(
        self,
        request: CheckedQuestion,
        conditions: Conditions,
        offset_range: OffsetRange,
        answers: dict[TopicPartition, Answers],
    ) -> OffsetRange:
        """Return the range with the route through it and, for a request with `last` and no condition but its
        subjects, with `enough`; the range itself if the index has no chunks of its partition or the range is empty.
        `answers`: a cache of what the chunks of each partition answer, to which those of a new partition are added: a
        partition may have many ranges.
        """
        source = offset_range.source
        chunks = self._index.of(source)
        if not len(chunks) or offset_range.start >= offset_range.stop:
            return offset_range
        if source not in answers:
            answers[source] = evaluate(conditions, chunks)
        route = plan(answers[source], chunks, offset_range.start, offset_range.stop)
        sized_route, enough = size_route(route, chunks), 0
        if request.last is not None and conditions == Conditions(subject=conditions.subject):
            enough = find_tail(
                chunks, simplify(self._stream, request.patterns), offset_range.start, offset_range.stop, request.last
            )
        return replace(offset_range, sized_route=sized_route, enough=enough)

    def _count(self, request: CheckedQuestion, offset_ranges: Sequence[OffsetRange]) -> ReadPlan | None:
        """Return a plan that counts the matching records by the index, and reads only the ranges
        that the index does not cover. None if its count is not exact in one of the ranges.
        """
        counted, left, patterns = 0, list[OffsetRange](), simplify(self._stream, request.patterns)
        for each in offset_ranges:
            pending = count_pending(self._index.of(each.source), patterns, each.start, each.stop)
            if not pending.is_exact:
                return None
            counted += pending.count
            left += (replace(each, start=span.first_offset, stop=span.next_offset) for span in pending.to_scan)
        return ReadPlan(tuple(left), counted)


class Indexes:
    """The chunk indexes of a client's streams, kept by the stream's name. `prefix`: of the overlay's own topics.

    `needs_ledger`: whether sequences have to be right at each reading. An index that was not there is
    looked for again at once, and a reading that gives sequences raises SourceUnavailable if the ledger
    cannot be read now.
    """

    def __init__(self, prefix: str, *, needs_ledger: bool = False) -> None:
        self._prefix, self._needs_ledger = prefix, needs_ledger
        self._kept: dict[str, KeptIndex] = {}

    def find(self, request: CheckedQuestion, conditions: Conditions) -> KeptIndex | None:
        """Return the index to use for a request, without reading it yet. None if it would not help (the
        conditions rule out no chunk, and the request neither is a count nor asks for the last record
        of each subject), if the request is about a topic that no file describes, or if it says
        `index=False`.
        """
        helps = any(probe != Everything() for _, probe in conditions.parts())
        helps = helps or is_count(request) or request.last_per_subject
        return self.keep(request) if helps and request.index else None

    def keep(self, request: CheckedQuestion) -> KeptIndex | None:
        """Return the index of a request's stream, without reading it yet, whatever the request says of
        `index`. The first call for a stream makes it, empty. None for a topic that no file describes.
        """
        if not request.is_named:
            return None
        name = request.stream.name
        if name not in self._kept:
            topic = index_topic(self._prefix, name)
            self._kept.setdefault(name, KeptIndex(topic, request.stream, needs_ledger=self._needs_ledger))
        return self._kept[name]


def derive_conditions(request: CheckedQuestion, now: int) -> Conditions:
    """Return the conditions that a chunk header must meet if the chunk may have records that the
    request wants. `now`: ms since 1970.
    """
    return derive(
        request.stream,
        request.patterns,
        request.values,
        request.filter,
        now=now,
        since=request.since,
        until=request.until,
    )


def is_count(request: CheckedQuestion) -> bool:
    """Return whether a request asks only for the present number of records of some subjects: no
    columns, no filter, no filter values, no `since`, `until`, `last`, `last_per_subject` or `follow`.
    `from_seq` and `limit` are allowed.
    """
    bounded = request.since is not None or request.until is not None
    bounded = bounded or request.last is not None or request.last_per_subject
    return not (request.columns or request.filter or request.values or bounded or request.follow)
