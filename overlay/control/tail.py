"""Reading the control topic into a book: all of it, and then what comes.

Any client with Write on the topic chooses its bytes, and every worker reads them at every start. So they are read by the
project's own decoder and not by a client's consumer, which raises on some of them. A batch or a record that cannot be read
is passed over, counted and logged with its place; the records behind it are taken in.

The topic is compacted, and a tombstone stays for `delete.retention.ms` only. So what is read must have no holes: a worker that
slept for longer finds that offsets are gone from where it stood, and does not know whether a deletion was among them. It reads
the topic anew. Below the end that the topic had when the reading began, holes are no harm, as long as it takes less time than
tombstones stay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.clock import monotonic, now_ms
from overlay.config import Loaded
from overlay.dispatch.reply_address import CORRELATION, REPLY_PARTITION, REPLY_TOPIC
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import Properties, open_client
from overlay.kafka.fetcher import Changed, Denied, Fetched, Fetcher, Lost, PartitionFetch
from overlay.kafka.records import Row, RowReader
from overlay.logs import get_logger
from overlay.scan import Malformed
from overlay.waits import is_set_within

from .brokertime import BrokerTime
from .records import ConsumerId, Definition, Origin, Subject, control_topic
from .registry import Registry
from .requests import CLIENT
from .topics import HOUR_MS

log = get_logger(__name__)

POLL_S = 0.2
OPEN_S = 30.0
MOST_BYTES = 32 << 20
"""What one batch may decompress to: a batch of the default size limit, compressed 32 times smaller."""
TURN = 200
"""Records that are taken in before the event loop's other work has a turn."""
MOST_NAMED = 100
"""Consumers that one line of the log names."""
WHOLE_MS = HOUR_MS // 2
"""Longest time to read all of the topic, by the wall clock, which goes on while a machine is suspended."""
HEADERS = (REPLY_TOPIC, REPLY_PARTITION, CORRELATION, CLIENT)


def _ignore(_: int) -> None:
    pass


