"""What one worker knows, as the picture that the fleet's status page shows: itself, its shards, streams and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.clock import monotonic, now_ms
from overlay.fleet.findings import Expected, Picture
from overlay.fleet.memory import ConsumerRow, StreamRow, WorkerRow
from overlay.fleet.picture import describe
from overlay.fleet.status import WorkerStatus, clean
from overlay.waits import Slices, finish_in_thread

from .shard_manager import ShardManager
from .status import describe_consumer, find_own
from .stream_status import describe_streams

KEEP_S = 5.0
"""Least seconds for which a picture is used again: to describe thousands of consumers takes time from the data."""
SHARE = 10
"""A picture is used again for at least so many times the time that it took to make."""
SLICE_S = 0.005
"""Seconds for which it is described in one go, before the event loop does other work."""
KIND = "trouble"
"""The kind of all findings of a worker about itself."""
NOT_HERE = ("elsewhere", "spark")
"""States of consumers that other workers or Spark jobs serve."""


@dataclass(slots=True)
class OwnPicture:
    """Makes the picture of a worker when it is asked for one, and keeps it for KEEP_S, or longer if it took long."""

    make: Callable[[], Awaitable[dict[str, Any]]]
    _made: dict[str, Any] = field(default_factory=dict)
    _until: float = float("-inf")
    """How long it is used, by the monotonic clock in seconds."""
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> Mapping[str, Any]:
        """Return the picture as a JSON object, as `/fleet` answers it."""
        async with self._making:
            began = monotonic()
            if began >= self._until:
                self._made = await self.make()
                now = monotonic()
                self._until = now + max(KEEP_S, SHARE * (now - began))
            return self._made


async def describe_own(
    status: WorkerStatus, readiness: Mapping[str, Any], manager: ShardManager | None
) -> dict[str, Any]:
    """Return the picture of a worker as a JSON object: what the fleet's picture has of the worker, made of what the worker's
    statuses tell. `status`: what the worker says of itself; `readiness`: the body of /readyz; `manager`: None while the worker
    is no member of the group. The event loop does other work every SLICE_S.
    """
    now, rows, streams = now_ms(), list[ConsumerRow](), list[StreamRow]()
    if manager is not None:
        slices = Slices(SLICE_S)
        mine, names = find_own(manager)
        for id in mine:
            report = manager.report_consumer(id)
            # meanwhile it may have been deleted, or have gone to another worker or a Spark job
            if report and report["state"] not in NOT_HERE:
                rows.append(ConsumerRow(**dict(describe_consumer(report)), worker=status.worker, seen=now))
            await slices.rest()
        told = describe_streams(manager.loaded.streams, names, manager.sessions, manager.rates, now)
        streams = [StreamRow(**dict(stream), worker=status.worker, seen=now) for stream in told]
    worker = WorkerRow(**dict(status.model_copy(update={"served": len(rows)})), seen=now)
    picture = Picture([worker], rows, now, Expected(status.shard_count), streams)
    found = await finish_in_thread(describe, picture, [], {})
    # of the shards that others have it does not know whether they are served
    shards = [shard for shard in found["shards"] if shard["workers"]]
    return {**found, "shards": shards, "findings": list_troubles(readiness)}


def list_troubles(readiness: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasons of /readyz as findings. Each begins with what it is about, unless it is about all of the worker."""
    found = {}
    for reason in readiness["reasons"]:
        about, colon, text = reason.partition(": ")
        found[about if colon else ""] = clean(text if colon else reason)
    return [{"kind": KIND, "about": clean(about), "text": text, "since": None} for about, text in found.items()]
