"""What a driver does with a batch before its scan: without Spark and without Kafka."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql.types import StructType
from structlog.testing import capture_logs

from overlay.client.read.bounds import ReadBounds
from overlay.client.read.offset_ranges import OffsetRange
from overlay.config import ConsumerConfig
from overlay.config.consumer import DeliverPolicy
from overlay.config.stream import StreamConfig
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_plan_codec import decode_plan, encode_plan
from overlay.state.job_reads import Ends
from overlay.state.partitions import Sources
from spark.job.batch import JobBatch, find_last
from spark.job.blocks import RUNS
from spark.job.checkpoint import ForeignCheckpoint
from spark.job.consumers import JobConsumers, digest
from spark.job.job import Job, JobEnded, find_only
from spark.job.numbering import Count
from spark.job.ranges import RangesReader, parse_range
from spark.job.readers import JobReader, JobScan
from spark.job.runs import Runs
from spark.job.scanning import ScanTask
from spark.job.start import spell_start
from spark.job.tasks import BatchTasks
from spark.job.writing import JobWrite
from spark.options import read_options
from spark.plan import DataLoss
from spark.stream import OverlayStreamReader, write_position

T, U = ("t", 0), ("u", 0)
STREAM = StreamConfig.model_validate({"name": "S", "topics": ("t", "u")})
ENDS = {T: (10, 20), U: (0, 3)}
IDS = MappingProxyType({"t": "T1", "u": "U1"})
LAST = BatchPlan(4, 1_000, "S", digest(STREAM), ENDS, {}, {}, is_complete=True, log_ends={T: 20, U: 3}, ids=IDS)


@dataclass
class Log:
    """The ids of the topics that there are now, and what has been asked of the job's parts since."""

    ids: Mapping[str, str]
    extended: list[dict[Any, int]]


def make_job(last: BatchPlan | None, log: Log, *, fails_on_loss: bool = True) -> Job:
    """A job without consumers, whose ledger cannot be extended, so that a batch ends there."""

    def refuse(ends: Mapping[Any, int], only: object = None) -> None:
        log.extended.append(dict(ends))
        raise TimeoutError("the scan would begin")

    nothing = cast("Any", None)
    consumers = JobConsumers(
        (), JobScan({}, "o", STREAM, (), 0, fails_on_loss), nothing, nothing, lambda: log.ids, nothing, nothing, nothing, False,
        (), {},
    )  # fmt: skip
    journal = cast("Any", SimpleNamespace(last=last, topic="o.spark.J"))
    return Job(
        nothing, "J", journal, STREAM, consumers, lambda: None, lambda *, now=False: None, nothing, lambda: 5_000, 10,
        refuse, nothing,
    )  # fmt: skip


def make_frame(ends: Ends, ids: Mapping[str, str]) -> Any:
    """A frame with the row of a batch."""
    text = json.dumps({"ends": [[*source, *span] for source, span in ends.items()], "ids": dict(ids)})
    return SimpleNamespace(collect=lambda: [SimpleNamespace(ends=text)])


def test_a_job_that_ends_begins_no_batch() -> None:
    log = Log(IDS, [])
    job = make_job(LAST, log)
    job.finish(1.0)
    with pytest.raises(JobEnded, match="job 'J' ends before batch 5"):
        job.deliver(make_frame({T: (20, 29), U: (3, 3)}, IDS), 5)
    assert not log.extended


@pytest.mark.parametrize(
    "last", [replace(LAST, is_complete=False), replace(LAST, batch=3, ends={T: (0, 10), U: (0, 0)})]
)
def test_a_batch_that_was_begun_before_its_topic_was_created_again(last: BatchPlan) -> None:
    """Whether or not it has a plan. If the loss is allowed, it has nothing of that topic."""
    log = Log({**IDS, "t": "T2"}, [])
    with pytest.raises(
        DataLoss, match=r"topic t was deleted and created again since batch 4 of job 'J' .*failOnDataLoss"
    ):
        make_job(last, log).deliver(make_frame(ENDS, IDS), 4)
    assert not log.extended
    with pytest.raises(TimeoutError, match="scan would begin"):
        make_job(last, log, fails_on_loss=False).deliver(make_frame(ENDS, IDS), 4)
    assert log.extended == [{T: 0, U: 3}]


