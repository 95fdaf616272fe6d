"""The status that this worker publishes for the fleet (docs/fleet.md): itself, its shards, and the consumers that changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlay.chance import draw_id
from overlay.clock import now_ms
from overlay.config import Loaded, ServiceConfig
from overlay.config.identity import Identity
from overlay.fleet.changes import Changes
from overlay.fleet.status import (
    EVERY_MS,
    MOST_POSITIONS,
    ConsumerStatus,
    ShardStatus,
    StreamStatus,
    WorkerStatus,
    clean,
    encode,
)
from overlay.fleet.timetable import Scope
from overlay.kafka.own_topics import shard_of
from overlay.state.shard_state import ConsumerId

from .session import Session
from .shard_manager import ShardManager
from .stream_status import describe_streams

TURN = 50
"""Consumers that are described in one go, before the event loop does other work."""
MOST_REASON = 100
"""Most characters of a shard's reason."""
BOOT_LENGTH = 12
MOST_LAG_S = 1e12
"""Timestamps of source records may be anything."""


def name_worker(service: ServiceConfig, host: str, port: int) -> str:
    """Return the name of a worker: `fleet.worker` of its config, or if that is empty `HOST:PORT`. Characters of the host name
    other than ASCII letters, digits and `._-` become `-`, and it is cut to 90 characters. `port`: where HTTP listens, 0 if
    nowhere."""
    if service.fleet.worker:
        return service.fleet.worker
    return f"{re.sub(r'[^a-zA-Z0-9._-]', '-', host)[:90]}:{port}"


@dataclass(slots=True)
class ProcessStart:
    """What tells the statuses of one process from those of another one under the same name, and puts them in order."""

    boot: str = field(default_factory=lambda: draw_id()[:BOOT_LENGTH])
    started: int = field(default_factory=now_ms)
    """By this machine's clock, ms since 1970."""
    number: int = 0
    """Of the next record."""


