"""The state topic of a job: made if missing, grown with the job's outputs, read at its end, and cut at its start.

Partition 0 belongs to the driver, each other partition to one writer. So the records of a partition
are written under one transactional id, and after InitProducerId no transaction in it is open,
except one whose marker Kafka has lost (docs/exactly-once.md#takeover).
"""

from __future__ import annotations

import asyncio
import contextlib

from aiokafka.client import AIOKafkaClient

from overlay.errors import OverlayError
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.own_topics import STATE_CONFIG
from overlay.kafka.range_reader import read_records
from overlay.waits import Backoff, run_all

FIRST_PARTITIONS = 8
"""Partitions with which the topic is made: the driver's, and room for some writers."""
LOOK_BACK = 64
"""Offsets to read first for the last record."""
SETTLED_S = 30.0
"""How long the marker of a transaction that has been committed may take."""
AT_ONCE = 8
"""Partitions of which old records are deleted at the same time."""
KEPT = 1_000
"""Offsets at the end of a partition that are never deleted: a reader that has just asked for the end begins LOOK_BACK
before it."""


async def ensure_state_log(admin: Admin, topic: str, replication: int) -> int:
    """Create the state topic of a job, with FIRST_PARTITIONS partitions, if it is missing. Return its number of
    partitions. Raises OverlayError if Kafka refuses, SourceUnavailable."""
    found = await admin.find_topics([topic], with_config=False)
    if topic not in found:
        found, refused = await admin.create_topics([new_topic(topic, FIRST_PARTITIONS, replication, STATE_CONFIG)])
        if refused:
            raise OverlayError(refused[topic])
    return found[topic].partitions


async def grow_state_log(admin: Admin, topic: str, partitions: int) -> None:
    """Add partitions to the state topic of a job until it has at least `partitions`. Raises OverlayError if the
    topic is missing or Kafka refuses, SourceUnavailable."""
    found = await admin.find_topics([topic], with_config=False)
    if topic not in found:
        raise OverlayError(f"{topic}: the job's state topic is gone. Restore it, or begin a job of another name")
    if found[topic].partitions < partitions:
        await admin.add_partitions(topic, partitions)


async def read_last(client: AIOKafkaClient, admin: Admin, topic: str, partition: int) -> bytes | None:
    """Return the value of the last committed record of a partition below its last stable offset,
    None if it has none.

    To miss none that is being committed, call it after InitProducerId under the partition's
    transactional id and `Transactions.end_lost`: then no transaction is open there. Raises
    SourceChanged and SourceUnavailable.
    """
    first, end = (await admin.find_bounds([(topic, partition)]))[topic, partition]
    found = await _find_last(client, topic, partition, first, end)
    return None if found is None else found[1]


async def _find_last(
    client: AIOKafkaClient, topic: str, partition: int, first: int, end: int
) -> tuple[int, bytes] | None:
    """Return offset and value of the last committed record with first <= offset < end, None if there is none."""
    reach, last = LOOK_BACK, None
    await client.add_topic(topic)
    while first < end and last is None:
        start = max(first, end - reach)
        async for offset, _, value in read_records(client, topic, partition, start, end, plain=True):
            last = offset, value
        if last is None:
            end, reach = start, 8 * reach
    return last


async def await_settled(admin: Admin, topic: str, partition: int) -> None:
    """Wait until no transaction is open in a partition, or for SETTLED_S. A commit is answered before its marker is in the
    log, and until then `read_last` does not see its record. For a caller that is not behind InitProducerId. Raises
    SourceUnavailable."""
    backoff, source = Backoff(0.02, 1.0), (topic, partition)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLED_S):
            while True:
                # in this order: what is written in between counts as open
                stable = (await admin.find_bounds([source]))[source][1]
                if stable >= (await admin.find_bounds([source], committed=False))[source][1]:
                    return
                await backoff.rest()


async def forget_old(client: AIOKafkaClient, admin: Admin, topic: str) -> None:
    """Delete what does not count any more of a job's state topic: in each partition with 2 * KEPT offsets or more, the
    records below the last committed one. The last KEPT offsets stay in any case. AT_ONCE partitions have their turn at the
    same time.

    A writer's last commit stays, however old: by it a write task that stood still finds that its batch is written. Call it
    between two batches. Raises OverlayError, such as CredentialsRefused, SourceChanged and SourceUnavailable.
    """
    facts = (await admin.find_topics([topic], with_config=False)).get(topic)
    sources = [(topic, partition) for partition in range(facts.partitions if facts else 0)]
    gate = asyncio.Semaphore(AT_ONCE)

    async def forget(partition: int, first: int, end: int) -> None:
        async with gate:
            found = await _find_last(client, topic, partition, first, end)
            if found is not None and (before := min(found[0], end - KEPT)) > first:
                await admin.delete_records(topic, partition, before)

    bounds = await admin.find_bounds(sources)
    long = {partition: span for (_, partition), span in bounds.items() if span[1] - span[0] >= 2 * KEPT}
    await run_all(forget(partition, first, end) for partition, (first, end) in long.items())