def test_a_batch_of_topics_that_are_still_there() -> None:
    """A topic that is gone altogether is told when the log is looked at; one of an earlier checkpoint has no id."""
    for ids, now in ((IDS, IDS), (IDS, {"u": "U1"}), ({}, {"t": "T2", "u": "U1"})):
        log = Log(now, [])
        with pytest.raises(TimeoutError, match="scan would begin"):
            make_job(replace(LAST, is_complete=False), log).deliver(make_frame(ENDS, ids), 4)
        assert log.extended == [{T: 20, U: 3}]


def test_a_batch_that_is_run_again_begins_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although retention has passed the first offset of a partition that came with it."""
    begun: list[JobBatch] = []

    def draft(self: Job, batch: JobBatch) -> None:
        begun.append(batch)
        raise TimeoutError("the scan would begin")

    monkeypatch.setattr(Job, "_draft", draft)
    job = make_job(replace(LAST, is_complete=False), Log(IDS, []))
    job.extend_ledger = lambda ends, only=None: None
    job.consumers = replace(job.consumers, look=lambda: {T: (15, 30), U: (2, 9)})
    with pytest.raises(TimeoutError, match="scan would begin"):
        job.deliver(make_frame({T: (15, 20), U: (2, 3)}, IDS), 4)
    assert [batch.ends for batch in begun] == [ENDS]


def test_what_catches_up_is_bounded_by_bytes() -> None:
    """A partition of large records is read in smaller parts; one that needs no limit has none."""
    ends: Ends = {T: (1_000, 1_000), U: (1_000, 1_000)}
    plans = {name: ConsumerPlan("", 0, 0, 0, {T: 0, U: 1_000}) for name in ("small", "large")}
    asked = list[Ends]()

    def weigh(spans: Ends) -> dict[TopicPartition, float]:
        asked.append(spans)
        return dict.fromkeys(spans, 1.0 if len(asked) == 1 else 1 << 20)

    job = make_job(LAST, Log(IDS, []))
    job.catch_up, job.catch_up_bytes = 500, 100 << 20
    job.consumers = replace(
        job.consumers,
        weigh=weigh,
        configs=tuple(ConsumerConfig.model_construct(stream="S", durable_name=name) for name in plans),
        begins=plans,
    )
    batch = JobBatch(5, 1, ends, IDS, {T: (0, 1_000), U: (0, 1_000)}, (), LAST)
    drafts = job._draft(batch)
    assert {name: each.reads[T] for name, each in drafts.items()} == {"small": (0, 500), "large": (0, 100)}
    assert asked == [{T: (0, 500)}, {T: (0, 500)}]


def test_last_messages_are_bounded_by_bytes() -> None:
    """A batch reads a part of them, also of those of a partition with few, and the next one goes on behind that. It counts what
    lies between two that are fetched together, and not what lies between others."""
    stops = {T: 1_000, U: 400_000}
    lasts = {T: np.arange(5, 1_000, 10), U: np.array([7, 200_000, 399_999])}
    weighed = list[Ends]()

    def weigh(spans: Ends) -> dict[TopicPartition, float]:
        weighed.append(spans)
        return dict.fromkeys(spans, 1_000.0)

    begin = ConsumerPlan("", 0, 0, 0, dict.fromkeys(stops, 0), snapshot=stops)
    job = make_job(None, Log(IDS, []))
    job.catch_up_bytes = 201_000
    job.consumers = replace(
        job.consumers,
        weigh=weigh,
        find_lasts=lambda number, offsets, snapshot: lasts,
        configs=(ConsumerConfig.model_construct(stream="S", durable_name="c"),),
        begins={"c": begin},
    )
    at, read, last = (
        dict.fromkeys(stops, 0),
        list[int](),
        replace(LAST, consumers={}, ends=dict.fromkeys(stops, (0, 0))),
    )
    for number in range(5, 12):
        ends: Ends = {source: (stop, stop) for source, stop in stops.items()}
        drafts = job._draft(JobBatch(number, 1, ends, IDS, {s: (0, stop) for s, stop in stops.items()}, (), last))
        reads = drafts["c"].reads
        assert {source: start for source, (start, _) in reads.items()} == at
        at = {source: stop for source, (_, stop) in reads.items()}
        read.append(reads[T][1])
        last = replace(last, batch=number, ends=ends, consumers=drafts)
        if at == stops:
            break
    assert read == [205, 405, 605, 815, 1_000]
    assert weighed[0] == {T: (5, 1_000), U: (7, 400_000)}


@dataclass(frozen=True)
class Output:
    topic: str
    partitions: int


@dataclass
class Deliveries:
    """The plans and the writes of a job whose batch has records of two partitions, 3 of each. `has_ledger`: whether these have
    sequences, which take turns."""

    has_ledger: bool
    plans: list[BatchPlan] = field(default_factory=list)
    writes: list[JobWrite] = field(default_factory=list)

    def count(self, _: object) -> list[Count]:
        counts = [Count(task, 0, writer, False, rows, 10) for task, writer, rows in ((0, 0, 2), (0, 1, 1), (1, 1, 3))]
        if self.has_ledger:
            for task in (0, 1):
                runs = Runs()
                for place, records in ((1 + 2 * task, 2), (5 + task, 1)):
                    runs.add(place + np.arange(records), np.arange(records), np.arange(records))
                counts.append(Count(task, 0, RUNS, False, 0, 0, runs.to_bytes()))
        return counts

    def make_job(self, monkeypatch: pytest.MonkeyPatch, last: BatchPlan) -> Job:
        nothing = cast("Any", None)
        frame: Any = SimpleNamespace(persist=lambda: frame, unpersist=lambda: None)
        unknown = np.full(1, -1, np.int64)
        tasks = tuple(ScanTask(nothing, (0,)) for _ in (0, 1))
        planned = BatchTasks(tasks, unknown, unknown, unknown, unknown, {T: 20, U: 3})
        monkeypatch.setattr(Job, "_scan", lambda *_: frame)
        monkeypatch.setattr(Job, "_write", lambda job, found, work, stack: self.writes.append(work))
        monkeypatch.setattr("spark.job.job.count", self.count)
        job = make_job(last, Log(IDS, []))
        job.spark = cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app")))
        job.note = lambda plan: None
        job._planner = cast("Any", SimpleNamespace(plan=lambda *_: planned))
        of_journal = {"last": last, "write": self.plans.append, "forget_old": lambda: None}
        job.journal = cast(
            "Any", SimpleNamespace(assign_writers=lambda outputs: dict.fromkeys(outputs, 1), **of_journal)
        )
        reader = JobReader(("S", "c"), (), None, None, cast("Any", Output("out", 2)), 0)
        job.consumers = replace(
            job.consumers,
            configs=(ConsumerConfig.model_construct(stream="S", durable_name="c"),),
            scan=replace(job.consumers.scan, readers=(reader,)),
            writers=(("out", 0), ("out", 1)),
        )
        return job

    def run(self, monkeypatch: pytest.MonkeyPatch, last: BatchPlan) -> tuple[BatchPlan, list[int], bool]:
        """Run batch 5. Return its plan, the sequences before the tasks, and whether a writer merges the blocks."""
        job = self.make_job(monkeypatch, last)
        batch = JobBatch(5, 1, ENDS, IDS, ENDS, (), last)
        job._run(batch, {"c": ConsumerPlan("f", 0, 0, 5)})
        (write,) = self.writes
        return self.plans[0], write.before[:, 0].tolist(), bool(write.merges)


def test_a_batch_that_is_run_again_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs that it has not written yet would else get sequences that the others have. It had the order of the tasks
    without a ledger, and by an earlier version."""
    plan, before, merges = Deliveries(True).run(monkeypatch, LAST)
    assert (plan.is_merged, before, merges) == (True, [0, 0], True)
    assert Deliveries(True).run(monkeypatch, decode_plan(encode_plan(plan)))[1:] == ([0, 0], True)
    # the fingerprint tells an earlier version, which knows one order only, that a committed part has another
    assert plan.fingerprint != replace(plan, is_merged=False).fingerprint
    plan, before, merges = Deliveries(False).run(monkeypatch, LAST)
    assert (plan.is_merged, before, merges) == (False, [0, 3], False)
    record = json.loads(encode_plan(plan))
    del record["is_merged"]
    for known in (plan, decode_plan(json.dumps(record).encode())):
        again, before, merges = Deliveries(True).run(monkeypatch, known)
        assert (again.is_merged, before, merges) == (False, [0, 3], False)
        assert again.fingerprint == known.fingerprint


