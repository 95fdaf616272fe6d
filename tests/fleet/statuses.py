"""Statuses for tests, with what is usual where a test says nothing else."""

from __future__ import annotations

from typing import Any

from overlay.fleet.status import ConsumerStatus, ShardStatus, Status, StreamStatus

NOW = 1_800_000_000_000
"""Kafka's time in most tests, ms since 1970."""


def make_status(worker: str = "a", *, shards: tuple[int, ...] = (0,), shard_count: int = 1, **fields: Any) -> Status:
    usual: dict[str, Any] = {
        "prefix": "overlay",
        "worker": worker,
        "boot": "b1",
        "number": 0,
        "started": NOW - 1_000,
        "clock": NOW,
        "version": "1.0",
        "digest": "d1",
        "shard_count": shard_count,
        "shards": tuple(ShardStatus(number=number) for number in shards),
    }
    return Status(**usual | fields)


def make_consumer(name: str = "c", **fields: Any) -> ConsumerStatus:
    return ConsumerStatus(**{"stream": "S", "name": name, "state": "running", "lag": 0, **fields})


def make_stream(name: str = "S", **fields: Any) -> StreamStatus:
    return StreamStatus(**{"name": name, "topic": "t", "partitions": 2, "state": "running", "lag": 0, **fields})
