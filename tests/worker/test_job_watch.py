"""What a worker knows of the consumers of Spark jobs: by plans that are written here, without Spark."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.client.control.control import Control
from overlay.clock import now_ms
from overlay.config import Loaded, load
from overlay.config.consumer import ConsumerConfig, DeliverPolicy
from overlay.errors import CredentialsRefused, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.state import plan_reader
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_positions import InJob
from overlay.state.lag import Lag, Lags, Place
from overlay.state.plan_reader import LIST_S
from overlay.worker import job_watch
from overlay.worker.job_watch import LOOK_S, JobStandings, JobWatch
from spark.job.journal import Journal
from tests.control.registries import make_config
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, produce, serve

C, D = ("S", "c"), ("S", "d")
T0 = ("t", 0)
MINUTE_MS = 60_000


def deliver(end: int, written: int) -> InJob:
    """C of a batch that has ended at this offset and time."""
    batch = BatchPlan(3, written, "S", "", {T0: (0, end)}, {"c": ConsumerPlan("", 0, 4, 0)}, {}, owner="app-7")
    return InJob(C, "J", JobPosition({T0: end}, 4), batch.complete(written))


def never(_: object) -> bool:
    return False


def test_a_job_is_silent_while_there_is_something_to_read() -> None:
    standings, lags, written = JobStandings(), Lags(), MINUTE_MS
    standings.note([C], {C: deliver(5, written)}, written)
    lags.note({C: {T0: Place(5, 5, None, False)}}, written)
    later = written + 10 * MINUTE_MS
    assert standings.measure_silence(lags, never, later) == {C: 0.0}
    # records come, and the job has had none for a long time: it is silent since they came
    lags.note({C: {T0: Place(5, 9, None, False)}}, later)
    assert standings.measure_silence(lags, never, later + MINUTE_MS) == {C: 660.0}
    lags.note({C: {T0: Place(5, 5, None, False)}}, later)
    lags.note({C: {T0: Place(5, 9, None, False)}}, later + 1_000)
    assert standings.measure_silence(lags, never, later + MINUTE_MS) == {C: 60.0}
    assert standings.measure_silence(lags, lambda _: True, later + MINUTE_MS) == {C: 0.0}, "it is paused"
    # a job that catches up is behind, and is not silent
    standings.note([C], {C: deliver(7, later + 50_000)}, later)
    lags.note({C: {T0: Place(7, 9_999, None, False)}}, later + 50_000)
    assert standings.measure_silence(lags, never, later + MINUTE_MS) == {C: 10.0}


def test_a_consumer_with_which_no_job_has_begun_is_silent_from_the_first_look() -> None:
    standings = JobStandings()
    standings.note([C, D], {C: deliver(5, 0)}, 5_000)
    assert standings.note([D], {}, 9_000) == {C}
    assert standings.measure_silence(Lags(), never, 12_000) == {D: 7.0}
    assert standings.describe(D, Lag(None, None), 12_000) == {"reason": "no Spark job has begun with it"}
    assert standings.describe(C, Lag(None, None), 12_000) == {}, "another worker tells of it"


def test_a_consumer_with_which_no_job_has_begun_is_silent_from_when_it_has_something_to_read() -> None:
    standings = JobStandings()
    for now in (5_000, 9_000):
        standings.note([C, D], {}, now, idle={D})
    assert standings.measure_silence(Lags(), never, 12_000) == {C: 7.0, D: 0.0}
    standings.note([C, D], {}, 13_000)
    assert standings.measure_silence(Lags(), never, 15_000) == {C: 10.0, D: 6.0}, (
        "since the last look that found nothing"
    )


@dataclass
class Logs:
    """What Kafka tells of topics with one partition each. `bounds`: start and end of each log, by topic; a topic without
    them does not exist."""

    bounds: dict[str, tuple[int, int]]
    listed: int = 0

    async def list_topics(self, start: str) -> list[str]:
        self.listed += 1
        return []

    async def find_topics(self, names: Iterable[str], **_: object) -> dict[str, SimpleNamespace]:
        return {name: SimpleNamespace(partitions=1) for name in names if name in self.bounds}

    async def find_bounds(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {source: self.bounds[source[0]] for source in sources}


def watch(logs: Logs, *configs: ConsumerConfig) -> JobWatch:
    """A watch on these consumers of stream S, whose topics are t and u."""
    loaded = SimpleNamespace(
        consumers={("S", config.durable_name): config for config in configs},
        streams={"S": SimpleNamespace(topic_names=("t", "u"))},
    )
    wanted = dict.fromkeys(loaded.consumers)
    return JobWatch(
        {},
        cast("Admin", logs),
        "o",
        JobStandings(),
        Lags(),
        lambda: wanted,
        lambda: cast("Loaded", loaded),
        list[tuple[str, str]]().extend,
    )


def is_silent(watch: JobWatch) -> bool:
    """Whether a consumer is silent a minute after the last look."""
    (silence,) = watch.standings.measure_silence(watch.lags, never, now_ms() + MINUTE_MS).values()
    return silence > 0


async def test_a_consumer_of_no_job_is_not_silent_while_its_topics_have_no_records() -> None:
    logs = Logs({"t": (5, 5)})
    jobs = watch(logs, make_config("c"))
    await jobs.look()
    assert not is_silent(jobs), "one topic is empty, and the other does not exist"
    logs.bounds["u"] = (0, 1)
    await jobs.look()
    assert is_silent(jobs)


@pytest.mark.parametrize(
    ("fields", "silent"),
    [
        ({"deliver_policy": DeliverPolicy.ALL}, True),
        ({"deliver_policy": DeliverPolicy.LAST}, True),
        ({"deliver_policy": DeliverPolicy.NEW}, False),
        ({"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": 1}, True),
        ({"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": 2**62}, False),
    ],
)
async def test_what_a_consumer_of_no_job_has_to_read(fields: dict[str, Any], silent: bool) -> None:
    jobs = watch(Logs({"t": (0, 9)}), make_config("c").model_copy(update=fields))
    for _ in range(2):
        await jobs.look()
        assert is_silent(jobs) == silent


async def test_a_new_consumer_of_no_job_is_silent_once_records_come() -> None:
    logs = Logs({"t": (0, 9), "u": (0, 0)})
    jobs = watch(logs, make_config("c").model_copy(update={"deliver_policy": DeliverPolicy.NEW}))
    await jobs.look()
    logs.bounds["t"] = (9, 9)  # retention took what was there
    await jobs.look()
    assert not is_silent(jobs)
    logs.bounds["u"] = (0, 1)
    await jobs.look()
    assert is_silent(jobs)


async def test_all_topics_of_the_cluster_are_listed_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(plan_reader, "monotonic", lambda: now)
    logs = Logs({"t": (0, 9)})
    jobs = watch(logs, make_config("c"))
    for _ in range(5):
        await jobs.look()
        now += LOOK_S
    assert logs.listed == 1
    now += LIST_S
    await jobs.look()
    assert logs.listed == 2


def test_a_consumer_that_no_job_takes_from_the_service_is_silent_while_there_is_something_to_read() -> None:
    standings, lags = JobStandings(), Lags()
    standings.note([C], {C: InJob(C, "", JobPosition({T0: 5}, 4), None)}, 5_000)
    lags.note({C: {T0: Place(5, 5, None, False)}}, 5_000)
    assert standings.measure_silence(lags, never, 60_000) == {C: 0.0}
    lags.note({C: {T0: Place(5, 9, None, False)}}, 60_000)
    lags.note_time((T0, 5), 70_000)
    assert standings.measure_silence(lags, never, 90_000) == {C: 20.0}
    told = standings.describe(C, lags.find(C, 90_000), 90_000)
    assert (told["reason"], told["consumer_sequence"], told["lag_records"]) == ("no Spark job has begun with it", 4, 4)


def test_a_lag_that_is_not_known_is_no_silence() -> None:
    standings = JobStandings()
    standings.note([C], {C: deliver(5, 0)}, 5_000)
    assert standings.measure_silence(Lags(), never, 12_000) == {}


def test_a_consumer_of_a_job_is_described_by_the_last_plan() -> None:
    standings = JobStandings()
    standings.note([C], {C: deliver(5, 2_000)}, 5_000)
    assert standings.describe(C, Lag(7, 1.0), 3_000) == {
        "reason": "Spark job 'J' delivers it, as application app-7",
        "job": "J",
        "owner": "app-7",
        "consumer_sequence": 4,
        "positions": {"t-0": 5},
        "rate": 2.0,
        "lag_records": 7,
    }


@pytest.mark.parametrize("error", [SourceUnavailable("away"), CredentialsRefused("no"), ValueError("a bug")])
async def test_jobs_that_cannot_be_seen_end_no_worker(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    stop, looks = asyncio.Event(), 0

    async def look(_: JobWatch) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            stop.set()
        raise error

    monkeypatch.setattr(job_watch, "LOOK_S", 0.0)
    monkeypatch.setattr(JobWatch, "look", look)
    nothing: Any = None
    await JobWatch({}, nothing, "o", JobStandings(), Lags(), dict, nothing, nothing).run(stop)
    assert looks == 3


def find_no_configs() -> Loaded:
    return cast("Loaded", SimpleNamespace(consumers={}, streams={}))


async def test_nothing_is_asked_without_such_consumers() -> None:
    """An Admin of None would fail."""
    nothing: Any = None
    closed: list[tuple[str, str]] = []
    standings = JobStandings()
    standings.note([C], {}, 0)
    await JobWatch({}, nothing, "o", standings, Lags(), dict, find_no_configs, closed.extend).look()
    assert closed == [C]


@pytest.fixture
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "LOOK_S", 0.2)
    monkeypatch.setattr(plan_reader, "LIST_S", 0.2)


@pytest.fixture
def journal(scene: Scene, new_topic: NewTopicFixture) -> Iterator[tuple[str, Journal]]:
    """A stream S with three records and a consumer c for Spark: the name of its topic, and the journal of a job."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c", engine="spark")
    produce(scene.bootstrap, topic, ["a"] * 3)
    with Journal(load(scene.folder).service.kafka, scene.prefix, "J", 1) as opened:
        yield topic, opened