def test_a_batch_that_has_ended_is_not_begun_again() -> None:
    """Not even to look whether its topics are still there. With other topics it is another batch."""
    log = Log({**IDS, "t": "T2"}, [])
    make_job(LAST, log).deliver(make_frame(ENDS, IDS), 4)
    with pytest.raises(
        ForeignCheckpoint, match=r"batch 4 of the checkpoint is one of topics that were created again \(t\)"
    ):
        make_job(LAST, log, fails_on_loss=False).deliver(make_frame(ENDS, log.ids), 4)
    assert not log.extended


def test_the_plan_that_a_batch_follows() -> None:
    again = {**IDS, "t": "T2"}
    next: Ends = {T: (20, 30), U: (3, 3)}
    assert find_last(None, 0, IDS, next) is None
    assert find_last(LAST, 5, IDS, next) is LAST and find_last(LAST, 4, again, ENDS) is LAST
    assert find_last(LAST, 5, again, {T: (0, 5), U: (3, 3)}) == LAST.begin_anew({"t"})
    assert find_last(replace(LAST, ids={}), 5, again, next) == replace(LAST, ids={})
    assert find_last(LAST, 5, IDS, {T: (15, 18), U: (3, 3)}) == LAST.cut_off({T: 15})


def test_a_log_that_has_lost_its_end_has_other_records_there() -> None:
    """They are delivered to every consumer: to one that has begun beyond that, one that reads for itself, and one that comes
    back."""
    plans = {
        "late": ConsumerPlan("f", 0, 0, 0, {T: 20}),
        "own": ConsumerPlan("f", 0, 0, 0, {T: 0}, reads={T: (12, 19)}),
    }
    left = {"back": JobPosition({T: 20, U: 3}, 7)}
    names = ("late", "own", "back")
    job = make_job(replace(LAST, consumers=plans, left=left), Log(IDS, []))
    job.consumers = replace(
        job.consumers,
        configs=tuple(ConsumerConfig.model_construct(stream="S", durable_name=name) for name in names),
        begins={name: ConsumerPlan("", 0, 0, 0, {T: 20}) for name in names},
        weigh=lambda spans: dict.fromkeys(spans, 1.0),
    )
    ends: Ends = {T: (15, 17), U: (3, 3)}
    batch = JobBatch(5, 1, ends, IDS, {T: (0, 17), U: (0, 3)}, (), find_last(job.journal.last, 5, IDS, ends))
    drafts = job._draft(batch)
    assert {name: each.reads.get(T, ends[T]) for name, each in drafts.items()} == {
        "late": (15, 17), "own": (15, 17), "back": (15, 17),
    }  # fmt: skip
    assert {name: each.floors[T] for name, each in drafts.items()} == {"late": 15, "own": 0, "back": 15}