@dataclass(slots=True)
class StatusSource:
    """Makes the records of a worker's statuses (`collect`) during one membership of the group of workers."""

    find_identity: Callable[[], Identity]
    shard_manager: ShardManager
    worker: str
    start: ProcessStart
    """Outlives the membership."""
    _changes: Changes = field(default_factory=Changes)
    _assigned: tuple[Loaded, frozenset[int], list[Session]] | None = None
    """What the consumers in `_changes` were chosen by."""
    _served: int = 0
    _gone: set[ConsumerId] = field(default_factory=set)
    """Deleted consumers that the last status tells of."""
    _streams: frozenset[str] = frozenset()
    """The streams of the consumers of the worker's shards, and the streams that the shards keep the index of."""
    _stream_changes: Changes = field(default_factory=Changes)
    """Which of them wait to be told. Each has an empty consumer name there."""
    _left: set[str] = field(default_factory=set)
    """Streams that are not this worker's any more and that the last status tells of."""
    _told: list[ConsumerId] = field(default_factory=list)
    """Consumers that the last status describes."""
    _told_streams: list[ConsumerId] = field(default_factory=list)
    """The same of streams, each with an empty consumer name."""

    def mark(self) -> Hashable:
        """Return something that is equal to what was returned before, unless the worker's shards are others, one of them
        has begun or ceased to be served, or it has other stalled consumers, or streams that are stopped or wait. It takes some
        microseconds for each shard, and less than one for each of these.
        """
        manager = self.shard_manager
        shards: list[Hashable] = []
        for number, shard in manager.shards.items():
            session = shard.session
            if session is None:
                shards.append(number)
            else:
                assignment, halts = session.assignment, session.cursors.halts
                waits = frozenset(assignment.blocked), frozenset(assignment.held)
                halted = frozenset(assignment.stopped), frozenset(halts)
                shards.append((number, frozenset(assignment.stalled), *halted, *waits))
        return manager.owned, manager.generation, bool(manager.trouble), manager.membership.drained, frozenset(shards)

    async def collect(self, scope: Scope, was_lost: bool) -> Sequence[bytes]:
        """Return the records of a status: the worker, and if `scope` is ALL, the consumers that have changed or whose turn
        has come, and those that a status told of and that were deleted since the last call with that scope. With
        `was_lost`, those that the last call said were deleted are named again, unless consumers of their names are
        served now, and those that it described are described again by the next call with the scope ALL.

        `was_lost`: whether the status of the last call could not be written.
        """
        # one of that name may have been created meanwhile, and a stream may have come back
        self._gone = self._gone - self.shard_manager.loaded.served.keys() if was_lost else set()
        self._left = self._left if was_lost else set()
        if was_lost:
            self._changes.repeat(self._told)
            self._stream_changes.repeat(self._told_streams)
        self._told, self._told_streams = [], []
        consumers, streams = await self._collect_parts() if scope is Scope.ALL else ([], [])
        gone = sorted("/".join(id) for id in self._gone)
        head = self.describe_worker(is_last=scope is Scope.LAST)
        values = encode(head, consumers, gone, streams, sorted(self._left))
        self.start.number += len(values)
        return values

    async def _collect_parts(self) -> tuple[list[ConsumerStatus], list[StreamStatus]]:
        """Return the descriptions of the consumers and streams that have changed or whose turn has come
        (overlay/fleet/changes.py). Note those that are gone.
        """
        self._assign()
        manager, now = self.shard_manager, now_ms()
        # one pass describes all of them
        self._stream_changes.note((name, "") for name in self._streams)
        named = {name for name, _ in self._stream_changes.take()}
        streams = []
        for found in describe_streams(manager.loaded.streams, named, manager.sessions, manager.rates, now):
            id = found.name, ""
            if self._stream_changes.settle(id, _sum_up(found), is_busy=found.is_busy):
                self._told_streams.append(id)
                streams.append(found)
        return await self._collect_consumers(), streams

    async def _collect_consumers(self) -> list[ConsumerStatus]:
        """Return the descriptions of the consumers that have changed or whose turn has come."""
        manager = self.shard_manager
        self._changes.note(manager.rates.list_active(now_ms()))
        told = []
        for count, id in enumerate(self._changes.take(), 1):
            report = manager.report_consumer(id)
            if not report or report["state"] == "elsewhere":
                self._changes.drop(id)
            else:
                found = describe_consumer(report)
                if self._changes.settle(id, _sum_up(found), is_busy=found.is_busy):
                    self._told.append(id)
                    told.append(found)
            if count % TURN == 0:
                await asyncio.sleep(0)
        return told

    def _assign(self) -> None:
        """If the worker's shards, sessions or configs are others than at the last call, have all its consumers and streams
        described for the next statuses, which tell of those that have changed. Add to `_gone` and `_left` those that a
        status told of and that do not exist or are not the worker's any more.
        """
        manager = self.shard_manager
        loaded, owned, sessions = manager.loaded, manager.owned, manager.sessions
        if self._assigned is not None:
            before, owned_before, sessions_before = self._assigned
            pairs = zip(sessions, sessions_before, strict=False)
            is_same = len(sessions) == len(sessions_before) and all(now is then for now, then in pairs)
            if loaded is before and owned == owned_before and is_same:
                return
        self._assigned = loaded, owned, sessions
        mine, streams = find_own(manager)
        self._served, self._streams = len(mine), streams
        self._gone.update(self._changes.assign(mine, loaded.served))
        left = self._stream_changes.assign([(name, "") for name in streams], ())
        self._left = self._left.union(name for name, _ in left) - streams

    def describe_worker(self, *, is_last: bool = False) -> WorkerStatus:
        """Return what a status says of the worker itself. `is_last`: whether the worker was told to stop."""
        manager, identity = self.shard_manager, self.find_identity()
        shards = []
        for number in sorted(manager.owned):
            shard = manager.shards.get(number)
            # one without consumers and indexes has nothing to run
            is_ready = shard is None or shard.session is not None
            reason = "" if shard is None or is_ready else clean(shard.trouble or "starting", MOST_REASON)
            shards.append(ShardStatus(number=number, ready=is_ready, reason=reason))
        return WorkerStatus(
            prefix=identity.prefix,
            worker=self.worker,
            boot=self.start.boot,
            number=self.start.number,
            started=self.start.started,
            clock=now_ms(),
            every=EVERY_MS,
            version=identity.version,
            digest=identity.digest,
            settings=identity.settings,
            shard_count=manager.count,
            trouble=clean(manager.trouble),
            leaving=is_last,
            drained=manager.membership.drained,
            served=self._served,
            shards=tuple(shards),
            generation=manager.generation if manager.generation >= 0 else None,
        )


def find_own(manager: ShardManager) -> tuple[list[ConsumerId], frozenset[str]]:
    """Return, sorted, the consumers of the worker's shards, and the streams that it tells of: those of these consumers, and
    those of which its shards keep the index.
    """
    loaded, count, owned = manager.loaded, manager.count, manager.owned
    mine = sorted(id for id in loaded.served if shard_of(id, count) in owned)
    kept = (name for name in loaded.streams if shard_of((name,), count) in owned)
    return mine, frozenset(kept).union(stream for stream, _ in mine)


def _sum_up(found: ConsumerStatus | StreamStatus) -> int:
    """Return a hash of the values of a description's fields, by which a later description is compared with it."""
    return hash(tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for _, value in found))


def describe_consumer(report: Mapping[str, Any]) -> ConsumerStatus:
    """Return what a status tells of a consumer. `report`: what /consumers says of it (report.py). An unknown lag in seconds
    becomes 0, and positions are left out if there are more than MOST_POSITIONS."""
    acks = report.get("acks", {})
    positions = report.get("positions", {})
    return ConsumerStatus(
        stream=report["stream"],
        name=report["name"],
        state=report["state"],
        reason=clean(report["reason"]),
        sequence=report.get("consumer_sequence", 0),
        delivered=report["delivered"],
        rate=round(report["rate"], 3),
        lag=report.get("lag_records"),
        lag_s=min(report["lag_seconds"] or 0.0, MOST_LAG_S),
        pending=report.get("num_pending"),
        pending_is=report.get("num_pending_is", ""),
        unacked=acks.get("num_ack_pending", 0),
        redelivered=acks.get("num_redelivered", 0),
        dead_letters=report.get("dead_letters", {}),
        positions=positions if len(positions) <= MOST_POSITIONS else {},
    )
