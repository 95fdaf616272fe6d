"""Reads the fleet's topic once: `overlay workers` and `overlay shards`, which need no fleet process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.config.identity import identify
from overlay.errors import OverlayError
from overlay.kafka.admin import connect
from overlay.kafka.own_topics import fleet_topic
from overlay.kafka.range_reader import read_span
from overlay.kafka.records import PlainReader, StoredRecord
from overlay.kafka.topics import OffsetSpec

from .findings import Expected, look, survey
from .memory import Memory
from .picture import describe
from .status import Refusal

SPAN_MS = 600_000
"""How far back statuses are read, in ms: a worker that stopped before is not shown."""
MOST_BATCH_BYTES = 16 << 20
"""Most bytes to which one batch may decompress."""


def expect(loaded: Loaded) -> Expected:
    """Return what the config folder says of the fleet."""
    return Expected(loaded.service.shards, identify(loaded).digest, frozenset(loaded.served))


async def read_fleet(loaded: Loaded) -> dict[str, Any]:
    """Return the picture that the statuses of the last SPAN_MS give, as `/fleet` has it, by this machine's clock. Its
    findings are everything that looks wrong at this moment, and so say it since now.

    Raises OverlayError if there is no such topic, SourceUnavailable.
    """
    prefix, memory = loaded.service.topics.prefix, Memory()
    source = fleet_topic(prefix), 0
    newest = now = now_ms()
    async with connect(loaded.service.kafka) as (admin, client):
        if source[0] not in await admin.find_topics([source[0]], with_config=False):
            raise OverlayError(
                f"topic {source[0]} is not there: no worker with fleet.publish has run. Start the service"
            )
        start, end = (await admin.find_bounds([source]))[source]
        since = (await admin.find_offsets([source], OffsetSpec.for_timestamp(now - SPAN_MS)))[source]
        rows = PlainReader(most_bytes=MOST_BATCH_BYTES)
        async for fetched in read_span(client, *source, max(start, since) if since >= 0 else end, end, plain=True):
            for row in rows.read(fetched, fetched.position, end):
                if isinstance(row, StoredRecord):
                    memory.take(row.key, row.value, row.timestamp, now, prefix)
                    # if this machine's clock is behind, the newest status tells Kafka's time better
                    newest = max(newest, row.timestamp)
                else:
                    memory.refuse(Refusal.MALFORMED)
    picture = look(memory, newest, expect(loaded))
    return describe(picture, [replace(finding, since=newest) for finding in survey(picture)], memory.refused)
