"""The chunk indexes that a client has read: kept from one reading to the next, so that each reads only what has come since.

An index is a help and never a condition. Where there is none, or it may not be read, or what is read makes no sense,
everything is read, as if there were no index. It is believed as far as its chunks were made from the log that is
there: the batch at which the last one ends is held against the log before each reading (overlay/index/log_check.py).

Which chunks need not be read, overlay/index/skip/prune.py answers and plan.py decides; how many records of some subjects there
are, pending.py may know without reading any.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiokafka.errors import KafkaError

from overlay.client.connection import Connection
from overlay.config.stream import StreamConfig
from overlay.errors import OverlayError
from overlay.index.log_check import void
from overlay.index.pending.estimate import count_pending, simplify
from overlay.index.pending.last_per_subject import LastPerSubject, find_tail
from overlay.index.skip.derive import derive
from overlay.index.skip.plan import plan
from overlay.index.skip.probes import Answer, Conditions, Everything
from overlay.index.skip.prune import evaluate
from overlay.index.topic import Index, index_topic
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.waits import finish_in_thread

from .bounds import Bounds
from .offset_ranges import Stretch, find_way
from .question import Request
from .sequences import Order

log = get_logger(__name__)

LOOK_AGAIN_S = 10.0
"""How long a stream that has no index is taken to have none."""
TURN_S = 0.002
SMALL_CHUNKS = 20_000
"""So many are asked in a millisecond or two; a loop need not be spared that."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a reading has to read, with the help of an index."""

    stretches: tuple[Stretch, ...]
    counted: int = 0
    """Records that pass and that need not be read, since only their number is asked for."""
    searches: Mapping[TopicPartition, LastPerSubject] = field(default_factory=dict)
    """By partition, where the last record of each subject is asked for."""


