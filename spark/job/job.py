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

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from overlay.arrays import Ints
from overlay.config import StreamConfig
from overlay.errors import OverlayError
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.state.job_pace import Pace, charge
from overlay.state.job_plan import BatchPlan, ConsumerPlan, Limit, draft_first
from overlay.state.job_reads import Ends
from overlay.state.partitions import find_anew
from spark.plan import CREATED_AGAIN, DataLoss

from . import blocks, writing
from .ahead import UNKNOWN
from .batch import JobBatch, find_last, pass_over
from .checkpoint import ForeignCheckpoint, check_batch
from .consumers import JobConsumers, digest
from .journal import JobTaken, Journal
from .keeping import Only
from .numbering import Count, Tables, find_merges, number, number_consumers, number_merged, tabulate
from .ranges import parse_range
from .readers import JobScan
from .scanning import ScanTask, scan
from .tasks import NO_OFFSETS, BatchTasks, TaskPlanner, cut, cut_lasts
from .writing import JobWrite, write

log = get_logger(__name__)

T = TypeVar("T")


class JobEnded(OverlayError):
    """The query is being stopped, and begins no further batch. No action is needed."""


class CheckOwner(Protocol):
    """Raises NotOwner if a consumer is not the job's any more. `now`: ask Kafka in any case, also if it
    was asked a moment ago.
    """

    def __call__(self, *, now: bool = False) -> None: ...


class ExtendLedger(Protocol):
    """Gives sequences to all records before the offsets `ends`, as StreamKeeper.extend does. `only`: as there."""

    def __call__(self, ends: Mapping[TopicPartition, int], only: Only | None = None) -> object: ...


