"""Reads the fleet's topic once: `overlay workers`, `overlay shards` and `overlay doctor`, which need no fleet process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiokafka.client import AIOKafkaClient

from overlay.clock import monotonic, now_ms
from overlay.config import Loaded
from overlay.config.identity import identify
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, connect
from overlay.kafka.own_topics import fleet_topic
from overlay.kafka.range_reader import read_span
from overlay.kafka.records import PlainReader, StoredRecord
from overlay.kafka.topics import OffsetSpec
from overlay.scan import Malformed

from .findings import Expected, Finding, Picture, look, survey
from .memory import Memory
from .picture import describe
from .status import UNTOLD_EVERY_MS, Refusal

SPAN_MS = 600_000
"""How far back statuses are read, in ms: a worker that stopped before is not shown."""
MOST_BATCH_BYTES = 16 << 20
"""Most bytes to which one batch may decompress."""
MOST_BATCH_RECORDS = 10_000
"""Most records of one batch."""
CLOCK_S = UNTOLD_EVERY_MS / 1000 + 2
"""Seconds to wait for a status by which clocks are compared: none of the workers' versions pauses for longer."""
PAUSE_S = 0.1
"""Seconds between two looks for it."""


def expect(loaded: Loaded) -> Expected:
    """Return what a config folder says of the fleet."""
    letters = {config.dead_letter_topic for config in loaded.served.values()} - {""}
    return Expected(loaded.service.shards, identify(loaded).digest, frozenset(loaded.served), frozenset(letters))


@dataclass(frozen=True, slots=True)
class Look:
    """What workers told at one moment. `refused`: how many records of the topic were passed over, by reason."""

    picture: Picture
    refused: Mapping[Refusal, int]

    @property
    def findings(self) -> list[Finding]:
        """Everything that looks wrong at that moment, however long it has been so; `since` of each is that moment."""
        return [replace(finding, since=self.picture.now) for finding in survey(self.picture)]

    def describe(self) -> dict[str, Any]:
        """Return the look as the JSON object that `/fleet` answers."""
        return describe(self.picture, self.findings, self.refused)


async def read_fleet(loaded: Loaded) -> dict[str, Any]:
    """Return the picture that the statuses of the last SPAN_MS give, by this machine's clock, as the JSON object that
    `/fleet` answers.

    Raises OverlayError if the fleet's topic does not exist or may not be read, SourceUnavailable.
    """
    async with open_reader(loaded) as reader:
        return (await reader.look()).describe()


@asynccontextmanager
async def open_reader(loaded: Loaded) -> AsyncIterator[FleetReader]:
    """Connect to Kafka, and give a reader of the workers' statuses to a `with` block, which closes the connections at its
    end. Raises SourceUnavailable.
    """
    async with connect(loaded.service.kafka) as (admin, client):
        yield FleetReader(admin, client, loaded)


class FleetReader:
    """A reader of the fleet's topic: first the statuses of the last SPAN_MS, then what has come since."""

    def __init__(self, admin: Admin, client: AIOKafkaClient, loaded: Loaded) -> None:
        self._admin, self._client = admin, client
        self._prefix, self._expected = loaded.service.topics.prefix, expect(loaded)
        self._source = fleet_topic(self._prefix), 0
        self._memory = Memory()
        self._newest = 0
        """The latest of Kafka's times on the statuses, ms since 1970."""
        self._end = -1
        """The offset behind the last status that was read; -1 before the first look."""

    async def look(self) -> Look:
        """Read the statuses since the last look, for the first one those of the last SPAN_MS, and return what workers have
        told until now, by this machine's clock. Raises OverlayError if the fleet's topic does not exist or may not be
        read, SourceUnavailable.
        """
        now = now_ms()
        start, end = await self._find_span(now)
        async for row in self._read(start, end):
            if isinstance(row, StoredRecord):
                self._memory.take(row.key, row.value, row.timestamp, now, self._prefix)
                self._newest = max(self._newest, row.timestamp)
            else:
                self._memory.refuse(Refusal.MALFORMED)
        self._end = end
        # if this machine's clock is behind, the newest status tells Kafka's time better
        now = max(now, self._newest)
        self._memory.forget(now)
        picture = look(self._memory, now, self._expected)
        return Look(picture, Counter(self._memory.refused))

    async def _find_span(self, now: int) -> tuple[int, int]:
        """Return the offsets to read, first <= offset < end: from the end of the last look, for the first look from
        SPAN_MS before `now` (ms since 1970), up to the present last stable offset. Raises OverlayError if the topic
        does not exist, SourceUnavailable.
        """
        if self._end < 0 and self._source[0] not in await self._admin.find_topics([self._source[0]], with_config=False):
            raise OverlayError(
                f"topic {self._source[0]} is not there: no worker with fleet.publish has run. Start the service"
            )
        start, end = (await self._admin.find_bounds([self._source]))[self._source]
        if self._end >= 0:
            return min(max(start, self._end), end), end
        since = OffsetSpec.for_timestamp(now - SPAN_MS)
        first = (await self._admin.find_offsets([self._source], since))[self._source]
        return (max(start, first) if first >= 0 else end), end

    async def measure_clock(self) -> int | None:
        """Wait for the next status after a look, at most CLOCK_S seconds. Return by how many ms this machine's clock
        is ahead of that of the broker that took the status, negative if it is behind, as exactly as PAUSE_S and the
        way to the broker allow; None if none came, or none that can be read. Call `look` before. The status is read
        again by the next look.

        Raises SourceUnavailable.
        """
        until = monotonic() + CLOCK_S
        while monotonic() < until:
            end = (await self._admin.find_bounds([self._source]))[self._source][1]
            seen = now_ms()
            if end > self._end:
                times = [row.timestamp async for row in self._read(self._end, end) if isinstance(row, StoredRecord)]
                return seen - times[-1] if times else None
            await asyncio.sleep(PAUSE_S)
        return None

    async def _read(self, start: int, end: int) -> AsyncIterator[StoredRecord | Malformed]:
        reader = PlainReader(most_bytes=MOST_BATCH_BYTES, most_records=MOST_BATCH_RECORDS)
        async for fetched in read_span(self._client, *self._source, start, end, plain=True):
            for row in reader.read(fetched, fetched.position, end):
                yield row