@dataclass(slots=True)
class Tail:
    """`open`, then `read` as often as one likes, then `close`."""

    kafka: Properties
    admin: Admin
    book: Registry
    on_passed_over: Callable[[int], None] = _ignore
    """Told how many records and batches could not be read."""
    seen: int = 0
    """How far the book has read."""
    beginnings: int = 0
    """How often the topic was found to have lost records behind `seen`, and the book began again at its start."""
    brokers: BrokerTime = field(default_factory=BrokerTime)
    """What the records that were read say of the brokers' time."""
    _again_to: int = -1
    """Where the topic ended when the book began, or began again; -1 once it has read up to there."""
    _began_at: int = 0
    """When that was, ms since 1970."""
    _is_same: bool = False
    """Whether the topic is the log that it was when the book began again, so that what is not in it was deleted."""
    _former: dict[ConsumerId, Definition] = field(default_factory=dict)
    """What the book held before it began again."""
    _client: AIOKafkaClient | None = None
    _fetcher: Fetcher | None = None
    _partition_fetch: PartitionFetch | None = None
    _rows: RowReader = field(default_factory=lambda: RowReader(HEADERS, most_bytes=MOST_BYTES))

    @property
    def topic(self) -> str:
        return control_topic(self.book.prefix)

    @property
    def is_behind(self) -> bool:
        """Whether the book has begun again and does not hold yet what the topic says."""
        return self._again_to >= 0

    async def open(self) -> None:
        """Read the topic, which is there, up to its present end. Raises SourceUnavailable, CredentialsRefused."""
        try:
            async with asyncio.timeout(OPEN_S):
                self._client = await open_client(self.kafka)
                self._fetcher = Fetcher(self._client)
                self._began_at = now_ms()
                self.seen, self._again_to = await self._find_bounds()
                self._partition_fetch = await self._fetcher.open(self.topic, 0, self.seen)
                while self.seen < self._again_to:
                    await self._read_on()
                await self._end_beginning()
                while self.is_behind:
                    await self.read()
        except (KafkaError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SourceUnavailable(f"{self.topic}: cannot be read: {reason}") from error

    async def read(self) -> set[Subject]:
        """Take in the records that are there, or that come soon. Returns what they were about, with everything that a book
        may have lost which began again.

        Raises CredentialsRefused, SourceUnavailable.
        """
        subjects = await self._read_on()
        if self.is_behind and self.seen >= self._again_to and await self._end_beginning():
            return {Subject.CONSUMER, Subject.PAUSE, Subject.REQUEST}
        return subjects

    async def _end_beginning(self) -> bool:
        """Note that the topic has been read from its start to its end; False where that took too long and begins again."""
        if now_ms() - self._began_at > WHOLE_MS:
            await self._read_anew("it took so long to read the control topic that deletions may be gone from it")
            return False
        self._again_to = -1
        self._tell_missing()
        return True

    async def _read_on(self) -> set[Subject]:
        assert self._fetcher is not None
        assert self._partition_fetch is not None
        self._fetcher.changed.clear()
        taken = self._partition_fetch.take()
        if taken is None:
            await is_set_within(self._fetcher.changed, POLL_S)
            taken = self._partition_fetch.take()
        match taken:
            case Fetched() if has_hole(taken, self._again_to if self.is_behind else 0):
                await self._read_anew("records were compacted away before they were read")
            case Fetched():
                return await self._take(taken, self._partition_fetch)
            case Denied():
                raise CredentialsRefused(f"{self.topic}: Kafka does not allow Read. Grant it")
            case Changed():
                start, end = await self._find_bounds()
                self._begin_again(end)
                self.seen = start
                self._partition_fetch.seek(start)
            case Lost():
                start, end = await self._find_bounds()
                if end < max(self.seen, self._again_to):
                    self._begin_again(end)
                # else compaction or retention has moved the log's start; what went with it is not in force any more
                self.seen = start
                self._partition_fetch.seek(start)
        return set()

    def _begin_again(self, end: int) -> None:
        """The topic ends below what the book has read: it was made anew, or has lost its end. What it says now counts, as for a
        worker that starts now."""
        log.error("the control topic has lost records: read anew", topic=self.topic, end=end, read_before=self.seen)
        self._clear(end)
        self._is_same = False

    async def _read_anew(self, reason: str) -> None:
        """The book may hold what was deleted: it begins again at the topic's start."""
        log.warning("the control topic is read anew", topic=self.topic, reason=reason, read_before=self.seen)
        assert self._partition_fetch is not None
        start, end = await self._find_bounds()
        self._is_same = self._is_same or not self.is_behind
        self._clear(end)
        self.seen = start
        self._partition_fetch.seek(start)

    def _clear(self, end: int) -> None:
        if not self.is_behind:
            self._former = dict(self.book.definitions)
        self.book.clear()
        self._again_to, self._began_at = end, now_ms()
        self.beginnings += 1

    def _tell_missing(self) -> None:
        """Log the consumers that only the lost records told of. Their state stays: made again, they go on where they stood."""
        missing = [
            f"{stream}/{name}"
            for (stream, name), known in sorted(self._former.items())
            if known.origin is Origin.REQUEST and not known.is_deleted and (stream, name) not in self.book.definitions
        ]
        self._former = {}
        if missing and self._is_same:
            log.info("consumers were deleted meanwhile", count=len(missing), consumers=", ".join(missing[:MOST_NAMED]))
        elif missing:
            log.error(
                "consumers are not served any more: the control topic does not define them. Their state is kept. Create them"
                " again with the same config, and they go on where they stood",
                topic=self.topic,
                count=len(missing),
                consumers=", ".join(missing[:MOST_NAMED]),
            )

    async def _take(self, fetched: Fetched, partition_fetch: PartitionFetch) -> set[Subject]:
        subjects: set[Subject] = set()
        reached = fetched.next_offset
        passed_over: list[tuple[int, str]] = []
        for count, found in enumerate(self._rows.read(fetched, fetched.position)):
            if isinstance(found, Malformed):
                passed_over.append((found.base_offset, found.fault.text))
                reached = max(reached, found.next_offset)
            elif (subject := self._take_row(found)) is not None:
                subjects.add(subject)
            else:
                passed_over.append((found.offset, self.book.fault))
            if count % TURN == TURN - 1:
                await asyncio.sleep(0)
        if reached > fetched.next_offset:
            partition_fetch.seek(
                reached
            )  # the header of a batch cannot be read, so nothing says where the next one begins
        self.seen = reached
        self._tell(passed_over)
        return subjects

    def _take_row(self, row: Row) -> Subject | None:
        self.brokers.note(row.timestamp, monotonic())
        return self.book.take(row.key, row.value, row.headers.get, row.timestamp)

    def _tell(self, passed_over: list[tuple[int, str]]) -> None:
        """Count what cannot be read and log the first of it: others choose how much of it there is."""
        if not passed_over:
            return
        self.on_passed_over(len(passed_over))
        offset, reason = passed_over[0]
        log.warning(
            "control records passed over", first=f"{self.topic}-0@{offset}", reason=reason[:200], count=len(passed_over)
        )

    async def find_end(self) -> int:
        """The committed end of the topic."""
        return (await self._find_bounds())[1]

    async def _find_bounds(self) -> tuple[int, int]:
        source = (self.topic, 0)
        return (await self.admin.find_bounds([source]))[source]

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if self._fetcher is not None:
            await self._fetcher.close()
        if self._client is not None:
            with contextlib.suppress(KafkaError, OSError):
                await self._client.close()
        self._fetcher = self._client = self._partition_fetch = None


def has_hole(fetched: Fetched, since: int = 0) -> bool:
    """Return whether offsets from `since` on are missing between `position` and the end of what was fetched. Only compaction
    leaves out any: the markers of transactions and what was aborted are batches as well."""
    batches = fetched.batches[fetched.batches["last_offset"] >= since]
    if not batches.size:
        return False
    first, last = batches["base_offset"], batches["last_offset"]
    is_late = int(first[0]) > max(fetched.position, since)
    return is_late or bool((first[1:] > last[:-1] + 1).any() or (last - first + 1 != batches["count"]).any())


async def read_book(kafka: Properties, admin: Admin, files: Loaded) -> Registry:
    """The book as the topic and the files have it now; where there is no topic, the files alone. Raises SourceUnavailable."""
    book = Registry(files)
    tail = Tail(kafka, admin, book)
    if tail.topic not in await admin.find_topics([tail.topic], with_config=False):
        return book
    try:
        await tail.open()
    finally:
        await tail.close()
    return book
