"""What is known of the workers and consumers: statuses folded into rows. Pure.

Rows are kept in two mappings from texts to JSON objects, so that tables of Faust can hold them as well as
dicts. They go by Kafka's time, at which a status was appended: the clocks of workers may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .status import (
    ConsumerStatus,
    Count,
    Part,
    Refusal,
    Status,
    StreamStatus,
    Worker,
    WorkerStatus,
    decode,
    judge_time,
)

FORGET_MS = 3_600_000
"""How long a worker is remembered that is not heard of, in ms; as long as the topic keeps its statuses."""
MOST_WORKERS = 1_000
MOST_CONSUMERS = 200_000
MOST_STREAMS = 50_000
"""Most rows that are kept, whatever is written to the topic."""

NO_WORKER = "-"
"""The worker of what is kept of a stream when the process that told it has ended."""

WINDOW_MS = 600_000
"""For how long an estimate of Kafka's time counts, once there are newer statuses; twice that at most."""

Rows = MutableMapping[str, dict[str, Any]]


class WorkerRow(WorkerStatus):
    """The last status of a worker, as a row of Memory."""

    seen: Count
    """When Kafka took it, ms since 1970."""
    rival: Count = 0
    """When Kafka last took a status of an older process under the same name while this one ran, ms since 1970; 0 if never."""
    dealt: Count = 0
    """When Kafka took the first status of this process with this generation, ms since 1970."""

    @property
    def ahead_ms(self) -> int:
        """By how many ms the worker's clock is ahead of Kafka's; negative if it is behind. A status that took
        long to be written makes it look behind.
        """
        return self.clock - self.seen

    @property
    def silent_after_ms(self) -> int:
        """How many ms after its last status the worker counts as silent."""
        return 3 * self.every + 1_000


class ConsumerRow(ConsumerStatus):
    """The last status of a consumer, as a row of Memory."""

    worker: Worker
    """Which worker told it."""
    seen: Count
    """When Kafka took it, ms since 1970."""


class StreamRow(StreamStatus):
    """What one worker has last told of a stream, as a row of Memory."""

    worker: Worker
    seen: Count
    """When Kafka took it, ms since 1970."""


