"""A job: the consumers of one stream as one Spark query, each delivery committed exactly once.

    Spark's offset log ──► scan tasks ──blocks──► write tasks ──► outputs
    from where to where    many for a partition   one an output partition, one transaction each
                                  │ counts             ▲ sequences
                                  └───► the driver ────┘ plan in the job's state topic

What a batch number means never changes. Its offsets are in Spark's offset log. Once it is known how
many records it has, its plan is in the journal, before any of them is sent (journal.py). A batch
that is run again, after a crash of the driver or of executors, writes only the output partitions
whose writers have not committed it (writing.py).

Between two batches the job looks at its config folder. A consumer that has come later begins at
offsets of its own: while it is behind the others, each batch reads a limited number of offsets for
it beside its own ones, so that the others do not wait for it. So does one with a rate limit or a pause
(overlay/state/job_pace.py), which may stay behind.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from overlay.arrays import Ints
from overlay.config import ConsumerConfig, StreamConfig
from overlay.errors import OverlayError
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.state.job_pace import Pace, charge
from overlay.state.job_plan import BatchPlan, ConsumerPlan, Ends, Limit, draft_first
from spark.options import Ranges
from spark.partitions import TaskPartition

from . import blocks, writing
from .journal import JobTaken, Journal
from .numbering import Count, Tables, number, number_consumers, tabulate
from .ranges import parse_range
from .readers import JobScan
from .scanning import ScanTask, scan
from .writing import JobWrite, write

log = get_logger(__name__)

NS_PER_MS = 1_000_000
GAP = 5_000
"""Offsets between two last messages from which on they are fetched apart."""
NO_OFFSETS: Ints = np.empty(0, np.int64)


class ForeignCheckpoint(OverlayError):
    """The checkpoint and the job's state topic do not belong together. The operator chooses the right one."""


class JobEnded(OverlayError):
    """The query is being stopped, and begins no further batch. No action is needed."""


class CheckOwner(Protocol):
    """Raises NotOwner if a consumer is not the job's any more. `now`: look it up in Kafka, whenever it was done last."""

    def __call__(self, *, now: bool = False) -> None: ...


class Plan(Protocol):
    """Returns the tasks that read some offsets for some consumers, by their numbers. `may_lose`, `ranges`: as in
    Planner.plan_between."""

    def __call__(
        self, ends: Ends, numbers: Sequence[int], *, may_lose: bool = False, ranges: Ranges | None = None
    ) -> list[TaskPartition]: ...


class Search(Protocol):
    """Returns the offsets of the last messages of each subject, ascending by partition, for the consumer of a number.

    `offsets`: where the consumer is. `snapshot`: where its last messages end.
    """

    def __call__(
        self, number: int, offsets: Mapping[TopicPartition, int], snapshot: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Ints]: ...


