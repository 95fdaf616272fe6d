"""The reader of the control topic: fills a registry with all of it, and then with what is appended.

Any client with Write on the topic chooses its bytes, and every worker reads them at every start. So
they are read by the project's own decoder and not by a client library's consumer, which raises on
some of them. A batch or a record that cannot be read is skipped and counted; of those in a fetch,
the first is logged with its offset. The records behind it are read.

The topic is compacted, and a tombstone stays for `delete.retention.ms` only. So what is read must
have no holes. A worker that was suspended for longer finds that offsets are missing after its
position, and cannot tell whether a deletion was among them. It reads the whole topic again. Below
the end that the topic had when such a reading began, holes are harmless, as long as the reading
takes less time than tombstones stay. An unclean election may leave nothing below that end: such a
reading has a stop, so that it does not wait for records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.clock import monotonic, now_ms
from overlay.config import Loaded
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Changed, Denied, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.header_names import CLIENT, CORRELATION, REPLY_PARTITION, REPLY_TOPIC, SENT
from overlay.kafka.own_topics import HOUR_MS, control_topic
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.kafka.passed_over import OnPassedOver, PassedOver, ignore
from overlay.kafka.properties import Properties
from overlay.kafka.records import PlainReader, RowReader, StoredRecord
from overlay.logs import get_logger
from overlay.scan import Fault, Malformed
from overlay.scan.decode import NO_STOP
from overlay.waits import is_set_within

from .brokertime import BrokerTime
from .records import ConsumerId, Definition, Misfit, Origin, Subject
from .registry import Registry

log = get_logger(__name__)

POLL_S = 1.0
"""Seconds for which a read waits for records, unless `wake` ends the wait."""
OPEN_S = 30.0
"""Seconds for which the first reading may take."""
MOST_BYTES = 32 << 20
"""Most bytes to which one batch may decompress: a batch of the default size limit, compressed 32
times."""
MOST_RECORDS = 10_000
"""Most records of one batch, of which each may be a request. A batch of the default size limit may have
millions of tiny ones, compressed, and no client has a use for that.
"""
TURN = 200
"""Records that are added in one go, before the event loop does other work."""
TURN_BYTES = 1 << 20
"""With so many bytes of values no more records are added in one go."""
MOST_NAMED = 100
"""Most consumers that one log line names."""
WHOLE_MS = HOUR_MS // 2
"""Longest time to read the whole topic, in ms of the wall clock, which continues while a machine is
suspended."""
HEADERS = (REPLY_TOPIC, REPLY_PARTITION, CORRELATION, CLIENT, SENT)


@dataclass(slots=True)
class Tail:
    """A reader that fills a registry from the control topic, and again from its start if records are missing.
    Call `open`, then `read` repeatedly, then `close`.
    """

    kafka: Properties
    admin: Admin
    registry: Registry
    on_passed_over: OnPassedOver = ignore
    """Called for each reason for which records and batches of a fetch could not be read."""
    plain: bool = False
    """Whether to read without kernels, as commands do (kafka/records.py)."""
    lent: AIOKafkaClient | None = None
    """A connected client to read with, which the caller closes after this; None for one of its own."""
    seen: int = 0
    """The next offset to read: what the topic has below it was read."""
    beginnings: int = 0
    """How often the topic was found to have lost records behind `seen`, and the registry began again at its start."""
    brokers: BrokerTime = field(default_factory=BrokerTime)
    """What the records that were read say of the brokers' time."""
    _again_to: int = -1
    """Where the topic ended when the current reading from the start began; -1 once it was read up
    to there."""
    _began_at: int = 0
    """When that reading began, ms since 1970."""
    _is_same: bool = False
    """Whether the topic is still the same log, so that consumers missing after a new reading were
    deleted."""
    _former: dict[ConsumerId, Definition] = field(default_factory=dict)
    """What the registry contained before the topic was read again."""
    _client: AIOKafkaClient | None = None
    _fetcher: Fetcher | None = None
    _partition_fetch: PartitionFetch | None = None
    _is_woken: bool = False
    """Whether the next wait for records has to be left out."""
    _rows: RowReader | PlainReader = field(init=False)

    def __post_init__(self) -> None:
        reader = PlainReader if self.plain else RowReader
        self._rows = reader(HEADERS, most_bytes=MOST_BYTES, most_records=MOST_RECORDS)

    @property
    def topic(self) -> str:
        """The name of the control topic."""
        return control_topic(self.registry.prefix)

    @property
    def held_at(self) -> int:
        """The offset of the first record of an open transaction, if the topic was read up to there; else
        -1.
        """
        fetch = self._partition_fetch
        return -1 if fetch is None or not self.seen == fetch.stable_end < fetch.end else fetch.stable_end

    @property
    def is_behind(self) -> bool:
        """Whether the topic is being read from its start, so that the registry is incomplete."""
        return self._again_to >= 0

    async def open(self) -> None:
        """Connect, and read the topic, which must exist, up to its present last stable offset.
        Raises SourceUnavailable, also if that takes longer than OPEN_S, or CredentialsRefused.
        """
        try:
            async with asyncio.timeout(OPEN_S):
                self._client = self.lent or await open_client(self.kafka)
                self._fetcher = Fetcher(self._client, plain=self.plain)
                self._began_at = now_ms()
                self.seen, self._again_to = await self._find_bounds()
                self._partition_fetch = await self._fetcher.open(self.topic, 0, self.seen, self._again_to)
                self._partition_fetch.is_compacted = True
                while self.seen < self._again_to:
                    await self._read_on()
                await self._end_beginning()
                while self.is_behind:
                    await self.read()
        except (KafkaError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SourceUnavailable(f"{self.topic}: cannot be read: {reason}") from error

    def wake(self) -> None:
        """End the wait of `read`, or leave out its next wait, since the caller of `read` has
        something else to do."""
        self._is_woken = True
        if self._fetcher is not None:
            self._fetcher.changed.set()

    async def read(self) -> set[Subject]:
        """Apply the records that were fetched, or that arrive within POLL_S, to the registry.
        Return which kinds of records they were.

        When a new reading from the start has ended, CONSUMER, PAUSE and REQUEST are returned,
        whatever was read last, since the registry may have lost records of these kinds. Raises
        CredentialsRefused, SourceUnavailable.
        """
        subjects = await self._read_on()
        if self.is_behind and self.seen >= self._again_to and await self._end_beginning():
            return {Subject.CONSUMER, Subject.PAUSE, Subject.REQUEST}
        return subjects

    async def _end_beginning(self) -> bool:
        """End a reading of the whole topic, which has reached the end that the topic had when it
        began. Return False if it took longer than WHOLE_MS: then the topic is read again from its
        start.
        """
        if now_ms() - self._began_at > WHOLE_MS:
            await self.read_anew("it took so long to read the control topic that deletions may be gone from it")
            return False
        self._again_to = -1
        assert self._partition_fetch is not None
        self._partition_fetch.go_on(NO_STOP)
        self._tell_missing()
        return True

    async def _read_on(self) -> set[Subject]:
        """Apply what was fetched, or arrives within POLL_S. Return which kinds of records it had.
        If records are missing, go back to the topic's start and return an empty set. Raises
        CredentialsRefused, SourceUnavailable.
        """
        assert self._fetcher is not None
        assert self._partition_fetch is not None
        self._fetcher.changed.clear()
        taken = self._partition_fetch.take()
        if taken is None and not self._is_woken:
            await is_set_within(self._fetcher.changed, POLL_S)
            taken = self._partition_fetch.take()
        self._is_woken = False
        # a hole, a truncated log and a position that the log does not have all lead back to its
        # start
        match taken:
            case Fetched() if has_hole(taken, self._again_to if self.is_behind else 0):
                await self.read_anew("records were compacted away before they were read")
            case Fetched():
                return await self._take(taken, self._partition_fetch)
            case Denied():
                raise CredentialsRefused(f"{self.topic}: Kafka does not allow Read. Grant it")
            case Changed():
                start, end = await self._find_bounds()
                self._begin_again(end)
                self._go_to(start)
            case Lost():
                start, end = await self._find_bounds()
                # the log ended below the position, and may have grown past it since
                if start <= self.seen or end < max(self.seen, self._again_to):
                    self._begin_again(end)
                # otherwise compaction or retention has moved the log's start; the records it
                # deleted are no longer valid
                self._go_to(start)
        return set()

    def _begin_again(self, end: int) -> None:
        """Clear the registry because the topic lost records that were read: it was created again or
        has lost its end. What it says now counts, as for a worker that starts now. `end`: where the
        topic ends now.
        """
        log.error("the control topic has lost records: read anew", topic=self.topic, end=end, read_before=self.seen)
        self._clear(end)
        self._is_same = False

    async def read_anew(self, reason: str) -> None:
        """Clear the registry and go back to the topic's start, since the registry may contain what was deleted, or lack
        what was read. `reason`: for the log.
        """
        log.warning("the control topic is read anew", topic=self.topic, reason=reason, read_before=self.seen)
        start, end = await self._find_bounds()
        self._is_same = self._is_same or not self.is_behind
        self._clear(end)
        self._go_to(start)

    def _go_to(self, start: int) -> None:
        """Continue at the topic's start, up to the end of a reading of the whole topic, if there is one."""
        assert self._partition_fetch is not None
        self.seen = start
        self._partition_fetch.seek(start)
        self._partition_fetch.go_on(self._again_to if self.is_behind else NO_STOP)

    def _clear(self, end: int) -> None:
        """Clear the registry, and note that the topic is now read from its start up to `end`, where
        it ends now. The caller moves the position.
        """
        if not self.is_behind:
            self._former = dict(self.registry.definitions)
        self.registry.clear()
        self._again_to, self._began_at = end, now_ms()
        self.beginnings += 1

    def _tell_missing(self) -> None:
        """Log the requested consumers that were defined before the topic was read again and are not
        now. Unless they were deleted, their state is kept: if they are created again, they
        continue.
        """
        missing = [
            f"{stream}/{name}"
            for (stream, name), known in sorted(self._former.items())
            if known.origin is Origin.REQUEST
            and not known.is_deleted
            and (stream, name) not in self.registry.definitions
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
        """Apply the records of a fetch to the registry, and move `seen` past them. Return which
        kinds of records they were.
        """
        subjects: set[Subject] = set()
        reached = fetched.next_offset
        passed_over: dict[Misfit, PassedOver] = {}
        counts: Counter[Misfit] = Counter()
        count = size = 0
        for found in self._rows.read(fetched, fetched.position):
            count += 1
            if isinstance(found, Malformed):
                size += TURN_BYTES  # it may have been decompressed up to the limit
                counts[misfit := judge_batch(found)] += 1
                self._pass_over(passed_over, found.base_offset, found.fault.text, misfit)
                reached = max(reached, found.next_offset)
            else:
                size += len(found.value or b"")
                if (subject := self._take_row(found)) is not None:
                    subjects.add(subject)
                else:
                    counts[self.registry.misfit] += 1
                    self._pass_over(passed_over, found.offset, self.registry.fault, self.registry.misfit)
            if count >= TURN or size >= TURN_BYTES:
                await asyncio.sleep(0)
                count = size = 0
        if reached > fetched.next_offset:
            # the header of a batch cannot be read, so it is unknown where the next one begins
            partition_fetch.seek(reached)
        self.seen = reached
        self._tell([replace(first, count=counts[misfit]) for misfit, first in passed_over.items()])
        return subjects

    def _take_row(self, row: StoredRecord) -> Subject | None:
        self.brokers.note(row.timestamp, monotonic())
        return self.registry.take(row.key, row.value, row.headers.get, row.timestamp)

    def _tell(self, found: Sequence[PassedOver]) -> None:
        """Tell of the records that could not be read, by reason, and log only the first: any client may
        write many of them.
        """
        if not found:
            return
        for each in found:
            self.on_passed_over(each)
        log.warning(
            "control records passed over",
            first=found[0].place,
            reason=found[0].text[:200],
            count=sum(each.count for each in found),
        )

    def _pass_over(self, found: dict[Misfit, PassedOver], offset: int, text: str, misfit: Misfit) -> None:
        """Keep a record or batch that cannot be read, if it is the first with its reason. `text`: for the log."""
        # an object for each record would be a good part of what it takes to read it
        if misfit not in found:
            found[misfit] = PassedOver(self.topic, 0, offset, misfit.value, text)

    async def find_end(self) -> int:
        """Return the topic's last stable offset, which Kafka is asked for."""
        return (await self._find_bounds())[1]

    async def _find_bounds(self) -> tuple[int, int]:
        source = (self.topic, 0)
        return (await self.admin.find_bounds([source]))[source]

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if self._fetcher is not None:
            await self._fetcher.close()
        if self._client is not None and self._client is not self.lent:
            with contextlib.suppress(KafkaError, OSError):
                await self._client.close()
        self._fetcher = self._client = self._partition_fetch = None


def judge_batch(batch: Malformed) -> Misfit:
    """Return why a batch is passed over."""
    return Misfit.RECORDS if batch.fault == Fault.TOO_MANY else Misfit.BATCH


def has_hole(fetched: Fetched, since: int = 0) -> bool:
    """Return whether a fetch lacks an offset from `since` on, or from its position on if that is
    higher.

    Only compaction leaves holes: transaction markers and aborted records are batches as well.
    """
    batches = fetched.batches
    if since > fetched.position:
        batches = batches[batches["last_offset"] >= since]
    if not batches.size:
        return False
    first, last = batches["base_offset"], batches["last_offset"]
    is_late = int(first[0]) > max(fetched.position, since)
    return is_late or bool((first[1:] > last[:-1] + 1).any() or (last - first + 1 != batches["count"]).any())


async def read_registry(
    kafka: Properties, admin: Admin, files: Loaded, *, client: AIOKafkaClient | None = None
) -> Registry:
    """Return a registry filled from the files and from the topic up to its present last stable
    offset; from the files alone if there is no topic. `client`: one to read with, which the caller closes
    soon, since a fetch may be under way; None to connect another. Raises SourceUnavailable, CredentialsRefused.
    """
    registry = Registry(files)
    tail = Tail(kafka, admin, registry, plain=True, lent=client)
    if tail.topic not in await admin.find_topics([tail.topic], with_config=False):
        return registry
    try:
        await tail.open()
    finally:
        await tail.close()
    return registry