def make_batch(topic: str, batch: int, span: tuple[int, int], sequences: tuple[int, int]) -> BatchPlan:
    consumer = ConsumerPlan("", *sequences, 0)
    return BatchPlan(batch, now_ms(), "S", "", {(topic, 0): span}, {"c": consumer}, {}, owner=f"app-{batch}")


@pytest.mark.usefixtures("_look_often")
def test_the_service_tells_of_a_consumer_of_a_job(scene: Scene, journal: tuple[str, Journal]) -> None:
    """At /consumers, to requests and in the metrics, batch after batch."""
    topic, journal_of_job = journal
    with serve(scene) as served:

        def await_it(wanted: dict[str, Any]) -> dict[str, Any]:
            wait_until(lambda: wanted.items() <= served.consumer("c").items(), DEADLINE_S, f"it is {wanted}")
            return served.consumer("c")

        await_it({"state": "spark", "reason": "no Spark job has begun with it"})
        begun = make_batch(topic, 1, (0, 2), (0, 2))
        journal_of_job.write(begun)
        await_it({"owner": "app-1", "consumer_sequence": 0, "positions": {f"{topic}-0": 0}, "lag_records": 3})
        journal_of_job.write(begun.complete(now_ms()))
        found = await_it({"job": "J", "consumer_sequence": 2, "positions": {f"{topic}-0": 2}, "lag_records": 1})
        assert found["reason"] == "Spark job 'J' delivers it, as application app-1"
        wait_until(lambda: (served.consumer("c")["lag_seconds"] or 0) > 0, DEADLINE_S, "the record has an age")
        with contextlib.closing(
            Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S)
        ) as control:
            info = control.info("S", "c")
        assert (info.delivered.consumer_seq, info.state) == (2, "spark")
        assert (info.raw["overlay"]["owner"], info.raw["overlay"]["lag_records"]) == ("app-1", 1)

        def read() -> float | None:
            served.set_gauges()
            labels = {"stream": "S", "consumer": "c"}
            return served.service.metrics.registry.get_sample_value("overlay_spark_silent_seconds", labels)

        wait_until(lambda: (read() or 0) > 0, DEADLINE_S, "the job is silent")
        journal_of_job.write(make_batch(topic, 2, (2, 3), (2, 3)).complete(now_ms()))
        await_it({"owner": "app-2", "consumer_sequence": 3, "lag_records": 0, "lag_seconds": 0.0})
        wait_until(lambda: read() == 0, DEADLINE_S, "the job has done its work")
        scene.remove_consumer("c")
        served.reload(scene)
        wait_until(lambda: read() is None, DEADLINE_S, "its series has ended")