@dataclass(frozen=True, slots=True)
class JobConsumers:
    """The consumers of a job, with what its tasks have to know of them.

    `configs`: in the order of their numbers. `plan`: returns the tasks that read some offsets for some
    of them. `find_log_starts`: asks Kafka for the first offset of each partition. `find_lasts`: searches for
    the last messages of a consumer. `writers`: every output partition, by the number that blocks have
    for it. `begins`: by name, a plan for each consumer, of which only `floors`, `claim`, `snapshot` and
    `before` count, and only if the job's last plan does not know the consumer by this claim.
    """

    configs: tuple[ConsumerConfig, ...]
    scan: JobScan
    plan: Plan
    find_log_starts: Callable[[], Mapping[TopicPartition, int]]
    find_lasts: Search
    writers: tuple[TopicPartition, ...]
    begins: Mapping[str, ConsumerPlan]

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each config, by name."""
        return {name_of(config): digest(config) for config in self.configs}

    @property
    def paces(self) -> dict[str, Pace]:
        """The limits of the consumers that have any, by name."""
        return {name_of(config): pace for config in self.configs if (pace := find_pace(config)) != Pace()}


@dataclass(frozen=True, slots=True)
class _Group:
    """Consumers for which a batch reads the same offsets in one pass, by their numbers.

    `fails`: whether the loss of an offset ends the job. `only`: the offsets of the last messages, if
    the one consumer is given nothing else now; None otherwise.
    """

    reads: Ends
    fails: bool
    only: Mapping[TopicPartition, Ints] | None = None
    numbers: list[int] = field(default_factory=list)

    def find_ranges(self) -> Ranges | None:
        """Return the offsets that have to be read, None for all of `reads`."""
        if self.only is None:
            return None
        ranges = {}
        for source, (start, stop) in self.reads.items():
            wanted = cut(self.only.get(source, NO_OFFSETS), start, stop)
            apart = np.diff(wanted) > GAP
            begins = wanted[np.concatenate(([True], apart))] if wanted.size else wanted
            ends = wanted[np.concatenate((apart, [True]))] if wanted.size else wanted
            ranges[source] = tuple((begin, end + 1) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        return ranges

    def cut_only(self, part: TaskPartition) -> Mapping[TopicPartition, Ints] | None:
        """Return the offsets to deliver among those that a task reads, None for all."""
        if self.only is None:
            return None
        found: dict[TopicPartition, list[Ints]] = {}
        for each in part.offset_ranges:
            found.setdefault(each.source, []).append(cut(self.only.get(each.source, NO_OFFSETS), each.start, each.stop))
        return {source: np.concatenate(parts) for source, parts in found.items()}


def cut(offsets: Ints, start: int, stop: int) -> Ints:
    """Return the offsets from `start` to `stop`. `offsets`: ascending."""
    low, high = np.searchsorted(offsets, (start, stop)).tolist()
    return offsets[low:high]


@dataclass(slots=True)
class Job:
    """The job of a stream. `deliver` is the function of its query's foreachBatch.

    `renew`: called between two batches; returns the consumers of the next one, None if they have not
    changed. `check_owner`: raises unless this driver still owns the consumers. `note`: called with the
    plan of each batch that has ended. `clock`: ms since 1970. `catch_up`: how many offsets
    a batch reads at most for a consumer that is behind the others.
    """

    spark: SparkSession
    name: str
    journal: Journal
    stream: StreamConfig
    consumers: JobConsumers
    renew: Callable[[], JobConsumers | None]
    check_owner: CheckOwner
    note: Callable[[BatchPlan], None]
    clock: Callable[[], int]
    catch_up: int
    _batch: threading.Lock = field(default_factory=threading.Lock)
    """Held while a batch is delivered."""
    _is_ending: bool = False
    _lasts: dict[str, tuple[object, Mapping[TopicPartition, Ints]]] = field(default_factory=dict)
    """Last messages of consumers that are given these, by name, each with what they were searched for."""

    def deliver(self, frame: DataFrame, batch: int) -> None:
        """Deliver one batch. Raises ForeignCheckpoint, JobTaken, JobEnded, and what its tasks raise."""
        with self._batch:
            if self._is_ending:
                raise JobEnded(f"job {self.name!r} ends before batch {batch}")
            self._deliver(frame, batch)

    def finish(self, patience_s: float) -> None:
        """Begin no further batch, and wait for the end of the one that is being delivered, at most `patience_s` seconds."""
        self._is_ending = True
        if self._batch.acquire(timeout=patience_s):
            self._batch.release()

    def _deliver(self, frame: DataFrame, batch: int) -> None:
        ends = dict[TopicPartition, tuple[int, int]]()
        for row in frame.collect():
            ends |= parse_range(row.ends)
        last = self.journal.last
        if (last is None or last.is_complete) and (renewed := self.renew()) is not None:
            self.consumers = renewed
        self.check_owner()
        self._check(batch, ends)
        if last is not None and last.batch == batch and last.is_complete:
            return
        # a batch that is run again keeps its time
        now = last.now if last is not None and last.batch == batch else self.clock()
        log_starts = self.consumers.find_log_starts()
        consumers = self._draft(batch, ends, Limit(self.catch_up, now, self.consumers.paces, log_starts))
        if last is None or self._has_work(last, ends, consumers):
            self._run(batch, ends, consumers, now, log_starts)

    def _check(self, batch: int, ends: Ends) -> None:
        """Raise ForeignCheckpoint unless this batch may follow the last one of the journal."""
        last, topic = self.journal.last, self.journal.topic
        if last is None or last.batch < batch:
            return
        if last.batch > batch:
            raise ForeignCheckpoint(
                f"the checkpoint begins batch {batch}, and job {self.name!r} has come to batch {last.batch} (topic {topic})."
                " It is the checkpoint of another job, or an old one. Use the job's own, or begin a job of another name"
            )
        if last.ends != ends:
            raise ForeignCheckpoint(
                f"batch {batch} of the checkpoint has other offsets than batch {batch} of job {self.name!r} (topic {topic}):"
                " it is the checkpoint of another job. Use the job's own, or begin a job of another name"
            )
        if not last.is_complete and (changed := self._find_changes(last)):
            raise ForeignCheckpoint(
                f"batch {batch} of job {self.name!r} was begun and has not ended, and since then {changed} has changed."
                " Restore that, run the job until the batch has ended (--once), and change it then"
            )

    def _find_changes(self, last: BatchPlan) -> str:
        if last.stream != digest(self.stream):
            return f"stream {self.stream.name!r}"
        now = self.consumers.fingerprints
        known = {name: each.fingerprint for name, each in last.consumers.items()}
        return ", ".join(
            f"consumer {name!r}" for name in sorted(now.keys() | known) if now.get(name) != known.get(name)
        )

    def _draft(self, batch: int, ends: Ends, limit: Limit) -> dict[str, ConsumerPlan]:
        """Return what the batch reads for each consumer, with the consumer's sequence before it."""
        prints, last = self.consumers.fingerprints, self.journal.last
        new = {name: replace(self.consumers.begins[name], fingerprint=text) for name, text in prints.items()}
        return draft_first(batch, ends, new, limit) if last is None else last.draft(batch, ends, new, limit)

    def _has_work(self, last: BatchPlan, ends: Ends, consumers: Mapping[str, ConsumerPlan]) -> bool:
        """Return whether a batch reads anything, or has other consumers than the last one."""
        if any(start < stop for start, stop in ends.values()) or any(each.reads for each in consumers.values()):
            return True
        return {name: each.fingerprint for name, each in last.consumers.items()} != self.consumers.fingerprints

    def _run(
        self,
        batch: int,
        ends: Ends,
        consumers: Mapping[str, ConsumerPlan],
        now: int,
        log_starts: Mapping[TopicPartition, int],
    ) -> None:
        """Scan, count, write the plan down, and write the deliveries."""
        last = self.journal.last
        scan = replace(self.consumers.scan, now=now)
        tasks = self._plan_tasks(ends, consumers, log_starts)
        found = self._scan(scan, tasks).persist()
        try:
            counts = count(found) if tasks else []
            sizes = len(tasks), len(self.consumers.configs), len(self.consumers.writers)
            tables = tabulate(counts, *sizes)
            numbered = number_consumers(last, batch, consumers, tables)
            if last is None or last.batch != batch:
                numbered = self._charge(numbered, ends, now, tables)
            numbered = self._count_lost(numbered, ends, log_starts, tasks, tables)
            plan = self._make_plan(batch, now, ends, numbered, tables)
            self._write_plan(plan)
            if counts:
                before = [each.before for each in numbered.values()]
                job = JobWrite(
                    scan, self.name, batch, plan.fingerprint, number(tables.deliveries, before), tables.by_writer,
                    self.consumers.writers, plan.writers,
                )  # fmt: skip
                self._write(found, job)
            self._write_plan(plan.complete())
            self.note(plan)
        finally:
            found.unpersist()

    def _charge(
        self, consumers: Mapping[str, ConsumerPlan], ends: Ends, now: int, tables: Tables
    ) -> dict[str, ConsumerPlan]:
        """Return the plans of a batch's consumers, with what it has for them counted for their limits."""
        paces, charged = self.consumers.paces, dict(consumers)
        for (name, each), size in zip(consumers.items(), tables.sizes.tolist(), strict=True):
            offsets = sum(stop - start for start, stop in (each.reads or ends).values())
            charged[name] = replace(each, pace=charge(paces.get(name, Pace()), each.pace, now, offsets, size))
        return charged

    def _write_plan(self, plan: BatchPlan) -> None:
        """Write a plan into the journal. Raises NotOwner, JobTaken."""
        self.check_owner()
        try:
            self.journal.write(plan)
        except JobTaken:
            # the owner to which a consumer went that has left the job has fenced this driver; or another driver has begun
            self.check_owner(now=True)
            self.journal.reopen()
            self.journal.write(plan)

    def _count_lost(
        self,
        consumers: Mapping[str, ConsumerPlan],
        ends: Ends,
        log_starts: Mapping[TopicPartition, int],
        tasks: Sequence[ScanTask],
        tables: Tables,
    ) -> dict[str, ConsumerPlan]:
        """Return the plans of a batch's consumers, with the offsets counted that retention had removed. Log these."""
        counted = dict(consumers)
        for at, (name, each) in enumerate(consumers.items()):
            lost = each.lost + each.find_readable(ends, log_starts)[1]
            lost += sum(int(tables.lost[number]) for number, task in enumerate(tasks) if at in task.consumers)
            if lost:
                log.error("retention passed the position", stream=self.stream.name, consumer=name, lost=lost)
            counted[name] = replace(each, lost=lost)
        return counted

    def _plan_tasks(
        self, ends: Ends, consumers: Mapping[str, ConsumerPlan], log_starts: Mapping[TopicPartition, int]
    ) -> tuple[ScanTask, ...]:
        """Return the scan tasks of a batch: one pass for all consumers that read it, and one for each group of those that
        catch up from the same offsets.

        What retention has removed of the batch's own offsets ends the job, unless failOnDataLoss is off. Consumers with
        offsets of their own go on at the log's start, so that their loss does not end the job for the others.
        """
        groups: dict[str, _Group] = {}
        for at, (name, each) in enumerate(consumers.items()):
            fails = self.consumers.scan.fails_on_loss and not each.reads
            reads = ends if fails else each.find_readable(ends, log_starts)[0]
            key = repr((fails, sorted(reads.items()), name if each.snapshot else ""))
            if key not in groups:
                groups[key] = _Group(reads, fails, self._find_lasts(at, name, each) if each.snapshot else None)
            groups[key].numbers.append(at)
        return tuple(
            ScanTask(part, tuple(group.numbers), group.fails, group.cut_only(part))
            for group in groups.values()
            if any(start < stop for start, stop in group.reads.values())
            for part in self.consumers.plan(
                group.reads, group.numbers, may_lose=not group.fails, ranges=group.find_ranges()
            )
        )

    def _find_lasts(self, at: int, name: str, consumer: ConsumerPlan) -> Mapping[TopicPartition, Ints]:
        """Return the offsets of a consumer's last messages, from where the batch reads for it. `at`: its number."""
        key = consumer.claim, consumer.since, sorted(consumer.snapshot.items())
        if name not in self._lasts or self._lasts[name][0] != key:
            offsets = {source: start for source, (start, _) in consumer.reads.items()}
            self._lasts[name] = key, self.consumers.find_lasts(at, offsets, consumer.snapshot)
        return self._lasts[name][1]

    def _scan(self, scan: JobScan, tasks: tuple[ScanTask, ...]) -> DataFrame:
        """Return the blocks of a batch."""
        shared = self.spark.sparkContext.broadcast((scan, tasks))
        ids = self.spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return ids.mapInArrow(partial(_run_scans, shared=shared), blocks.DDL)

    def _make_plan(
        self, batch: int, now: int, ends: Ends, consumers: Mapping[str, ConsumerPlan], tables: Tables
    ) -> BatchPlan:
        """Return the plan of a batch with these records."""
        wanted = np.flatnonzero(tables.by_writer.sum(axis=0)).tolist()
        outputs = [self.consumers.writers[number] for number in wanted]
        last, writers = self.journal.last, self.journal.assign_writers(outputs)
        left = {} if last is None else last.leave(consumers)
        return BatchPlan(
            batch, now, self.stream.name, digest(self.stream), ends, consumers, writers, left=left
        )  # fmt: skip

    def _write(self, found: DataFrame, job: JobWrite) -> None:
        """Have the write tasks write a batch. Raises OverlayError if one of them has not reported."""
        wanted = np.flatnonzero(job.counts.sum(axis=0)).tolist()
        places = np.full(len(job.writers), -1, np.int64)
        places[wanted] = np.arange(len(wanted))
        place = F.element_at(F.lit(places.tolist()), F.col("writer") + 1).cast("int")
        deliveries = found.where(F.col("writer") != blocks.TALLY)
        sorted_blocks = deliveries.repartitionById(len(wanted), place).sortWithinPartitions("writer", "task", "number")
        shared = self.spark.sparkContext.broadcast(job)
        written = sorted_blocks.mapInArrow(partial(_run_writes, shared=shared), writing.OUTCOME_DDL).collect()
        if sorted(row.writer for row in written) != wanted:
            raise OverlayError(
                f"batch {job.batch} of job {self.name!r}: writers {wanted} had something to write, and"
                f" {sorted(row.writer for row in written)} have reported"
            )
        there = [job.writers[row.writer] for row in written if row.records < 0]
        log.info("batch written", job=self.name, batch=job.batch, writers=len(wanted), there_already=len(there))