def test_a_consumer_begins_at_its_start_sequence_also_when_the_log_has_lost_its_end() -> None:
    """The sequence may be above the end of the log, or the consumer may have passed it."""
    firsts = {"waits": 50, "passed": 12, "back": 50, "new": 0}
    plans = {name: ConsumerPlan("f", 0, 0, 0, {T: at}) for name, at in firsts.items() if name != "back"}
    # "away" is not in the files any more, so nothing but the ends of the log tells that it waits
    left = {name: JobPosition({T: 50}, 0) for name in ("back", "away")} | {"read": JobPosition({T: 18}, 5)}
    last = replace(LAST, ends={T: (10, 20)}, consumers=plans, left=left, log_ends={T: 20})
    job = make_job(last, Log(IDS, []))
    configs = [
        ConsumerConfig.model_construct(stream="S", durable_name=name, **(by_sequence(at + 1) if at else {}))
        for name, at in firsts.items()
    ]
    job.consumers = replace(
        job.consumers,
        configs=tuple(configs),
        begins={name: ConsumerPlan("", 0, 0, 0, {T: 20}) for name in firsts},
        weigh=lambda spans: dict.fromkeys(spans, 1.0),
    )
    assert job.consumers.find_firsts(2) == dict.fromkeys(firsts, 0)
    ends: Ends = {T: (7, 17)}
    cut = find_last(last, 5, IDS, ends, job.consumers.find_firsts(1))
    assert cut is not None
    drafts = job._draft(JobBatch(5, 1, ends, IDS, {T: (0, 17)}, (), cut))
    assert {name: each.floors[T] for name, each in drafts.items()} == firsts
    assert {name: each.offsets[T] for name, each in cut.left.items()} == {"back": 50, "away": 50, "read": 7}


