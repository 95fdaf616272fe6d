"""Reads the fleet's topic once: `overlay workers`, `overlay shards` and `overlay doctor`, which need no fleet process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from .status import EVERY_MS, Refusal

SPAN_MS = 600_000
"""How far back statuses are read, in ms: a worker that stopped before is not shown."""
MOST_BATCH_BYTES = 16 << 20
"""Most bytes to which one batch may decompress."""
CLOCK_S = EVERY_MS / 1000 + 2
"""Seconds to wait for a status by which clocks are compared: one comes from each worker every EVERY_MS."""
PAUSE_S = 0.1
"""Seconds between two looks for it."""


def expect(loaded: Loaded) -> Expected:
    """Return what the config folder says of the fleet."""
    return Expected(loaded.service.shards, identify(loaded).digest, frozenset(loaded.served))


@dataclass(frozen=True, slots=True)
class Look:
    """What the topic held at one moment. `end`: the offset behind the last status."""

    memory: Memory
    picture: Picture
    end: int

    @property
    def findings(self) -> list[Finding]:
        """Everything that looks wrong at that moment, and so says it since then."""
        return [replace(finding, since=self.picture.now) for finding in survey(self.picture)]


async def read_fleet(loaded: Loaded) -> dict[str, Any]:
    """Return the picture that the statuses of the last SPAN_MS give, as `/fleet` has it, by this machine's clock.

    Raises OverlayError if there is no such topic, SourceUnavailable.
    """
    async with connect(loaded.service.kafka) as (admin, client):
        found = await look_once(admin, client, loaded)
    return describe(found.picture, found.findings, found.memory.refused)


async def look_once(admin: Admin, client: AIOKafkaClient, loaded: Loaded) -> Look:
    """Read the statuses of the last SPAN_MS, by this machine's clock. Raises OverlayError if there is no such topic, or
    if it may not be read, SourceUnavailable.
    """
    prefix, memory = loaded.service.topics.prefix, Memory()
    source = fleet_topic(prefix), 0
    newest = now = now_ms()
    if source[0] not in await admin.find_topics([source[0]], with_config=False):
        raise OverlayError(f"topic {source[0]} is not there: no worker with fleet.publish has run. Start the service")
    start, end = (await admin.find_bounds([source]))[source]
    since = (await admin.find_offsets([source], OffsetSpec.for_timestamp(now - SPAN_MS)))[source]
    async for row in _read(client, source, max(start, since) if since >= 0 else end, end):
        if isinstance(row, StoredRecord):
            memory.take(row.key, row.value, row.timestamp, now, prefix)
            # if this machine's clock is behind, the newest status tells Kafka's time better
            newest = max(newest, row.timestamp)
        else:
            memory.refuse(Refusal.MALFORMED)
    return Look(memory, look(memory, newest, expect(loaded)), end)


async def measure_clock(admin: Admin, client: AIOKafkaClient, prefix: str, end: int) -> int | None:
    """Wait for the next status behind the offset `end`, for CLOCK_S at most. Return by how many ms this machine's clock is
    ahead of the broker's that took it, as far as PAUSE_S and the way to the broker allow; None if no status came.

    Raises SourceUnavailable.
    """
    source = fleet_topic(prefix), 0
    until = monotonic() + CLOCK_S
    while monotonic() < until:
        grown = (await admin.find_bounds([source]))[source][1]
        seen = now_ms()
        if grown > end:
            times = [row.timestamp async for row in _read(client, source, end, grown) if isinstance(row, StoredRecord)]
            return seen - times[-1] if times else None
        await asyncio.sleep(PAUSE_S)
    return None


async def _read(
    client: AIOKafkaClient, source: tuple[str, int], start: int, end: int
) -> AsyncIterator[StoredRecord | Malformed]:
    reader = PlainReader(most_bytes=MOST_BATCH_BYTES)
    async for fetched in read_span(client, *source, start, end, plain=True):
        for row in reader.read(fetched, fetched.position, end):
            yield row
