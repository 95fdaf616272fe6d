"""Asks Kafka for what the lag of consumers needs and no fetch tells: ends of logs, and timestamps
of records that are not being read (state/lag.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from aiokafka.client import AIOKafkaClient

from overlay.errors import CredentialsRefused, OverlayError, SourceChanged
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.properties import Properties
from overlay.kafka.range_reader import read_span
from overlay.kafka.records import RowReader
from overlay.logs import get_logger
from overlay.scan import Malformed
from overlay.waits import is_set_within, unless

from .lag import Lags, Spot

log = get_logger(__name__)

LOOK_S = 10.0
"""Seconds between two looks. Nothing is asked while everything is being read."""
MOST_LOOKUPS = 64
"""Records that are looked up in one look. Each costs a fetch of one batch."""
LOOKUP_S = 5.0
"""Seconds that one lookup may take."""


@dataclass(slots=True)
class LagWatch:
    """Asks Kafka for what the lags of the consumers of one worker or Spark job need, and sets it in `lags`. `note`: called
    before each look; it sets in `lags` where the consumers are."""

    kafka: Properties
    admin: Admin
    lags: Lags
    note: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """Look every LOOK_S seconds until `stop`. An error is logged, and the next look tries
        again: an unknown lag ends no worker."""
        while not await is_set_within(stop, LOOK_S):
            try:
                await unless(stop, self.look())
            except OverlayError as error:
                log.debug("the lag is not known for now", reason=str(error))
            except Exception as error:  # noqa: BLE001 - of any library; deliveries do not depend on the lag
                log.warning("the lag is not known for now", reason=f"{type(error).__name__}: {error}")

    async def look(self) -> None:
        """Ask Kafka once for what the lags need: the ends of partitions that are not being read, and the
        timestamps of at most MOST_LOOKUPS records. Raises OverlayError."""
        self.note()
        self.lags.note_ends(await find_ends(self.admin, self.lags.list_unread()))
        if spots := self.lags.list_unknown(MOST_LOOKUPS):
            await self._look_up(spots)

    async def _look_up(self, spots: Mapping[Spot, int]) -> None:
        """Read the records at these offsets, and note their timestamps. What cannot be read is left
        out. `spots`: with the last stable offset of each partition. Raises SourceUnavailable."""
        client = await open_client(self.kafka)
        try:
            for spot, end in spots.items():
                try:
                    async with asyncio.timeout(LOOKUP_S):
                        time = await find_time(client, spot, end)
                except (TimeoutError, SourceChanged, CredentialsRefused) as error:
                    log.debug("the age of a record is not known for now", spot=spot, reason=str(error))
                else:
                    if time is not None:
                        self.lags.note_time(spot, time)
        finally:
            await client.close()


async def find_ends(admin: Admin, sources: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offset of each of these partitions. Those that do not exist, or whose topic this user may
    not describe, are left out. Kafka is not asked if there are none. Raises OverlayError."""
    if not sources:
        return {}
    known = await admin.find_topics({topic for topic, _ in sources}, with_config=False, denied={})
    there = {source for source in sources if source[0] in known and source[1] < known[source[0]].partitions}
    return {source: end for source, (_, end) in (await admin.find_bounds(there)).items()}


async def find_time(client: AIOKafkaClient, spot: Spot, end: int) -> int | None:
    """Return the timestamp of the first committed record with spot's offset <= offset < end, ms
    since 1970; None if there is none, or if a batch before it cannot be read. Raises SourceChanged
    if the log does not hold the offset, CredentialsRefused, SourceUnavailable.
    """
    (topic, partition), offset = spot
    reader = RowReader()
    # the first request asks for one byte, for which brokers send one whole batch
    async with aclosing(read_span(client, topic, partition, offset, end, size=1)) as fetches:
        async for fetched in fetches:
            for record in reader.read(fetched, offset, end):
                return None if isinstance(record, Malformed) else record.timestamp
    return None