def by_sequence(sequence: int) -> dict[str, Any]:
    return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": sequence}


@pytest.mark.parametrize("last", [None, replace(LAST, ends={T: (0, 10)})])
def test_a_consumer_may_begin_behind_the_end_of_the_log(last: BatchPlan | None) -> None:
    """It waits for a sequence that is not there yet, or is given nothing of transactions that were open at its creation. So it
    is given nothing before that, whether the job begins with it or has others."""
    job = make_job(last, Log(IDS, []))
    config = ConsumerConfig.model_construct(stream="S", durable_name="c")
    job.consumers = replace(job.consumers, configs=(config,), begins={"c": ConsumerPlan("", 0, 0, 0, {T: 1_000})})
    for first, after in ((10, 10), (10, 900)):
        draft = job._draft(JobBatch(5, 1, {T: (first, after)}, IDS, {T: (0, after)}, (), last))["c"]
        assert (draft.floors[T], draft.reads) == (1_000, {})
    assert spell_start(job.consumers.begins, {T: (0, 10)}) == '{"t": {"0": 10}}'
    assert spell_start(job.consumers.begins, {T: (1_005, 1_010)}) == '{"t": {"0": 1005}}'


def test_the_partition_that_a_stream_had_alone() -> None:
    """A stream of two topics, of which one was created again, has had two partitions."""
    again, alone = {**IDS, "t": "T2"}, replace(LAST, ends={T: (10, 20)})
    assert find_only(alone, ENDS, IDS) == find_only(alone, ENDS, {**IDS, "u": "U2"}, {"u"}) == (T, 20)
    assert find_only(alone, ENDS, again) is find_only(alone, ENDS, IDS, {"t"}) is None
    assert find_only(LAST, ENDS, IDS) is find_only(LAST, ENDS, again) is find_only(LAST, ENDS, IDS, {"t"}) is None
    assert find_only(None, ENDS, IDS) is find_only(alone, {T: (20, 30)}, IDS) is None


def test_what_a_batch_reads_without_a_topic_that_is_gone() -> None:
    """Its offsets count as lost."""
    batch = JobBatch(4, 1, ENDS, IDS, {T: (0, 7), U: (1, 9)}, {"t"}, LAST)
    plans = {
        "all": ConsumerPlan("f", 0, 0, 0, {T: 12, U: 0}),
        "own": ConsumerPlan("f", 0, 0, 0, {}, reads={T: (4, 6), U: (0, 3)}, snapshot={T: 8, U: 8}),
    }
    assert batch.readable == {T: (0, 0), U: (0, 3)}
    assert batch.leave_out_gone(plans) == {
        "all": plans["all"],
        "own": replace(plans["own"], reads={T: (0, 0), U: (0, 3)}, snapshot={U: 8}),
    }
    lost = {name: each.count_lost(ENDS, batch.find_log_starts(), 0).lost for name, each in plans.items()}
    assert lost == {"all": 8 + 1, "own": 2 + 1}
    assert batch.is_again and not replace(batch, number=5).is_again
    assert replace(batch, ids={"t": "T2", "v": "V1"}).known_ids == {"t": "T2", "u": "U1", "v": "V1"}
    whole = replace(batch, gone=())
    assert (whole.readable, whole.leave_out_gone(plans)) == (ENDS, plans)


