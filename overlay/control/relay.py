"""The relay: reads the requests topic `<prefix>.requests` for the owner of the first shard, and finds
what is to be copied into the control topic, and what is refused (open_requests.py).

Clients with few rights choose the bytes of the topic. So it is read by the project's own decoder, as
the control topic is (tail.py), and record by record, so that a batch of very many records does not
hold up the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.clock import monotonic
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Changed, Denied, Fetched, Lost
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.own_topics import requests_topic
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.kafka.passed_over import OnPassedOver, PassedOver, gather
from overlay.kafka.properties import Properties
from overlay.kafka.records import RowReader, StoredRecord
from overlay.logs import get_logger
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.answers import answer
from overlay.replies.reply_address import ReplyRule
from overlay.scan import Malformed

from .open_requests import copy_request, judge_open, note_refused, read_open
from .records import Misfit, Unreadable, write_json
from .requests import respond_refused
from .tail import HEADERS, MOST_BYTES, MOST_RECORDS, judge_batch

log = get_logger(__name__)

MOST = 200
"""Most records and batches that are taken at once: what comes of them is written in one transaction."""
TAKEN_BYTES = 1 << 20
"""With so many bytes of values no more records are taken at once."""
REST_S = 30.0
"""Seconds before the topic is tried again after an error."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of some requests. `copies`: records for the control topic: copies, and notes of how far
    requests were refused. `answers`: for the reply topics of those that are refused.
    """

    copies: list[Record] = field(default_factory=list)
    answers: list[Entry] = field(default_factory=list)


class Relay:
    """A reader of open requests. It connects with the first `take`, and again after `close`.

    `rule`: which topics clients may name for answers. `on_ready`: called when there is something to
    take. `on_passed_over`: called for each reason for which records and batches could not be read.
    """

    def __init__(
        self,
        kafka: Properties,
        admin: Admin,
        rule: ReplyRule,
        on_ready: Callable[[], None],
        on_passed_over: OnPassedOver,
    ) -> None:
        self.topic = requests_topic(rule.prefix)
        self._kafka, self._admin, self._rule = kafka, admin, rule
        self._on_ready, self._on_passed_over = on_ready, on_passed_over
        self._reader = RowReader(HEADERS, most_bytes=MOST_BYTES, most_records=MOST_RECORDS)
        self._rests_until = 0.0
        self._rows: Iterator[StoredRecord | Malformed] | None = None
        """The rest of the fetch that is being read."""
        self._client: AIOKafkaClient | None = None
        self._fetcher: Fetcher | None = None
        self._fetch: PartitionFetch | None = None
        self._telling: asyncio.Task[None] | None = None
        self._topic_id = ""
        self._passed_over: list[tuple[int, str, Misfit]] = []
        """Offset and reason of what could not be read since this was last told."""

    @property
    def is_due(self) -> bool:
        """Whether `take` has something to do now: to connect, or to return what has come."""
        if self._fetch is None:
            return monotonic() >= self._rests_until
        return self._has_more

    @property
    def _has_more(self) -> bool:
        return self._rows is not None or (self._fetch is not None and self._fetch.ready is not None)

    async def take(self, copied: Mapping[str, int]) -> Taken:
        """Return what comes of the next requests that were fetched, an empty Taken if there are none;
        it does not wait for any. It connects first if it is not connected. After an error it logs
        that, disconnects and returns an empty Taken, and `is_due` is False for REST_S.

        `copied`: the offset of the last request of which there is a copy, by Kafka's id of the topic.
        """
        if not self.is_due:
            return Taken()
        try:
            if self._fetch is None:
                await self._open(copied)
            rows = await self._take_rows()
        except (OverlayError, KafkaError, OSError, TimeoutError) as error:
            log.warning("open requests are not taken", topic=self.topic, reason=str(error) or type(error).__name__)
            self._rests_until = monotonic() + REST_S
            await self.close()
            return Taken()
        if self._has_more:
            self._on_ready()
        taken = self._judge(rows)
        self._tell_passed_over()
        return taken

    def _judge(self, rows: list[tuple[StoredRecord, str]]) -> Taken:
        """Return copies of the open requests among these records, and refusals of the others. Only the
        last record of a key counts, so that a request whose withdrawal is among them is left out.
        """
        taken = Taken()
        last = {row.key: number for number, (row, _) in enumerate(rows)}
        refused: dict[str, int] = {}
        for number, (row, topic_id) in enumerate(rows):
            if last[row.key] > number:
                continue
            try:
                if not self._judge_row(row, topic_id, taken):
                    refused[topic_id] = row.offset
            except Unreadable as error:
                self._passed_over.append((row.offset, str(error), error.misfit))
            except Exception as error:  # noqa: BLE001 - the next owner would read the record, and fail, too
                self._passed_over.append((row.offset, f"{type(error).__name__}: {error}", Misfit.FORM))
        # else the next owner would begin behind the last copy, and answer these again
        taken.copies.extend(note_refused(topic_id, offset) for topic_id, offset in refused.items())
        return taken

    def _judge_row(self, row: StoredRecord, topic_id: str, taken: Taken) -> bool:
        """Add to `taken` what comes of a record. Return False if it is refused."""
        request = read_open(row, self._rule)
        if request is None:
            return True
        if (refusal := judge_open(request, self._rule.prefix)) is None:
            taken.copies.append(copy_request(request, row, topic_id))
            return True
        taken.answers.append(answer(request.reply, write_json(respond_refused(request, refusal))))
        return False

    async def _open(self, copied: Mapping[str, int]) -> None:
        """Connect, and begin to read after the last request that was copied. Raises
        CredentialsRefused, SourceUnavailable and errors of Kafka.
        """
        self._client = await open_client(self._kafka)
        self._fetcher = Fetcher(self._client)
        self._topic_id = await self._find_id()
        position = await self._find_place(copied.get(self._topic_id, -1) + 1)
        self._fetch = await self._fetcher.open(self.topic, 0, position)
        self._telling = asyncio.create_task(self._tell(self._fetcher), name="requests")

    async def _tell(self, fetcher: Fetcher) -> None:
        while True:
            await fetcher.changed.wait()
            fetcher.changed.clear()
            self._on_ready()

    async def _take_rows(self) -> list[tuple[StoredRecord, str]]:
        """Return the next records that were fetched, about MOST or TAKEN_BYTES at most, each with
        Kafka's id of its topic. Raises CredentialsRefused, SourceUnavailable.
        """
        found: list[tuple[StoredRecord, str]] = []
        size = 0
        while (
            len(found) + len(self._passed_over) < MOST
            and size < TAKEN_BYTES
            and (self._rows is not None or await self._turn())
        ):
            assert self._rows is not None
            row = next(self._rows, None)
            if row is None:
                self._rows = None
            elif isinstance(row, Malformed):
                self._pass_over(row)
                await asyncio.sleep(0)  # it may have been decompressed up to the limit
            else:
                # the topic may be made anew before the next row
                found.append((row, self._topic_id))
                size += len(row.value or b"")
        return found

    async def _turn(self) -> bool:
        """Begin to read the next fetch. Return False if there is none yet, or if the topic has lost the position: then move it.
        Raises CredentialsRefused, SourceUnavailable.
        """
        assert self._fetch is not None
        match self._fetch.take():
            case Fetched() as fetched:
                self._rows = self._reader.read(fetched, fetched.position)
                return True
            case Denied():
                raise CredentialsRefused(f"{self.topic}: Kafka does not allow Read. Grant it")
            case Lost(position=position) | Changed(cut=position):
                topic_id = await self._find_id()
                # a topic that was created again has none of the former requests
                is_same, self._topic_id = topic_id == self._topic_id, topic_id
                self._fetch.seek(await self._find_place(position if is_same else 0))
        return False

    def _pass_over(self, batch: Malformed) -> None:
        """Note a batch that cannot be read, and continue after it."""
        assert self._fetch is not None
        self._passed_over.append((batch.base_offset, batch.fault.text, judge_batch(batch)))
        if batch.next_offset > self._fetch.position:
            # its header cannot be read, so it is unknown where the next one begins
            self._fetch.seek(batch.next_offset)

    def _tell_passed_over(self) -> None:
        """Count what could not be read, and log only the first of it: clients may write much of it."""
        if not self._passed_over:
            return
        found = (PassedOver(self.topic, 0, offset, misfit.value, text) for offset, text, misfit in self._passed_over)
        for each in gather(found):
            self._on_passed_over(each)
        offset, reason, _ = self._passed_over[0]
        log.warning(
            "open requests passed over",
            first=f"{self.topic}-0@{offset}",
            reason=reason[:200],
            count=len(self._passed_over),
        )
        self._passed_over.clear()

    async def _find_id(self) -> str:
        """Return Kafka's id of the topic. Raises CredentialsRefused, SourceUnavailable."""
        found = await self._admin.find_topics([self.topic], with_config=False)
        if self.topic not in found:
            raise SourceUnavailable(f"{self.topic} does not exist. Create it, or restart a service that may")
        return found[self.topic].identity

    async def _find_place(self, position: int) -> int:
        """Return the offset at which to read on: `position`, the log's start if retention has moved
        that, or the last stable offset if that is lower, since the log has lost its end. In the
        last case requests that came since are not read: their clients get no answer, and ask again.
        Raises SourceUnavailable.
        """
        source = (self.topic, 0)
        start, end = (await self._admin.find_bounds([source]))[source]
        if position > end:
            log.warning("the requests topic has lost its end", topic=self.topic, end=end, read_before=position)
        return min(max(start, position), end)

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._fetcher is not None:
            await self._fetcher.close()
        if self._client is not None:
            with contextlib.suppress(KafkaError, OSError):
                await self._client.close()
        self._telling = self._fetcher = self._client = self._fetch = self._rows = None
        self._passed_over.clear()