@dataclass(slots=True)
class Job:
    """The job of a stream. `deliver` is the function of its query's foreachBatch.

    `renew`: called between two batches; returns the consumers of the next one, None if they stay as they are.
    `check_owner`: raises unless this driver still owns the consumers. `note`: called with the plan of each batch that
    has been delivered, as it was before it was complete. `clock`: ms since 1970. `catch_up`: how many offsets a batch
    reads for a consumer that is behind the others, as the `limit` of overlay.state.job_reads.catch_up; `catch_up_bytes`: and
    how many bytes, by estimate, also of its last messages.
    `extend_ledger`: gives sequences to what a batch has. `index`: indexes what a batch has had. `is_start_given`: whether
    the options say where the first batch begins, for all consumers.
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
    extend_ledger: ExtendLedger
    index: Callable[[Ends], object]
    is_start_given: bool = False
    catch_up_bytes: int = 1 << 30
    _batch: threading.Lock = field(default_factory=threading.Lock)
    """Held while a batch is delivered."""
    _is_ending: bool = False
    _planner: TaskPlanner = field(default_factory=TaskPlanner)

    def deliver(self, frame: DataFrame, batch: int) -> None:
        """Deliver one batch. `frame`: its one row, the text that `parse_range` reads. Delivers nothing if the batch
        has ended before, or if there is no work in it. Raises OverlayError, such as ForeignCheckpoint, JobTaken,
        JobEnded and NotOwner, and what its tasks raise.
        """
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
        ends, ids = dict[TopicPartition, tuple[int, int]](), dict[str, str]()
        for row in frame.collect():
            ends, ids = parse_range(row.ends)
        last = self.journal.last
        if (last is None or last.is_complete) and (renewed := self.renew()) is not None:
            self.consumers = renewed
        self.check_owner()
        self._check(batch, ends, ids)
        if last is not None and last.batch == batch and last.is_complete:
            return
        if last is not None and last.batch == batch:
            # where it began then: failOnDataLoss says what becomes of offsets that retention has removed since
            ends = dict(last.ends)
        gone = self._find_gone(batch, ids)
        only = find_only(last, ends, ids, gone)
        last = find_last(last, batch, ids, ends, self.consumers.find_firsts(len(ends)))
        # a batch that is run again keeps its time
        now = last.now if last is not None and last.batch == batch else self.clock()
        self.extend_ledger({source: stop for source, (_, stop) in pass_over(ends, gone).items()}, only)
        begun = JobBatch(batch, now, ends, ids, self.consumers.look(), gone, last)
        consumers = self._draft(begun)
        if self._has_work(begun, consumers):
            self._run(begun, consumers)
            self.index(begun.readable)

    def _check(self, batch: int, ends: Ends, ids: Mapping[str, str]) -> None:
        """Raise ForeignCheckpoint unless this batch follows the last one of the journal, or is run again as it was begun."""
        last = self.journal.last
        may_jump = not self.consumers.scan.fails_on_loss
        check_batch(self.name, self.journal.topic, last, batch, ends, ids, may_jump=may_jump)
        if last is None or last.batch < batch:
            return
        if not last.is_complete and (changed := self._find_changes(last)):
            raise ForeignCheckpoint(
                f"batch {batch} of job {self.name!r} was begun and has not ended, and since then {changed} has changed."
                " Restore that, run the job until the batch has ended (--once), and change it then"
            )

    def _find_gone(self, batch: int, ids: Mapping[str, str]) -> set[str]:
        """Return the topics that were created again since a batch was begun. Raises DataLoss if there are any, unless
        failOnDataLoss is off. `ids`: Kafka's ids of the topics, by the batch."""
        gone = find_anew(ids, self.consumers.find_ids())
        for topic in sorted(gone):
            if self.consumers.scan.fails_on_loss:
                raise DataLoss(
                    f"topic {topic} was deleted and created again since batch {batch} of job {self.name!r} was begun: the"
                    " records of that batch are gone, and those of the new topic are others. With --option"
                    " failOnDataLoss=false the job ends the batch without them, and goes on with the new topic from its"
                    " start"
                )
            log.warning("records are lost", where=topic, what=CREATED_AGAIN, job=self.name, batch=batch)
        return gone

    def _find_changes(self, last: BatchPlan) -> str:
        if last.stream != digest(self.stream):
            return f"stream {self.stream.name!r}"
        now = self.consumers.fingerprints
        known = {name: each.fingerprint for name, each in last.consumers.items()}
        return ", ".join(
            f"consumer {name!r}" for name in sorted(now.keys() | known) if now.get(name) != known.get(name)
        )

    def _draft(self, batch: JobBatch) -> dict[str, ConsumerPlan]:
        """Return what the batch reads for each consumer, with the consumer's sequence before it."""
        log_starts = {source: first for source, (first, _) in batch.bounds.items()}
        limit = Limit(self.catch_up, batch.now, self.consumers.paces, log_starts, self.catch_up_bytes)
        prints = self.consumers.fingerprints
        new = {name: replace(self.consumers.begins[name], fingerprint=text) for name, text in prints.items()}
        first = partial(draft_first, is_start_given=self.is_start_given)
        draft = first if batch.last is None else batch.last.draft
        drafts = draft(batch.number, batch.ends, new, limit)
        if batch.is_again:
            return drafts
        if sizes := self._find_sizes(drafts):
            drafts = draft(batch.number, batch.ends, new, replace(limit, sizes=sizes))
        return self._cut_snapshots(batch, drafts)

    def _cut_snapshots(self, batch: JobBatch, drafts: Mapping[str, ConsumerPlan]) -> dict[str, ConsumerPlan]:
        """Return the drafts of a batch with less of their last messages for the consumers for which it would read more than
        `catch_up_bytes`."""
        found = dict(drafts)
        for at, (name, each) in enumerate(batch.leave_out_gone(drafts).items()):
            if not each.snapshot or not any(start < stop for start, stop in each.reads.values()):
                continue
            lasts = self._planner.find_lasts(self.consumers, at, name, each)
            spans = {
                s: (int(own[0]), stop)
                for s, (start, stop) in each.reads.items()
                if (own := cut(lasts.get(s, NO_OFFSETS), start, stop)).size
            }
            if spans:
                cuts = cut_lasts(lasts, each.reads, self.consumers.weigh(spans), self.catch_up_bytes)
                found[name] = replace(drafts[name], reads={**drafts[name].reads, **{s: cuts[s] for s in spans}})
        return found

    def _find_sizes(self, drafts: Mapping[str, ConsumerPlan]) -> dict[str, float]:
        """Return the bytes of each offset that a batch reads for a consumer alone, by name, for those for which it would read
        more than `catch_up_bytes`."""
        sizes = dict[str, float]()
        for name, each in drafts.items():
            spans = {source: stop - start for source, (start, stop) in each.reads.items() if start < stop}
            if not spans or each.snapshot:
                continue
            weights = self.consumers.weigh({source: each.reads[source] for source in spans})
            size = sum(count * weights[source] for source, count in spans.items())
            if size > self.catch_up_bytes:
                sizes[name] = size / sum(spans.values())
        return sizes

    def _has_work(self, batch: JobBatch, consumers: Mapping[str, ConsumerPlan]) -> bool:
        """Return whether a batch is the job's first one, reads anything, has a consumer with offsets of its own (even if
        none of them are to be read now), or has other consumers, other configs of them, or topics with other ids than the
        last one.
        """
        last = batch.last
        if last is None or any(start < stop for start, stop in batch.ends.values()):
            return True
        if any(each.reads for each in consumers.values()) or batch.known_ids != last.ids:
            return True
        return {name: each.fingerprint for name, each in last.consumers.items()} != self.consumers.fingerprints

    def _run(self, batch: JobBatch, consumers: Mapping[str, ConsumerPlan]) -> None:
        """Scan, count, write the plan down, write the deliveries, and write the plan down as complete. `consumers`: by
        name, what the batch reads for each.
        """
        job, last = self.consumers, batch.last
        if last is not None and batch.is_again:
            job = job.place_by(last.outputs)
        scan = make_scan(job, batch, consumers)
        planned = self._planner.plan(job, batch.readable, batch.leave_out_gone(consumers), batch.bounds)
        tasks = planned.tasks
        with ExitStack() as stack:
            found = self._scan(scan, tasks, stack).persist()
            stack.callback(found.unpersist)
            counts = count(found) if tasks else []
            self._check_scan(batch)
            tables = tabulate(counts, len(tasks), len(job.configs), len(job.writers))
            numbered = number_consumers(batch.last, batch.number, consumers, tables)
            if not batch.is_again:
                numbered = self._charge(numbered, batch, tables)
            numbered = self._count_lost(numbered, batch, tasks, tables)
            ahead, numbered = self._find_ahead(batch, numbered, planned, tables)
            plan = self._make_plan(batch, numbered, tables, job.writers)
            is_merged = batch.is_merged(merges := find_merges(counts))
            plan = replace(plan, log_ends=planned.log_ends, outputs=job.outputs, is_merged=is_merged)
            self._write_plan(plan)
            if counts:
                first, merges = [each.before for each in numbered.values()], merges if is_merged else {}
                before = number(tables.deliveries, first)
                number_merged(before, ahead, merges, first, planned.has_gaps(len(first)))
                work = JobWrite(
                    scan, self.name, batch.number, plan.fingerprint, before, ahead, tables.by_writer, job.writers,
                    plan.writers, merges,
                )  # fmt: skip
                self._write(found, work, stack)
            self._write_plan(plan.complete(self.clock()))
            self.journal.forget_old()
            self.note(plan)

    def _share(self, value: T, stack: ExitStack) -> Broadcast[T]:
        """Send a value to the executors, which have it until `stack` ends."""
        shared = self.spark.sparkContext.broadcast(value)
        stack.callback(shared.destroy)
        return shared

    def _check_scan(self, batch: JobBatch) -> None:
        """Raise DataLoss if a topic was created again while the scan tasks read the batch: they may have read the new one."""
        if anew := self._find_gone(batch.number, batch.ids) - set(batch.gone):
            raise DataLoss(
                f"topics {', '.join(sorted(anew))} were deleted and created again while batch {batch.number} of job"
                f" {self.name!r} was read. Start the job again: it ends the batch without them"
            )

    def _charge(
        self, consumers: Mapping[str, ConsumerPlan], batch: JobBatch, tables: Tables
    ) -> dict[str, ConsumerPlan]:
        """Return the plans of a batch's consumers, with what it has for them counted for their limits."""
        paces, charged = self.consumers.paces, dict(consumers)
        for (name, each), size in zip(consumers.items(), tables.sizes.tolist(), strict=True):
            offsets = sum(stop - start for start, stop in (each.reads or batch.ends).values())
            charged[name] = replace(each, pace=charge(paces.get(name, Pace()), each.pace, batch.now, offsets, size))
        return charged

    def _write_plan(self, plan: BatchPlan) -> None:
        """Write a plan into the journal; if this driver was fenced and still owns its consumers, open the journal
        again first. Raises OverlayError, such as NotOwner and JobTaken.
        """
        self.check_owner()
        try:
            self.journal.write(plan)
        except JobTaken:
            # the owner to which a consumer went that has left the job has fenced this driver; or another driver has begun
            self.check_owner(now=True)
            self.journal.reopen()
            self.journal.write(plan)

    def _find_ahead(
        self, batch: JobBatch, consumers: Mapping[str, ConsumerPlan], planned: BatchTasks, tables: Tables
    ) -> tuple[Ints, dict[str, ConsumerPlan]]:
        """Return how many records are ahead of each consumer before each task (int64 [tasks, consumers]), and the plans of
        the batch's consumers with how many follow the batch in `ahead`."""
        last = batch.last
        left = np.full(len(consumers), UNKNOWN, np.int64)
        if last is not None and last.log_ends == planned.log_ends:
            known = [last.consumers.get(name) for name in consumers]
            left = np.array([UNKNOWN if each is None else each.ahead for each in known], np.int64)
        if batch.is_again:
            # what a batch that is run again has left ahead is in its plan
            planned = planned.keep(left)
        ahead, behind = planned.find_ahead(tables.scanned, left)
        plans = zip(consumers.items(), behind.tolist(), strict=True)
        return ahead, {name: replace(each, ahead=count) for (name, each), count in plans}

    def _count_lost(
        self, consumers: Mapping[str, ConsumerPlan], batch: JobBatch, tasks: Sequence[ScanTask], tables: Tables
    ) -> dict[str, ConsumerPlan]:
        """Return the plans of a batch's consumers, with the offsets counted that retention had removed, or that are gone
        with their topic. Log these."""
        counted, log_starts = dict(consumers), batch.find_log_starts()
        for at, (name, each) in enumerate(consumers.items()):
            scanned = sum(int(tables.lost[number]) for number, task in enumerate(tasks) if at in task.consumers)
            counted[name] = each.count_lost(batch.ends, log_starts, scanned)
            if lost := counted[name].lost:
                # those of a topic that is gone are among them
                what = "records are gone with their topic" if batch.gone else "retention passed the position"
                log.error(what, stream=self.stream.name, consumer=name, lost=lost)
        return counted

    def _scan(self, scan: JobScan, tasks: tuple[ScanTask, ...], stack: ExitStack) -> DataFrame:
        """Return the blocks and tallies of a batch, as a frame whose scan tasks run when it is used, before `stack` ends."""
        shared = self._share((scan, tasks), stack)
        ids = self.spark.range(0, len(tasks), 1, max(1, len(tasks)))
        return ids.mapInArrow(partial(_run_scans, shared=shared), blocks.DDL)

    def _make_plan(
        self,
        batch: JobBatch,
        consumers: Mapping[str, ConsumerPlan],
        tables: Tables,
        writers: Sequence[TopicPartition],
    ) -> BatchPlan:
        """Return the plan of a batch with these records, without `log_ends` and `outputs`. `writers`: by number. Adds
        partitions to the job's state topic if its writers need more.
        """
        wanted = np.flatnonzero(tables.by_writer.sum(axis=0)).tolist()
        last, states = batch.last, self.journal.assign_writers([writers[number] for number in wanted])
        left = {} if last is None else last.leave(consumers)
        return BatchPlan(
            batch.number, batch.now, self.stream.name, digest(self.stream), batch.ends, consumers, states, left=left,
            owner=self.spark.sparkContext.applicationId, ended=0 if last is None else last.ended, ids=batch.known_ids,
        )  # fmt: skip

    def _write(self, found: DataFrame, job: JobWrite, stack: ExitStack) -> None:
        """Have the write tasks write a batch. Raises OverlayError if one of them has not reported."""
        wanted = np.flatnonzero(job.counts.sum(axis=0)).tolist()
        places = np.full(len(job.writers), -1, np.int64)
        places[wanted] = np.arange(len(wanted))
        place = F.element_at(F.lit(places.tolist()), F.col("writer") + 1).cast("int")
        deliveries = found.where(F.col("writer") >= 0)
        # one writer takes the blocks from where the scan has left them, without a shuffle
        divided = deliveries.repartitionById(len(wanted), place) if len(wanted) > 1 else deliveries.coalesce(1)
        order = ["place"] if job.merges else []
        sorted_blocks = divided.sortWithinPartitions("writer", *order, "task", "number")
        shared = self._share(job, stack)
        written = sorted_blocks.mapInArrow(partial(_run_writes, shared=shared), writing.OUTCOME_DDL).collect()
        if sorted(row.writer for row in written) != wanted:
            raise OverlayError(
                f"batch {job.batch} of job {self.name!r}: writers {wanted} had something to write, and"
                f" {sorted(row.writer for row in written)} have reported"
            )
        there = [job.writers[row.writer] for row in written if row.records < 0]
        log.info("batch written", job=self.name, batch=job.batch, writers=len(wanted), there_already=len(there))