@dataclass(slots=True)
class Memory:
    """The rows of one fleet, as JSON objects: `workers` by the worker's name, `consumers` by stream/name, `streams` by
    worker/stream."""

    workers: Rows = field(default_factory=dict)
    consumers: Rows = field(default_factory=dict)
    streams: Rows = field(default_factory=dict)
    refused: Counter[Refusal] = field(default_factory=Counter)
    """How many records were passed over."""

    _read: dict[str, tuple[dict[str, Any], ConsumerRow]] = field(default_factory=dict)
    """The rows of consumers as they were last read, so that a row is checked once and not at each look."""
    _read_streams: dict[str, tuple[dict[str, Any], StreamRow]] = field(default_factory=dict)
    """The same of streams."""

    def take(self, key: bytes | None, value: bytes | None, appended: int, now: int, prefix: str) -> None:
        """Put a record of the fleet's topic into the rows, or count why it is passed over. Never raises.

        `appended`: Kafka's time on it; `now`: the reader's; both ms since 1970. `prefix`: topics.prefix of the
        service that is looked at.
        """
        status = decode(key, value, prefix)
        if isinstance(status, Refusal):
            self.refuse(status)
        elif (reason := judge_time(status, appended, now)) is not None:
            self.refuse(reason)
        else:
            self.fold(status, appended)

    def refuse(self, reason: Refusal) -> None:
        """Count a record that was passed over."""
        self.refused[reason] += 1

    def fold(self, status: Status, appended: int) -> Refusal | None:
        """Put a status into the rows: its worker, its consumers and streams, and none of those that are gone. Return None,
        or why it was passed over, which is also counted. LIMIT is returned too if only some of its consumers or streams
        had no room, and the rest is in the rows.

        `appended`: Kafka's time on the record, ms since 1970.
        """
        if (reason := self._fold_worker(status, appended)) is not None:
            self.refuse(reason)
            return reason
        reason = None
        for told in status.consumers:
            if told.id not in self.consumers and len(self.consumers) >= MOST_CONSUMERS:
                reason = Refusal.LIMIT
            else:
                row = ConsumerRow(**dict(told), worker=status.worker, seen=appended)
                self.consumers[told.id] = row.model_dump(mode="json", exclude_defaults=True)
        for id in status.gone:
            self.consumers.pop(id, None)
        reason = self._fold_streams(status, appended) or reason
        if reason is not None:
            self.refuse(reason)
        return reason

    def _fold_streams(self, status: Status, appended: int) -> Refusal | None:
        """Put the streams of a status into the rows, and drop those that its worker has left. Return LIMIT if some had no
        room."""
        reason = None
        for told in status.streams:
            id = f"{status.worker}/{told.name}"
            if id not in self.streams and len(self.streams) >= MOST_STREAMS:
                reason = Refusal.LIMIT
            else:
                row = StreamRow(**dict(told), worker=status.worker, seen=appended)
                self.streams[id] = row.model_dump(mode="json", exclude_defaults=True)
        for name in (*(told.name for told in status.streams), *status.left):
            # what an earlier process has told counts no more; a pop is a record of Faust's changelog, even of nothing
            if (earlier := f"{NO_WORKER}/{name}") in self.streams:
                self.streams.pop(earlier, None)
        for name in status.left:
            self.streams.pop(f"{status.worker}/{name}", None)
        return reason

    def _end_streams(self, worker: str) -> None:
        """Keep what a process of this worker has told of streams as that of NO_WORKER: it has ended. So a stream does not
        vanish until a worker tells of it again, or the row is forgotten.
        """
        for id in [id for id in list(self.streams) if id.startswith(f"{worker}/")]:
            row = self.streams[id]
            self.streams.pop(id, None)
            known = self.streams.get(earlier := f"{NO_WORKER}/{row['name']}")
            if known is None or known["seen"] <= row["seen"]:
                self.streams[earlier] = {**row, "worker": NO_WORKER}

    def _fold_worker(self, status: Status, appended: int) -> Refusal | None:
        """Put what a status says of its worker into the worker's row; remove the row if the worker is leaving. Return
        why the status is passed over, None if it is not. LIMIT: it is of one worker too many. PAST: it is not newer
        than the last of the same process, or it is of another process that began no later than the known one, which
        is not silent; that process counts as a rival then, unless the status came before the known one's last.
        """
        known = self.find_worker(status.worker)
        rival = 0
        if known is None:
            if len(self.workers) >= MOST_WORKERS:
                return Refusal.LIMIT
        elif known.boot == status.boot:
            if status.number <= known.number:
                return Refusal.PAST
            rival = known.rival
        elif appended <= known.seen + known.silent_after_ms and status.started <= known.started:
            # of an earlier process, which may still run under the same name; if the known one is silent, this one
            # has taken its place, and the machine's clock has been set back
            if appended >= known.seen:  # else it is read once more, from before the known one's last
                row = known.model_copy(update={"rival": appended})
                self.workers[status.worker] = row.model_dump(mode="json", exclude_defaults=True)
            return Refusal.PAST
        if status.leaving or known is None or known.boot != status.boot:
            self._end_streams(status.worker)
        if status.leaving:
            self.workers.pop(status.worker, None)
            return None
        told = {name: value for name, value in dict(status).items() if name in WorkerStatus.model_fields}
        is_same = known is not None and (known.boot, known.generation) == (status.boot, status.generation)
        dealt = known.dealt if known is not None and is_same else appended
        row = WorkerRow(**told, seen=appended, rival=rival, dealt=dealt)
        self.workers[status.worker] = row.model_dump(mode="json", exclude_defaults=True)
        return None

    def find_worker(self, name: str) -> WorkerRow | None:
        """Return the row of a worker, None if it is not known."""
        found = self.workers.get(name)
        return None if found is None else WorkerRow.model_validate(found, strict=False)

    def list_workers(self) -> list[WorkerRow]:
        """Return the rows of all workers, sorted by name."""
        return sorted(
            (WorkerRow.model_validate(row, strict=False) for row in list(self.workers.values())), key=lambda w: w.worker
        )

    def list_consumers(self) -> list[ConsumerRow]:
        """Return the rows of all consumers, sorted by stream and name."""
        self._read = _read_rows(self.consumers, self._read, ConsumerRow)
        return sorted((row for _, row in self._read.values()), key=lambda row: (row.stream, row.name))

    def list_streams(self) -> list[StreamRow]:
        """Return the rows of all streams, sorted by name and worker."""
        self._read_streams = _read_rows(self.streams, self._read_streams, StreamRow)
        return sorted((row for _, row in self._read_streams.values()), key=lambda row: (row.name, row.worker))

    def forget(self, now: int) -> None:
        """Drop the rows of workers, consumers and streams that were not heard of for FORGET_MS. `now`: Kafka's time, ms
        since 1970."""
        for rows in (self.workers, self.consumers, self.streams):
            for name in [name for name, row in list(rows.items()) if row["seen"] < now - FORGET_MS]:
                rows.pop(name, None)


Read = TypeVar("Read", bound=Part)


def _read_rows(
    rows: Rows, known: Mapping[str, tuple[dict[str, Any], Read]], kind: type[Read]
) -> dict[str, tuple[dict[str, Any], Read]]:
    """Return rows with what they say, by id. One that is the same object in `known` is taken from there."""
    read: dict[str, tuple[dict[str, Any], Read]] = {}
    for id, row in list(rows.items()):
        before = known.get(id)
        if before is not None and before[0] is row:
            read[id] = before
        else:
            read[id] = row, kind.model_validate(row, strict=False)
    return read


@dataclass(slots=True)
class KafkaTime:
    """An estimate of Kafka's time, by the newest status and the monotonic clock, which goes on while no status comes.

    A status has been on its way for a while, so the estimate is ahead by no more than the two clocks have
    drifted apart within two windows.
    """

    _newest: int = 0
    _ahead: int | None = None
    """Kafka's time minus the monotonic clock, the most that was seen in this window."""
    _before: int | None = None
    """The same of the window before."""
    _began: int = 0

    def note(self, appended: int, monotonic: int) -> None:
        """Learn from the newest status that is known now; one that is not newer than the last is ignored. `appended`:
        Kafka's time on it, ms since 1970; `monotonic`: the monotonic clock in ms now.
        """
        if appended <= self._newest:
            return
        self._newest = appended
        if monotonic - self._began > WINDOW_MS:
            self._before, self._ahead, self._began = self._ahead, None, monotonic
        ahead = appended - monotonic
        self._ahead = ahead if self._ahead is None else max(self._ahead, ahead)

    def tell(self, monotonic: int) -> int | None:
        """Return an estimate of Kafka's time now, in ms since 1970; None before the first `note`. `monotonic`: the
        monotonic clock in ms.
        """
        known = [ahead for ahead in (self._ahead, self._before) if ahead is not None]
        return monotonic + max(known) if known else None
