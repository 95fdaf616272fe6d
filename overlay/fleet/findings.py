"""What is wrong with the fleet, as far as its rows tell. Pure.

`survey` judges the rows of one moment. Some of what it sees passes by itself: shards change their owner, a
changed file reaches one worker before the other. So a finding opens only when it was seen for a while,
which depends on its kind, and closes when it is not seen any more (`OpenFindings`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

from overlay.kafka.own_topics import shard_of
from overlay.state.shard_state import ConsumerId
from overlay.units import format_time

from .definitions import Definitions
from .memory import ConsumerRow, Memory, Rows, StreamRow, WorkerRow

FRESH_MS = 150_000
"""How long what a worker has told of a consumer or stream counts as present: each is told within a minute or so."""
CLOCK_MS = 2_000
"""Least difference between a worker's clock and Kafka's that is a finding, in ms."""
RIVAL_MS = 60_000
"""How long after a status of another process under the same name that is a finding, in ms."""
MOST_NAMED = 10
"""Most names that the text of a finding lists."""
COMPARED = "Give all the same requests.*, topics.reply_to, topics.requests, topics.replication and shards"
_MILLION = 1_000_000


class Kind(enum.StrEnum):
    """Kinds of findings. Labels of a metric."""

    NO_WORKER = "no_worker"
    WORKER_SILENT = "worker_silent"
    SAME_NAME = "same_name"
    SHARD_WITHOUT_OWNER = "shard_without_owner"
    SHARD_WITH_TWO_OWNERS = "shard_with_two_owners"
    SHARD_NOT_READY = "shard_not_ready"
    SHARD_COUNTS_DIFFER = "shard_counts_differ"
    CONFIGS_DIFFER = "configs_differ"
    SETTINGS_DIFFER = "settings_differ"
    VERSIONS_DIFFER = "versions_differ"
    CONSUMERS_NOT_SERVED = "consumers_not_served"
    CLOCK_DIFFERS = "clock_differs"


PATIENCE_MS = {
    # a broker that is lost takes some ten seconds until another leads its partitions, the fleet's topic too
    Kind.WORKER_SILENT: 9_000,
    Kind.SAME_NAME: 0,
    Kind.SHARD_COUNTS_DIFFER: 10_000,
    # between workers a shard is for some seconds with none, or with both by the last statuses of versions that do not
    # tell a generation
    Kind.NO_WORKER: 15_000,
    Kind.SHARD_WITHOUT_OWNER: 10_000,
    Kind.SHARD_WITH_TWO_OWNERS: 15_000,
    # several statuses in a row: one that was long on its way looks like a clock that is behind
    Kind.CLOCK_DIFFERS: 15_000,
    # files are changed one worker after the other, and workers are started anew one after the other
    Kind.CONFIGS_DIFFER: 30_000,
    Kind.SETTINGS_DIFFER: 60_000,
    Kind.VERSIONS_DIFFER: 60_000,
    # a takeover of a big state
    Kind.SHARD_NOT_READY: 60_000,
    # a worker tells of thousands of consumers in turn
    Kind.CONSUMERS_NOT_SERVED: 60_000,
}
"""How long something must be seen before it is a finding, in ms."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know. `about`: the worker's name or the shard's number, empty if the
    finding is about the fleet; kind and `about` together identify it. `text`: what it is, and what to do.
    """

    kind: Kind
    about: str
    text: str
    since: int = 0
    """When it was first seen, Kafka's time in ms since 1970."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.about}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What the config folder of the fleet says: the number of shards, which counts until a worker tells it;
    the digest of the files, "" if there is no folder; the consumers that workers have to serve; and the topics of their
    dead letters.
    """

    shard_count: int = 1
    digest: str = ""
    consumers: frozenset[ConsumerId] = frozenset()
    letter_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """The rows of one moment. `now`: Kafka's time, ms since 1970. `live`: the workers that are heard, by
    name. `owners`: the live workers that have each shard, by its number.
    """

    workers: Sequence[WorkerRow]
    consumers: Sequence[ConsumerRow]
    now: int
    expected: Expected
    streams: Sequence[StreamRow] = ()
    owners: Mapping[int, tuple[str, ...]] = field(init=False)
    """The live workers that have each shard, by name: of those that say so, without one from which another has taken it
    over (`list_holders`)."""
    live: Mapping[str, WorkerRow] = field(init=False)
    """The workers that are heard, by name."""
    _troubles: Mapping[int, tuple[str, str]] = field(init=False)
    """Of each shard with an owner that is not ready, the first such owner and its reason."""

    def __post_init__(self) -> None:
        live = {row.worker: row for row in self.workers if self.now - row.seen <= row.silent_after_ms}
        claims: dict[int, list[WorkerRow]] = {number: [] for number in range(self._count_shards(live.values()))}
        for row in live.values():
            for shard in row.shards:
                claims.setdefault(shard.number, []).append(row)
        owners = {number: list_holders(rows) for number, rows in claims.items()}
        unready = {
            (row.worker, shard.number): shard.reason or "starting"
            for row in live.values()
            for shard in row.shards
            if not shard.ready
        }
        troubles: dict[int, tuple[str, str]] = {}
        for number, names in owners.items():
            for name in names:
                if (reason := unready.get((name, number))) is not None:
                    troubles.setdefault(number, (name, reason))
        object.__setattr__(self, "live", live)
        object.__setattr__(self, "owners", owners)
        object.__setattr__(self, "_troubles", troubles)

    def _count_shards(self, live: Iterable[WorkerRow]) -> int:
        told = max((row.shard_count for row in live), default=0) or max(
            (row.shard_count for row in self.workers), default=0
        )
        return told or self.expected.shard_count

    def is_fresh(self, row: ConsumerRow | StreamRow) -> bool:
        """Return whether the row is recent: its worker is heard, and has told of the consumer or stream within the
        last FRESH_MS.
        """
        return row.worker in self.live and self.now - row.seen <= FRESH_MS

    def find_trouble(self, shard: int) -> tuple[str, str] | None:
        """Return the first owner of a shard that is not ready, and the reason that it gives, "starting" if
        it gives none. None if all owners are ready or there is none.
        """
        return self._troubles.get(shard)


def list_holders(rows: Sequence[WorkerRow]) -> tuple[str, ...]:
    """Return the names of the workers that have a shard, of `rows` that all say so, in their order: those from which no other
    one has taken it over. One has if it was assigned the shard in a later generation, and has told that no earlier. A later
    generation alone does not do. A worker may be slow to tell, and Kafka counts from 1 again for a group that was empty for
    a while. A worker of which the generation is not known has neither taken the shard over nor lost it.
    """
    known = sorted(
        (row for row in rows if row.generation is not None), key=lambda row: row.generation or 0, reverse=True
    )
    succeeded: set[str] = set()
    latest = -1  # when the latest worker of a later generation was dealt its shards
    for _, same in groupby(known, key=lambda row: row.generation):
        group = list(same)
        succeeded.update(row.worker for row in group if row.dealt <= latest)
        latest = max(latest, *(row.dealt for row in group))
    return tuple(row.worker for row in rows if row.worker not in succeeded)


DELETED_MS = 60_000
"""How long after its deletion a worker may still tell of a consumer, in ms. One that is told of later is there."""


def look(memory: Memory, now: int, expected: Expected, definitions: Definitions | None = None) -> Picture:
    """Return a picture of the present rows of `memory`. `now`: Kafka's time, ms since 1970. `definitions`: if the control
    topic is followed: consumers that were deleted are left out, and those that were made by request have to be served too.
    """
    consumers = memory.list_consumers()
    if definitions is not None:
        deleted = definitions.list_deleted()
        wanted = (expected.consumers | definitions.list_wanted()) - deleted.keys()
        expected = replace(expected, consumers=wanted)
        consumers = [
            row for row in consumers if row.seen > deleted.get((row.stream, row.name), -DELETED_MS) + DELETED_MS
        ]
    return Picture(memory.list_workers(), consumers, now, expected, memory.list_streams())


def survey(picture: Picture) -> list[Finding]:
    """Return everything that looks wrong in the picture, also what has not been so for long. `since` of each
    finding is 0.
    """
    return [
        *_judge_workers(picture),
        *_judge_shards(picture),
        *_compare(picture),
        *_judge_consumers(picture),
    ]


def _judge_workers(picture: Picture) -> Iterator[Finding]:
    if not picture.live:
        yield Finding(Kind.NO_WORKER, "", "no worker is heard. Start one, or see why none reaches Kafka")
    for row in picture.workers:
        if row.worker not in picture.live:
            had = ", ".join(str(shard.number) for shard in row.shards)
            last = f"no status of this worker since {format_time(row.seen * _MILLION)}"
            shards = f"; it had shards {had}" if had else ""
            yield Finding(Kind.WORKER_SILENT, row.worker, f"{last}{shards}. See whether its process runs")
            continue
        if row.rival > picture.now - RIVAL_MS:
            text = "two processes tell under this name. Give each a fleet.worker of its own"
            yield Finding(Kind.SAME_NAME, row.worker, text)
        if abs(row.ahead_ms) > CLOCK_MS:
            side = "ahead of" if row.ahead_ms > 0 else "behind"
            text = f"its clock is {abs(row.ahead_ms) / 1000:.1f} s {side} Kafka's. Set the clock"
            yield Finding(Kind.CLOCK_DIFFERS, row.worker, text)


def _judge_shards(picture: Picture) -> Iterator[Finding]:
    if not picture.live:
        return  # that no worker is heard says it all
    for number, owners in sorted(picture.owners.items()):
        if not owners:
            text = "no worker that is heard has this shard: its consumers wait"
            yield Finding(Kind.SHARD_WITHOUT_OWNER, str(number), text)
        elif len(owners) > 1:
            text = f"{' and '.join(owners)} both say that they have it. One of them will be fenced"
            yield Finding(Kind.SHARD_WITH_TWO_OWNERS, str(number), text)
        if (trouble := picture.find_trouble(number)) is not None:
            yield Finding(Kind.SHARD_NOT_READY, str(number), ": ".join(trouble))


def _compare(picture: Picture) -> Iterator[Finding]:
    """Yield a finding for each of these that differs between workers that are heard: the digest of their streams and
    consumers, that of their settings ("" is not compared), the version, the number of shards (0 is not compared). If
    the fleet has a config folder of its own, the folder's digest is compared with theirs too, but not its settings,
    by which it decides nothing.
    """
    live = list(picture.live.values())
    digests = _group(live, lambda row: row.digest)
    if live and picture.expected.digest:
        digests.setdefault(picture.expected.digest, []).append("the folder of this fleet")
    if len(digests) > 1:
        text = f"their streams and consumers are not the same: {_tell(digests)}. Give all the same files"
        yield Finding(Kind.CONFIGS_DIFFER, "", text)
    settings = _group([row for row in live if row.settings], lambda row: row.settings)
    if len(settings) > 1:
        text = (
            f"their overlay.yaml are not the same: {_tell(settings)}. {COMPARED}; restart the workers that you change"
        )
        yield Finding(Kind.SETTINGS_DIFFER, "", text)
    versions = _group(live, lambda row: row.version)
    if len(versions) > 1:
        yield Finding(Kind.VERSIONS_DIFFER, "", f"{_tell(versions)}. Bring all to the same version")
    counts = _group([row for row in live if row.shard_count], lambda row: row.shard_count)
    if len(counts) > 1:
        text = f"they count different numbers of shards: {_tell(counts)}. Restart those that are behind the state topic"
        yield Finding(Kind.SHARD_COUNTS_DIFFER, "", text)


Told = TypeVar("Told", bound=Hashable)


def _group(rows: Iterable[WorkerRow], key: Callable[[WorkerRow], Told]) -> dict[Told, list[str]]:
    """Return the names of the workers of `rows`, grouped by `key(row)`."""
    found: dict[Told, list[str]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row.worker)
    return found


def _tell(groups: Mapping[Any, Sequence[str]]) -> str:
    parts = (f"{told} at {_name(workers)}" for told, workers in sorted(groups.items(), key=lambda pair: str(pair[0])))
    return "; ".join(parts)


def _name(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + rest


def list_unserved(picture: Picture) -> dict[int, list[str]]:
    """Return, by number of their shard, the consumers that should be served and are not, as sorted stream/name: those that
    their worker tells as `starting`, and those in `picture.expected` that no worker has told of lately. Shards without
    an owner, and those with an owner that is not ready, are left out: that is a finding of its own.
    """
    fresh = {row.id: row for row in picture.consumers if picture.is_fresh(row)}
    wanted = {(row.stream, row.name) for row in fresh.values() if row.state == "starting"}
    wanted |= {id for id in picture.expected.consumers if "/".join(id) not in fresh}
    found: dict[int, list[str]] = {}
    for id in sorted(wanted):
        shard = shard_of(id, len(picture.owners))
        if picture.owners[shard] and picture.find_trouble(shard) is None:
            found.setdefault(shard, []).append("/".join(id))
    return found


def _judge_consumers(picture: Picture) -> Iterator[Finding]:
    for shard, names in sorted(list_unserved(picture).items()):
        owners = " and ".join(picture.owners[shard])
        text = f"{owners} has the shard and does not serve {_name(names)}. See its log, and whether it has their files"
        yield Finding(Kind.CONSUMERS_NOT_SERVED, str(shard), text)


@dataclass(slots=True)
class OpenFindings:
    """The findings that are open: seen for as long as PATIENCE_MS says, and not gone. `rows`: by name of the
    finding, as JSON objects; a table of Faust, in which they outlive the process, or a dict.
    """

    rows: Rows = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    """What is seen, and since when in ms; also what is not open yet."""

    def update(self, seen: Iterable[Finding], now: int) -> tuple[list[Finding], list[Finding]]:
        """Take all that a survey has found now. Return the findings that open now, since they have been seen
        for long enough, and those that close now, since they are not in `seen` any more.

        `now`: Kafka's time, ms since 1970.
        """
        present = {finding.name: finding for finding in seen}
        self._seen = {name: self._seen.get(name, now) for name in present}
        opened, closed = [], []
        for name, finding in present.items():
            known = self.rows.get(name)
            since = known["since"] if known else self._seen[name]
            if known is None and now - since < PATIENCE_MS[finding.kind]:
                continue
            current = Finding(finding.kind, finding.about, finding.text, since)
            if known is None:
                opened.append(current)
            row = {"kind": current.kind.value, "about": current.about, "text": current.text, "since": since}
            if row != known:
                self.rows[name] = row
        for name in [name for name in list(self.rows) if name not in present]:
            closed.append(_read(self.rows[name]))
            self.rows.pop(name, None)
        return opened, closed

    def list(self) -> Sequence[Finding]:
        """Return the open findings, those first that were first seen the longest ago, and of the same time by name."""
        return sorted((_read(row) for row in list(self.rows.values())), key=lambda found: (found.since, found.name))


def _read(row: Mapping[str, Any]) -> Finding:
    return Finding(Kind(row["kind"]), row["about"], row["text"], row["since"])