@pytest.mark.parametrize(
    ("gone", "event", "lost"),
    [((), "retention passed the position", 2), ({"t"}, "records are gone with their topic", 10)],
)
def test_what_is_lost_is_told_by_its_cause(gone: Collection[str], event: str, lost: int) -> None:
    batch = JobBatch(4, 1, ENDS, IDS, {T: (12, 30), U: (0, 9)}, gone, LAST)
    plans = {"c": ConsumerPlan("f", 0, 0, 0, {T: 0, U: 0})}
    with capture_logs() as logged:
        counted = make_job(LAST, Log(IDS, []))._count_lost(plans, batch, (), cast("Any", None))
    assert counted["c"].lost == lost
    assert [(each["event"], each["consumer"], each["lost"]) for each in logged] == [(event, "c", lost)]


class Positions(RangesReader):
    """The reader of a job that asks nothing of Kafka."""

    def __init__(self) -> None:
        self._ask = cast("Any", None)


def test_partitions_that_come_with_a_batch_begin_at_the_start_of_their_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end, if retention has passed that."""
    log_starts = {T: 2, U: 1, ("t", 1): 7, ("t", 2): 12}
    look = SimpleNamespace(look=lambda: SimpleNamespace(log_starts=log_starts))
    monkeypatch.setattr("spark.stream.Planner", lambda ask: look)
    starts, stops = {T: 10, U: 0}, {T: 20, U: 3, ("t", 1): 9, ("t", 2): 9}
    found = Positions().find_range(write_position(starts, IDS), write_position(stops, IDS))
    assert found == {**ENDS, ("t", 1): (7, 9), ("t", 2): (9, 9)}


def test_a_partition_that_is_added_while_a_job_starts_is_read_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job has told where the partitions begin that it knew. A query of another kind begins at the end of others."""
    ranges = tuple(OffsetRange(("t", number), 0, 9) for number in range(2))
    bounds = ReadBounds(ranges, Sources(tuple(each.source for each in ranges), {}), {("t", 0): 0, ("t", 1): 2})
    given = {"bootstrap": "127.0.0.1:1", "topic": "t", "startingOffsets": '{"t": {"0": 4}}'}
    found = SimpleNamespace(find_ids=dict, look=lambda with_ledger: bounds, renew=lambda bound, _: bound)
    monkeypatch.setattr("spark.stream.Planner", lambda ask: found)
    ask = read_options(given)
    assert RangesReader(ask, "J", Path()).initialOffset() == {"t": {"0": 4, "1": 2}}
    assert OverlayStreamReader(ask, StructType()).initialOffset() == {"t": {"0": 4, "1": 9}}


def test_records_that_wait_for_the_ledger_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute while it stands still, and where a query ends without them."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("spark.job.ranges.monotonic", lambda: clock.now)
    monkeypatch.setattr("spark.job.ranges.REACH_S", 0.0)
    bounds = ReadBounds((OffsetRange(T, 0, 9), OffsetRange(U, 0, 5)), Sources((T, U), {}), {T: 0, U: 0})
    ask, ledger = read_options({"bootstrap": "127.0.0.1:1", "topic": "t"}), {T: 4, U: 5}
    reader = RangesReader(ask, "J", Path(), lambda ends: {s: min(end, ledger[s]) for s, end in ends.items()})
    with capture_logs() as logged:
        for clock.now, ledger[T] in ((0.0, 4), (59.0, 4), (60.0, 6), (119.0, 6), (120.0, 6), (121.0, 6), (200.0, 9)):
            assert reader._find_ends(bounds) == {T: ledger[T], U: 5}
        assert [each["records"] for each in logged] == [3]
        ledger[T], reader._target = 7, {T: 9, U: 5}
        assert reader._find_ends(bounds) == {T: 7, U: 5}
        assert [each["records"] for each in logged] == [3, 2]


def test_the_row_of_a_batch_has_the_ids_of_its_topics() -> None:
    starts, stops = ({source: span[at] for source, span in ENDS.items()} for at in (0, 1))
    text = Positions().find_text(write_position(starts, IDS), write_position(stops, IDS))
    assert parse_range(text) == (ENDS, dict(IDS))
    assert parse_range(Positions().find_text(write_position(stops, IDS), write_position(stops, IDS)))[0] == {
        T: (20, 20), U: (3, 3),
    }  # fmt: skip
    assert parse_range(Positions().find_text(write_position(starts), write_position(stops))) == (ENDS, {})
