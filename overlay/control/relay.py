"""The relay: reads the requests topic `<prefix>.requests` for the owner of the first shard, and finds
what is to be copied into the control topic, and what is refused (open_requests.py).

Clients with few rights choose the bytes of the topic. So it is read by the project's own decoder, as
the control topic is (tail.py), and record by record, so that a batch of very many records does not
hold up the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from overlay.clock import monotonic
from overlay.dispatch.answers import answer
from overlay.dispatch.reply_address import ReplyRule
from overlay.errors import CredentialsRefused, OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetcher import Changed, Denied, Fetched, Fetcher, Lost, PartitionFetch
from overlay.kafka.own_topics import requests_topic
from overlay.kafka.properties import Properties
from overlay.kafka.records import RowReader, StoredRecord
from overlay.logs import get_logger
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.scan import Malformed

from .open_requests import copy_request, judge_open, read_open
from .records import Misfit, Unreadable, write_json
from .requests import respond_refused
from .tail import HEADERS, MOST_BYTES

log = get_logger(__name__)

MOST = 200
"""Most records that are taken at once: what comes of them is written in one transaction."""
REST_S = 30.0
"""Seconds before the topic is tried again after an error."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of some requests. `copies`: records for the control topic. `answers`: for the
    reply topics of those that are refused.
    """

    copies: list[Record] = field(default_factory=list)
    answers: list[Entry] = field(default_factory=list)


class Relay:
    """Reads open requests. It connects with the first `take`, and again after `close`.

    `rule`: which topics clients may name for answers. `on_ready`: called when there is something to
    take. `on_passed_over`: called with a reason, and the number of records and batches that could
    not be read for it.
    """

    def __init__(
        self,
        kafka: Properties,
        admin: Admin,
        rule: ReplyRule,
        on_ready: Callable[[], None],
        on_passed_over: Callable[[Misfit, int], None],
    ) -> None:
        self.topic = requests_topic(rule.prefix)
        self._kafka, self._admin, self._rule = kafka, admin, rule
        self._on_ready, self._on_passed_over = on_ready, on_passed_over
        self._reader = RowReader(HEADERS, most_bytes=MOST_BYTES)
        self._rests_until = 0.0
        self._rows: Iterator[StoredRecord | Malformed] | None = None
        """The rest of the fetch that is being read."""
        self._client: AIOKafkaClient | None = None
        self._fetcher: Fetcher | None = None
        self._fetch: PartitionFetch | None = None
        self._telling: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether `take` has something to do now: to connect, or to return what has come."""
        if self._fetch is None:
            return monotonic() >= self._rests_until
        return self._has_more

    @property
    def _has_more(self) -> bool:
        return self._rows is not None or (self._fetch is not None and self._fetch.ready is not None)

    async def take(self, copied: int) -> Taken:
        """Return what comes of the next requests; it does not wait for any. If Kafka refuses the
        topic, log that, and return nothing for REST_S.

        `copied`: the offset of the last request of which there is a copy.
        """
        try:
            if self._fetch is None:
                await self._open(copied + 1)
            rows = await self._take_rows()
        except (OverlayError, KafkaError, OSError, TimeoutError) as error:
            log.warning("open requests are not taken", topic=self.topic, reason=str(error) or type(error).__name__)
            self._rests_until = monotonic() + REST_S
            await self.close()
            return Taken()
        if self._has_more:
            self._on_ready()
        return self._judge([row for row in rows if row.offset > copied])

    def _judge(self, rows: list[StoredRecord]) -> Taken:
        """Return copies of the open requests among these, and refusals of the others. What their
        clients have withdrawn is left out.
        """
        taken = Taken()
        last = {row.key: row.offset for row in rows}
        for row in rows:
            if last[row.key] > row.offset:
                continue
            try:
                self._judge_row(row, taken)
            except Unreadable as error:
                self._tell_passed_over(row.offset, error.misfit, str(error))
            except Exception as error:  # noqa: BLE001 - the next owner would read the record, and fail, too
                self._tell_passed_over(row.offset, Misfit.FORM, f"{type(error).__name__}: {error}")
        return taken

    def _judge_row(self, row: StoredRecord, taken: Taken) -> None:
        request = read_open(row, self._rule)
        if request is None:
            return
        if (refusal := judge_open(request, self._rule.prefix)) is None:
            taken.copies.append(copy_request(request, row))
        else:
            taken.answers.append(answer(request.reply, write_json(respond_refused(request, refusal))))

    async def _open(self, position: int) -> None:
        """Connect, and begin to read at an offset; at the topic's start if the topic does not have
        that offset. Raises SourceUnavailable and errors of Kafka.
        """
        self._client = await open_client(self._kafka)
        self._fetcher = Fetcher(self._client)
        start, end = await self._find_bounds()
        self._fetch = await self._fetcher.open(self.topic, 0, position if start <= position <= end else start)
        self._telling = asyncio.create_task(self._tell(self._fetcher), name="requests")

    async def _tell(self, fetcher: Fetcher) -> None:
        while True:
            await fetcher.changed.wait()
            fetcher.changed.clear()
            self._on_ready()

    async def _take_rows(self) -> list[StoredRecord]:
        """Return the next records that were fetched, at most MOST. Raises CredentialsRefused,
        SourceUnavailable.
        """
        found: list[StoredRecord] = []
        while len(found) < MOST and (self._rows is not None or await self._turn()):
            assert self._rows is not None
            row = next(self._rows, None)
            if row is None:
                self._rows = None
            elif isinstance(row, Malformed):
                self._pass_over(row)
            else:
                found.append(row)
        return found

    async def _turn(self) -> bool:
        """Begin to read the next fetch. Return False if there is none yet."""
        assert self._fetch is not None
        match self._fetch.take():
            case Fetched() as fetched:
                self._rows = self._reader.read(fetched, fetched.position)
                return True
            case Denied():
                raise CredentialsRefused(f"{self.topic}: Kafka does not allow Read. Grant it")
            case Lost() | Changed():
                # retention has moved the log's start, or it is another log: what it has now counts
                self._fetch.seek((await self._find_bounds())[0])
        return False

    def _pass_over(self, batch: Malformed) -> None:
        """Count a batch that cannot be read, and go on behind it."""
        assert self._fetch is not None
        self._tell_passed_over(batch.base_offset, Misfit.BATCH, batch.fault.text)
        if batch.next_offset > self._fetch.position:
            # its header cannot be read, so it is unknown where the next one begins
            self._fetch.seek(batch.next_offset)

    def _tell_passed_over(self, offset: int, misfit: Misfit, reason: str) -> None:
        self._on_passed_over(misfit, 1)
        log.warning("requests passed over", first=f"{self.topic}-0@{offset}", reason=reason[:200])

    async def _find_bounds(self) -> tuple[int, int]:
        source = (self.topic, 0)
        return (await self._admin.find_bounds([source]))[source]

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
