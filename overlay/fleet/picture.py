"""What `/fleet`, `overlay workers` and `overlay shards` show: the rows of one moment as JSON objects. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from overlay.kafka.own_topics import shard_of

from .findings import Finding, Picture, list_unserved
from .memory import ConsumerRow, StreamRow, WorkerRow
from .status import Refusal

SILENT = "silent"
DRAINED = "drained"
NOT_SERVED = "not served"


@dataclass(slots=True)
class DescribedConsumers:
    """JSON objects of consumers, each used again as long as its row, its state and the number of shards are the same. So
    what describing a picture costs depends on how much has changed since the last one.
    """

    _kept: dict[str, tuple[ConsumerRow, int, str, dict[str, Any]]] = field(default_factory=dict)
    """By stream/name, with what they were made of: row, number of shards, state."""

    def describe(self, picture: Picture, row: ConsumerRow) -> dict[str, Any]:
        """Return the JSON object of a consumer. Its state is `silent` if the row is not fresh."""
        count, state = len(picture.owners), row.state if picture.is_fresh(row) else SILENT
        kept = self._kept.get(row.id)
        if kept is not None and kept[0] is row and kept[1:3] == (count, state):
            return kept[3]
        found = {**row.model_dump(mode="json"), "shard": shard_of((row.stream, row.name), count), "state": state}
        self._kept[row.id] = row, count, state, found
        return found

    def forget_others(self, picture: Picture) -> None:
        """Drop the objects of consumers that have no row in the picture."""
        if len(self._kept) > len(picture.consumers):
            known = {row.id for row in picture.consumers}
            self._kept = {id: kept for id, kept in self._kept.items() if id in known}


def describe(
    picture: Picture,
    findings: Sequence[Finding],
    refused: Mapping[Refusal, int],
    described: DescribedConsumers | None = None,
) -> dict[str, Any]:
    """Return what `/fleet` answers as a JSON object: `time` (ms since 1970), `workers`, `shards`, `consumers` and
    `streams` of the picture, `findings` as they are given, no `advisories`, and in `ignored` how many records were refused,
    by reason. `described`: objects of consumers from the last call, which are used again and must not be changed.
    """
    return {
        "time": picture.now,
        "workers": describe_workers(picture),
        "shards": describe_shards(picture),
        "consumers": describe_consumers(picture, described or DescribedConsumers()),
        "streams": describe_streams(picture),
        "findings": [
            {"kind": found.kind.value, "about": found.about, "text": found.text, "since": found.since}
            for found in findings
        ],
        "advisories": [],
        "ignored": {reason.value: refused.get(reason, 0) for reason in Refusal},
    }


def describe_workers(picture: Picture) -> list[dict[str, Any]]:
    """Return a JSON object for each worker, sorted by name. Its `seen` is Kafka's time and its `started` the worker's
    own, both ms since 1970. Its `shards` are those that it has; for a silent worker, those that it had.
    """
    return [_describe_worker(picture, row) for row in picture.workers]


def _describe_worker(picture: Picture, row: WorkerRow) -> dict[str, Any]:
    is_live = row.worker in picture.live
    shards = sorted(shard.number for shard in row.shards)
    state = SILENT if not is_live else DRAINED if row.drained else "waiting" if row.trouble else "running"
    return {
        "worker": row.worker,
        "state": state,
        "reason": row.trouble if is_live else "",
        "shards": [number for number in shards if not is_live or row.worker in picture.owners[number]],
        "shard_count": row.shard_count,
        "consumers": row.served,
        "version": row.version,
        "digest": row.digest,
        "settings": row.settings,
        "started": row.started,
        "seen": row.seen,
        "clock_ahead_seconds": round(row.ahead_ms / 1000, 3),
    }


def describe_shards(picture: Picture) -> list[dict[str, Any]]:
    """Return a JSON object for each shard, sorted by number: its state, why an owner of it is not ready ("" if all
    are, or if it has none), the workers that have it, and how many consumers workers have told of lately that belong
    to it.
    """
    count = len(picture.owners)
    consumers = Counter(shard_of((row.stream, row.name), count) for row in picture.consumers if picture.is_fresh(row))
    found = []
    for number, owners in sorted(picture.owners.items()):
        trouble = picture.find_trouble(number)
        state = "no owner" if not owners else "two owners" if len(owners) > 1 else "starting" if trouble else "running"
        found.append(
            {
                "shard": number,
                "state": state,
                "reason": trouble[1] if trouble else "",
                "workers": list(owners),
                "consumers": consumers[number],
            }
        )
    return found


def describe_consumers(picture: Picture, described: DescribedConsumers) -> list[dict[str, Any]]:
    """Return a JSON object for each consumer that a worker has told of or that the config folder names, sorted by
    stream/name. Its state is what its worker told last, or `silent` if that worker is silent or has not told of it
    lately. It is `not served` for those of `list_unserved`, and for those that only the config folder names.
    """
    unserved = {name for names in list_unserved(picture).values() for name in names}
    described.forget_others(picture)
    found = {row.id: described.describe(picture, row) for row in picture.consumers}
    wanted = {"/".join(id): id for id in picture.expected.consumers}
    for id in unserved | (wanted.keys() - found.keys()):
        stream, name = wanted[id] if id in wanted else (found[id]["stream"], found[id]["name"])
        known = found.get(id) or _describe_missing(picture, stream, name)
        found[id] = known | {"state": NOT_SERVED}
    return [found[id] for id in sorted(found)]


def describe_streams(picture: Picture) -> list[dict[str, Any]]:
    """Return a JSON object for each stream that a worker has told of, sorted by name. `owners`: the workers that read it or
    keep its index. Where these differ, `state` is the worst that one tells, `lag` that of the one that is behind the most,
    and `rate` that of the one that reads the most. If no worker has told of the stream lately, its state is `silent`, it
    has no owners, and the rest is what was told last.
    """
    return [
        _describe_stream(picture, name, list(rows)) for name, rows in groupby(picture.streams, key=lambda row: row.name)
    ]


def _describe_stream(picture: Picture, name: str, rows: Sequence[StreamRow]) -> dict[str, Any]:
    fresh = [row for row in rows if picture.is_fresh(row)]
    told = fresh or [max(rows, key=lambda row: row.seen)]
    worst = min(told, key=lambda row: _WORST_FIRST.index(row.state) if row.state in _WORST_FIRST else -1)
    keeper = next((row for row in told if row.index), None)
    return {
        "name": name,
        "topic": worst.topic,
        "partitions": max(row.partitions for row in told),
        "rate": max(row.rate for row in told) if fresh else 0.0,
        "lag": max((row.lag for row in told if row.lag is not None), default=None),
        "owners": [row.worker for row in fresh],
        "state": worst.state if fresh else SILENT,
        "reason": worst.reason,
        "index": keeper.index if keeper else "",
        "index_lag": keeper.index_lag if keeper else None,
        "seen": max(row.seen for row in told),
    }


_WORST_FIRST = ("stopped", "waiting", "running", "idle")
"""States of streams, as workers tell them. One that is not known is worse."""


def _describe_missing(picture: Picture, stream: str, name: str) -> dict[str, Any]:
    """Return the JSON object of a consumer that no worker has told of, and that only the fleet's config folder names."""
    row = ConsumerRow(stream=stream, name=name, state=NOT_SERVED, worker="-", seen=0)
    return DescribedConsumers().describe(picture, row) | {"worker": ""}