def count(found: DataFrame) -> list[Count]:
    """Return how many records each scan task has found for each consumer and writer."""
    rows = found.groupBy("task", "consumer", "writer", "dead").agg(
        F.sum("rows").alias("rows"), F.sum("size").alias("size")
    )
    return [Count(row.task, row.consumer, row.writer, row.dead, row["rows"], row["size"]) for row in rows.collect()]


def find_pace(config: ConsumerConfig) -> Pace:
    """Return the limits in a consumer's file."""
    return Pace(config.rate_limit_bps, -(-(config.pause_until or 0) // NS_PER_MS))


def name_of(config: ConsumerConfig) -> str:
    """Return the name of a consumer, by which plans know it: names are unique within a stream."""
    return config.id[1]


def digest(config: ConsumerConfig | StreamConfig) -> str:
    """Return a fingerprint of a config: equal for configs with equal meaning."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Shared = Broadcast[tuple[JobScan, tuple[ScanTask, ...]]]


def _run_scans(ids: Iterator[pa.RecordBatch], shared: Shared) -> Iterator[pa.RecordBatch]:
    """Run the scan tasks with these numbers; the function of an executor."""
    job, tasks = shared.value
    for batch in ids:
        for at in batch.column(0).to_pylist():
            yield from scan(job, at, tasks[at])


def _run_writes(found: Iterator[pa.RecordBatch], shared: Broadcast[JobWrite]) -> Iterator[pa.RecordBatch]:
    """Write the blocks of some writers; the function of an executor."""
    yield from write(shared.value, found)
