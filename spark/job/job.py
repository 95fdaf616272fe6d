"""A job: the consumers of one stream as one Spark query, each delivery committed exactly once.

    Spark's offset log ──► scan tasks ──blocks──► write tasks ──► outputs
    from where to where    many for a partition   one an output partition, one transaction each
                                  │ counts             ▲ sequences
                                  └───► the driver ────┘ plan in the job's state topic

What a batch number means never changes. Its offsets are in Spark's offset log. Once it is known how
many records it has, its plan is in the journal, before any of them is sent (journal.py). A batch
that is run again, after a crash of the driver or of executors, writes only the output partitions
whose writers have not committed it (writing.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

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
from spark.partitions import TaskPartition

from . import blocks, writing
from .journal import Journal
from .numbering import Count, find_sequences, number, tabulate
from .ranges import parse_range
from .readers import JobScan
from .records import BatchPlan, Ends
from .scanning import ScanTask, scan
from .writing import JobWrite, write

log = get_logger(__name__)


class ForeignCheckpoint(OverlayError):
    """The checkpoint and the job's state topic do not belong together. The operator chooses the right one."""


Plan = Callable[[Ends, Sequence[int]], list[TaskPartition]]
"""Returns the tasks that read some offsets for some consumers, by their numbers."""


@dataclass(slots=True)
class Job:
    """The job of a stream. `deliver` is the function of its query's foreachBatch.

    `readers`: the consumers, in the order of `configs`. `note`: called with the records delivered
    to each consumer, by name. `writers`: every output partition, by the number that blocks have for
    it. `clock`: ms since 1970. `floors`: by consumer and partition, the offset where it begins.
    """

    spark: SparkSession
    name: str
    journal: Journal
    stream: StreamConfig
    configs: Sequence[ConsumerConfig]
    scan: JobScan
    plan: Plan
    check_owner: Callable[[], None]
    note: Callable[[Mapping[str, int]], None]
    clock: Callable[[], int]
    writers: tuple[TopicPartition, ...]
    floors: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)

    def deliver(self, frame: DataFrame, batch: int) -> None:
        """Deliver one batch. Raises ForeignCheckpoint, JobTaken, and what its tasks raise."""
        self.check_owner()
        ends = dict[TopicPartition, tuple[int, int]]()
        for row in frame.collect():
            ends |= parse_range(row.ends)
        self._check(batch, ends)
        last = self.journal.last
        if last is not None and last.batch == batch and last.is_complete:
            return
        if any(start < stop for start, stop in ends.values()):
            self._run(batch, ends)

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
        now = {name_of(config): digest(config) for config in self.configs}
        known = {name: each.fingerprint for name, each in last.consumers.items()}
        return ", ".join(
            f"consumer {name!r}" for name in sorted(now.keys() | known) if now.get(name) != known.get(name)
        )

    def _run(self, batch: int, ends: Ends) -> None:
        """Scan, count, write the plan down, and write the deliveries."""
        last = self.journal.last
        is_again = last is not None and last.batch == batch
        scan = replace(self.scan, now=last.now if is_again and last is not None else self.clock())
        tasks = self._plan_tasks(batch, ends)
        found = self._scan(scan, tasks).persist()
        try:
            counts = count(found) if tasks else []
            by_consumer, by_writer = tabulate(counts, len(tasks), len(self.configs), len(self.writers))
            plan = self._make_plan(batch, scan.now, ends, by_consumer.sum(axis=0).tolist(), by_writer.sum(axis=0))
            self.check_owner()
            self.journal.write(plan)
            if counts:
                before = [plan.consumers[name_of(config)].before for config in self.configs]
                job = JobWrite(
                    scan, self.name, batch, plan.fingerprint, number(by_consumer, before), by_writer,
                    self.writers, plan.writers,
                )  # fmt: skip
                self._write(found, job)
            self.journal.write(plan.complete())
            self.note({name: each.last - each.before for name, each in plan.consumers.items()})
        finally:
            found.unpersist()

    def _plan_tasks(self, batch: int, ends: Ends) -> tuple[ScanTask, ...]:
        """Return the scan tasks of a batch: first those of consumers that begin before it, then one pass for all."""
        last = self.journal.last
        tasks: list[ScanTask] = []
        for at, config in enumerate(self.configs):
            known = last.consumers.get(name_of(config)) if last is not None else None
            if last is None or (known is not None and known.since < batch):
                continue
            floors = self.floors[name_of(config)]
            behind = {source: (floors.get(source, start), start) for source, (start, _) in ends.items()}
            behind = {source: span for source, span in behind.items() if span[0] < span[1]}
            if behind:
                tasks += (ScanTask(part, (at,)) for part in self.plan(behind, (at,)))
        everyone = tuple(range(len(self.configs)))
        return (*tasks, *(ScanTask(part, everyone) for part in self.plan(ends, everyone)))

    def _scan(self, scan: JobScan, tasks: tuple[ScanTask, ...]) -> DataFrame:
        """Return the blocks of a batch."""
        shared = self.spark.sparkContext.broadcast((scan, tasks))
        ids = self.spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return ids.mapInArrow(partial(_run_scans, shared=shared), blocks.DDL)

    def _make_plan(self, batch: int, now: int, ends: Ends, found: Sequence[int], by_writer: Ints) -> BatchPlan:
        """Return the plan of a batch. `found`: records of each consumer; `by_writer`: of each writer."""
        names = [name_of(config) for config in self.configs]
        fingerprints = {name: digest(config) for name, config in zip(names, self.configs, strict=True)}
        consumers = find_sequences(self.journal.last, batch, fingerprints, dict(zip(names, found, strict=True)))
        consumers = {name: replace(each, floors=self.floors[name]) for name, each in consumers.items()}
        outputs = [self.writers[number] for number in np.flatnonzero(by_writer).tolist()]
        return BatchPlan(batch, now, digest(self.stream), ends, consumers, self.journal.assign_writers(outputs))

    def _write(self, found: DataFrame, job: JobWrite) -> None:
        """Have the write tasks write a batch. Raises OverlayError if one of them has not reported."""
        wanted = np.flatnonzero(job.counts.sum(axis=0)).tolist()
        places = np.full(len(self.writers), -1, np.int64)
        places[wanted] = np.arange(len(wanted))
        place = F.element_at(F.lit(places.tolist()), F.col("writer") + 1).cast("int")
        sorted_blocks = found.repartitionById(len(wanted), place).sortWithinPartitions("writer", "task", "number")
        shared = self.spark.sparkContext.broadcast(job)
        written = sorted_blocks.mapInArrow(partial(_run_writes, shared=shared), writing.OUTCOME_DDL).collect()
        if sorted(row.writer for row in written) != wanted:
            raise OverlayError(
                f"batch {job.batch} of job {self.name!r}: writers {wanted} had something to write, and"
                f" {sorted(row.writer for row in written)} have reported"
            )
        there = [self.writers[row.writer] for row in written if row.records < 0]
        log.info("batch written", job=self.name, batch=job.batch, writers=len(wanted), there_already=len(there))


def count(found: DataFrame) -> list[Count]:
    """Return how many records each scan task has found for each consumer and writer."""
    rows = found.groupBy("task", "consumer", "writer").agg(F.sum("rows").alias("rows")).collect()
    return [(row.task, row.consumer, row.writer, row["rows"]) for row in rows]


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