def find_only(last: BatchPlan | None, ends: Ends, ids: Mapping[str, str], gone: Collection[str] = ()) -> Only | None:
    """Return the partition that the stream had alone before this batch, and up to where it was read.
    None for a new job, if the stream had several partitions before, if it still has one, and if the topic of that one was
    created again since.

    `last`: the last plan of the journal, also with what it says of topics that were created again since: without that, a
    stream of two partitions could seem to have had one. `ids`: Kafka's ids of the topics, by the batch. `gone`: the topics
    that were created again since the batch was begun.
    """
    if last is None or len(last.ends) != 1 or len(ends) == 1:
        return None
    ((source, (_, stop)),) = last.ends.items()
    return None if source[0] in find_anew(last.ids, ids).union(gone) else (source, stop)


def count(found: DataFrame) -> list[Count]:
    """Return the records and bytes that each scan task has found for each consumer and writer, with dead letters
    counted apart, and the tallies and runs of the tasks. This runs the scan tasks.
    """
    keys = ["task", "consumer", "writer", "dead"]
    # added up here: Spark would shuffle these few rows, which takes longer
    runs = F.when(F.col("writer") == blocks.RUNS, F.col("data")).alias("runs")
    told = found.select(*keys, "rows", "size", runs).toArrow()
    is_runs = pc.equal(told["writer"], blocks.RUNS)
    sums = told.filter(pc.invert(is_runs)).group_by(keys).aggregate([("rows", "sum"), ("size", "sum")])
    counts = [Count(*(row[name] for name in (*keys, "rows_sum", "size_sum"))) for row in sums.to_pylist()]
    return counts + [Count(*row.values()) for row in told.filter(is_runs).to_pylist()]


def make_scan(job: JobConsumers, batch: JobBatch, plans: Mapping[str, ConsumerPlan]) -> JobScan:
    """Return what the scan tasks of a batch have to know. `plans`: of the job's consumers, in the order of their numbers."""
    # a floor is that of the plan: one of a topic that was created again since does not count
    pairs = zip(job.scan.readers, plans.values(), strict=True)
    readers = tuple(replace(reader, floors=each.floors) for reader, each in pairs)
    return replace(job.scan, now=batch.now, readers=readers)


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