class KeptIndex:
    """The index of one stream. Readings of several threads use it in turns."""

    def __init__(self, topic: str, stream: StreamConfig) -> None:
        self.topic, self._stream = topic, stream
        self._index = Index(stream)
        self._is_there, self._looked = False, float("-inf")
        self._compacted: frozenset[str] = frozenset()
        self._turn = threading.Lock()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """What has to be looked at before it is used again: the last batch of each partition's chunks, and its own end."""
        if not self._is_there or not self._turn.acquire(blocking=False):
            return {}
        try:
            ends = {source: int(c.next_offset[-1]) - 1 for source, c in self._index.chunks.items() if len(c)}
            return {**ends, (self.topic, 0): self._index.position}
        finally:
            self._turn.release()

    async def find_course(
        self, line: Connection, request: Request, conditions: Conditions, bounds: Bounds
    ) -> Course | None:
        """What has to be read within some bounds; None when there is no index to tell."""
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds):
                    return None
                await self._check(line, bounds)
                counts = is_count(request) and not await self._find_compacted(line)
                question = request, conditions, bounds.stretches, counts
                is_small = sum(map(len, self._index.chunks.values())) <= SMALL_CHUNKS
                return self._plan(*question) if is_small else await finish_in_thread(self._plan, *question)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            log.warning("everything is read: the index cannot be", stream=self._stream.name, reason=str(error))
            return None

    async def find_order(self, line: Connection, bounds: Bounds) -> Order | None:
        """The stream's ledger as it is now, for a reading of its own; None where there is none."""
        try:
            async with self._take_turn():
                if not await self._read_on(line, bounds) or self._index.ledger.next_sequence == 1:
                    return None
                index = Index(self._stream, with_chunks=False)
                index.ledger, index.position = copy.deepcopy(self._index.ledger), self._index.position
                return Order(self.topic, index)
        except (OverlayError, KafkaError, OSError) as error:
            self._looked = float("-inf")
            log.warning("the ledger cannot be read", stream=self._stream.name, reason=str(error))
            return None

    @contextlib.asynccontextmanager
    async def _take_turn(self) -> AsyncIterator[None]:
        # a lock of threads, for readings have loops of their own
        while not self._turn.acquire(blocking=False):  # noqa: ASYNC110 - nothing in this loop knows when it is free
            await asyncio.sleep(TURN_S)
        try:
            yield
        finally:
            self._turn.release()

    async def _read_on(self, line: Connection, bounds: Bounds) -> bool:
        """Read what has come since the last time; False when there is no index."""
        if own := bounds.seen.get((self.topic, 0)):
            end = own.end
        else:
            if not self._is_there and time.monotonic() - self._looked < LOOK_AGAIN_S:
                return False
            self._looked = time.monotonic()
            self._is_there = await self._find(line)
            if not self._is_there:
                return False
            first, end = (await line.admin.find_bounds([(self.topic, 0)]))[self.topic, 0]
            if end < self._index.position:
                self._index = Index(self._stream)  # another topic of that name
            self._index.position = max(self._index.position, first)
            await (await line.open()).add_topic(self.topic)
        if end > self._index.position:
            await self._index.read(await line.open(), self.topic, end)
        return True

    async def _find(self, line: Connection) -> bool:
        # who may not look at it reads everything, as where there is none
        if self.topic not in await line.admin.find_topics([self.topic], with_config=False, denied={}):
            self._index = Index(self._stream)
            return False
        self._compacted = await self._find_compacted(line)
        return True

    async def _find_compacted(self, line: Connection) -> frozenset[str]:
        """The topics of the stream from which records vanish out of the midst."""
        topics = await line.admin.find_topics(self._stream.topic_names)
        return frozenset(name for name, facts in topics.items() if "compact" in facts.config.get("cleanup.policy", ""))

    async def _check(self, line: Connection, bounds: Bounds) -> None:
        """Hold the chunks against the log, and drop what is not there any more."""
        doubtful: list[TopicPartition] = []
        for source, first in bounds.log_starts.items():
            chunks = self._index.of(source)
            chunks.drop(first)
            seen = bounds.seen.get(source)
            if len(chunks) and (seen is None or seen.log_position != chunks.log_position(len(chunks) - 1)):
                doubtful.append(source)
        if not doubtful:
            return
        # chunks may have been sealed behind the bounds meanwhile
        now = await line.admin.find_bounds(doubtful, committed=False)
        client = await line.open()
        for source in doubtful:
            compacted = source[0] in self._compacted
            await void(client, self._stream.name, source, self._index.of(source), now[source], compacted=compacted)

    def _plan(self, request: Request, conditions: Conditions, stretches: Sequence[Stretch], counts: bool) -> Course:
        if counts and (course := self._count(request, stretches)) is not None:
            return course
        if request.last_per_subject:
            return Course(
                tuple(stretches), searches={s.source: self._search(request, conditions, s) for s in stretches}
            )
        return Course(tuple(self._find_way(request, conditions, each) for each in stretches))

    def _search(self, request: Request, conditions: Conditions, stretch: Stretch) -> LastPerSubject:
        chunks = self._index.of(stretch.source)
        may_hold = evaluate(conditions, chunks).levels != Answer.NO
        return LastPerSubject(chunks, request.patterns, stretch.start, stretch.stop, may_hold)

    def _find_way(self, request: Request, conditions: Conditions, stretch: Stretch) -> Stretch:
        chunks = self._index.of(stretch.source)
        if not len(chunks) or stretch.start >= stretch.stop:
            return stretch
        route = plan(evaluate(conditions, chunks), chunks, stretch.start, stretch.stop)
        way, enough = find_way(route, chunks), 0
        if request.last is not None and conditions == Conditions(subject=conditions.subject):
            enough = find_tail(
                chunks, simplify(self._stream, request.patterns), stretch.start, stretch.stop, request.last
            )
        return replace(stretch, way=way, enough=enough)

    def _count(self, request: Request, stretches: Sequence[Stretch]) -> Course | None:
        """By the counts of headers, and what has to be read beside; None unless that is exact."""
        counted, left, patterns = 0, list[Stretch](), simplify(self._stream, request.patterns)
        for each in stretches:
            pending = count_pending(self._index.of(each.source), patterns, each.start, each.stop)
            if not pending.is_exact:
                return None
            counted += pending.count
            left += (replace(each, start=span.first_offset, stop=span.next_offset) for span in pending.to_scan)
        return Course(tuple(left), counted)


class Indexes:
    """The indexes of a client's streams. `prefix`: of the overlay's own topics."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._kept: dict[str, KeptIndex] = {}

    def find(self, request: Request, conditions: Conditions) -> KeptIndex | None:
        """The index to use for a question; None where it could not help."""
        helps = any(probe != Everything() for _, probe in conditions.parts())
        helps = helps or is_count(request) or request.last_per_subject
        return self.keep(request) if helps and request.index else None

    def keep(self, request: Request) -> KeptIndex | None:
        """The index of a stream, for whatever it holds; None where no file describes one."""
        if not request.is_named:
            return None
        name = request.stream.name
        if name not in self._kept:
            self._kept.setdefault(name, KeptIndex(index_topic(self._prefix, name), request.stream))
        return self._kept[name]


def derive_conditions(request: Request, now: int) -> Conditions:
    """What a chunk must have for the records that are asked for. `now`: ms since 1970."""
    return derive(
        request.stream,
        request.patterns,
        request.values,
        request.filter,
        now=now,
        since=request.since,
        until=request.until,
    )


def is_count(request: Request) -> bool:
    """Whether the answer is no more than how many records of some subjects there are now."""
    bounded = request.since is not None or request.until is not None
    bounded = bounded or request.last is not None or request.last_per_subject
    return not (request.columns or request.filter or request.values or bounded or request.follow)
