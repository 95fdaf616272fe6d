"""`python -m bench spark`: questions to a topic asked through Spark, local[2], in records of the topic per second.

Each question counts the records that pass and adds up the lengths of their values; the clock runs from the making of the frame
to the answer. All sides share one session and its Python workers, and ask each question once before the first round. The
flights (lz4, one partition) are repeated three times as often as `--scale` says: three million records by default.

- 33%, 0.1%: subjects that lie all over the topic; nothing can be skipped, and there is no index.
- match-all: everything, with all columns: each one is summed up, so that none is left unread.
- skip: one of 60 subjects that come in runs, over the records of the skip bench (a million for each point of `--scale`), whose
  index the service has made.
- count: see counting_spark.py; over the same records as skip.
- pipeline/33%, pipeline/0.1%, pipeline/10: see pipeline_spark.py.
- start: see starting_spark.py.
- streaming/1%, streaming/memory: see streaming_spark.py.
- index: how fast `spark.index` indexes the flights. The peer `one-core` is the same with local[1]; each runs in a process of
  its own, which indexes a small topic first. Two tasks have both cores of this machine but for what the broker takes of
  them, one task has a core to itself. So the broker's processor time is subtracted: the rate is that for each second in
  which the tasks had their cores. `raw` is the rate by the clock. Both have to reach the goal.

A question or a job that takes more than five minutes is given up.

The sides of the questions:

- overlay: `format("overlay")` with the option `subjects`.
- native: Spark's Kafka source with includeHeaders, read committed, and the same predicate on the last header of each
  name (peers/native_spark.py).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil
from pyspark.sql import SparkSession

from bench.cases import measure_case, warm_up
from bench.counting_spark import CASE as COUNT
from bench.counting_spark import Lines, measure_counts
from bench.dataset import SELECTIVITIES, Dataset
from bench.errors import PeerUnavailable, WrongAnswer
from bench.figures import Case
from bench.indexed import index_meters
from bench.meters import Meters, list_questions
from bench.peers.native_spark import Asked, NativeQuery, add_up
from bench.pipeline_spark import CASES as PIPELINES
from bench.pipeline_spark import measure_pipelines
from bench.progress import Progress
from bench.service import STREAM, write_config
from bench.settings import Settings
from bench.sides import STREAM_SUBJECTS, TEMPLATE, Contender, Tally, Work
from bench.starting_spark import CASE as START
from bench.starting_spark import measure_start
from bench.streaming_spark import CASE as STREAMING
from bench.streaming_spark import MEMORY_CASE, PATTERN, measure_streaming
from spark.session import overlay_session

CODEC = "lz4"
CORES = 2
REPEAT = 3
SKIP_RECORDS = 1_000_000
"""For each point of the scale."""
DEADLINE_S = 300
WHOLE, SKIP, INDEX = "match-all", "skip", "index"
QUESTIONS = {"33%": "33%", "0.1%": "0.1%", WHOLE: "100%"}
"""To the flights: the selectivity of each."""
IN_ONE_SESSION = (*QUESTIONS, SKIP, COUNT, *PIPELINES, START, STREAMING, MEMORY_CASE)
GOALS: Mapping[str, Mapping[str, float]] = {
    "33%": {"native": 5.0},
    "0.1%": {"native": 8.0},
    SKIP: {"native": 40.0},
    WHOLE: {"native": 2.5},
    INDEX: {"one-core": 1.7},
}


class Side(Contender, Protocol):
    """A way to ask. Raises PeerUnavailable."""

    def run(self, asked: Asked) -> Tally: ...


class OverlayQuery:
    """`format("overlay")`."""

    name = "overlay"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, asked: Asked) -> Tally:
        began = time.perf_counter()
        columns = {} if asked.whole else {"columns": "value"}
        frame = self._spark.read.format("overlay").options(**asked.options, **columns).load()
        matched = add_up(frame, asked.whole)
        return Tally(asked.records, matched, time.perf_counter() - began)

    def close(self) -> None:
        """The session is the bench's."""


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    dataset = replace(dataset, scale=REPEAT * dataset.scale)
    dataset.publish(CODEC, progress.count("publishing flights"))
    if settings.wants(*IN_ONE_SESSION):
        yield from _measure_session(dataset, settings, progress)
    if settings.wants(INDEX):
        yield _measure_index(dataset, settings, progress)


def _measure_session(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    progress.say("starting Spark")
    spark = overlay_session("bench", f"local[{CORES}]", conf={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield from _measure_questions(spark, dataset, settings, progress)
        yield from measure_pipelines(spark, dataset, settings, progress)
        yield from measure_start(spark, dataset, settings, progress)
        if settings.wants(STREAMING, MEMORY_CASE):
            asked = ask_flights(dataset, PATTERN, whole=False)
            yield from measure_streaming(spark, asked, settings, progress)
    finally:
        spark.stop()


def _measure_questions(spark: SparkSession, dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    sides: list[Side] = [side for side in (OverlayQuery(spark), NativeQuery(spark)) if settings.wants_side(side.name)]
    with ExitStack() as stack:
        for side in sides:
            stack.enter_context(closing(side))
        for case, pattern in QUESTIONS.items():
            if not settings.wants(case):
                continue
            asked = ask_flights(dataset, SELECTIVITIES[pattern], whole=case == WHOLE)
            warm_up(sides, _run, asked, progress)
            yield measure_case("spark", case, sides, _run, asked, GOALS[case], settings.rounds, progress)
        if not settings.wants(SKIP, COUNT):
            return
        meters = Meters(dataset.bootstrap, round(SKIP_RECORDS * settings.scale))
        meters.publish(progress.count("publishing meters"))
        progress.say("indexing meters")
        with index_meters(meters) as loaded:
            folder = str(Path(loaded.files[""].file).parent)
            if settings.wants(SKIP):
                asked = _ask_meters(meters, folder)
                warm_up(sides, _run, asked, progress)
                yield measure_case("spark", SKIP, sides, _run, asked, GOALS[SKIP], settings.rounds, progress)
            yield from measure_counts(spark, Lines(meters, folder), settings, progress)


def ask_flights(dataset: Dataset, pattern: str, *, whole: bool) -> Asked:
    work = dataset.plan(CODEC, pattern)
    subjects = [subject.text for subject in STREAM_SUBJECTS]
    definition = {"name": STREAM, "topics": [work.topic], "subject": {"template": TEMPLATE}, "subjects": subjects}
    options = {"bootstrap": work.bootstrap, "definition": json.dumps(definition), "subjects": pattern}
    matches = dataset.count(pattern, work.records)
    return Asked(work.bootstrap, work.topic, work.records, matches, work.list_wanted(), options, whole)


def _ask_meters(meters: Meters, folder: str) -> Asked:
    question = list_questions(meters)["clustered"]
    assert question.header is not None
    wanted = {question.header[0]: question.header[1].decode(), "kind": "power"}
    options = {"config": folder, "stream": question.stream, "subjects": question.ask["subjects"]}
    return Asked(meters.bootstrap, meters.topic, meters.records, int(question.matches.sum()), wanted, options)


def _run(side: Side, asked: Asked) -> Tally:
    tally = side.run(asked)
    if tally.matched != asked.matches:
        raise WrongAnswer(
            f"{side.name} on {asked.topic}: {tally.matched} records are found for {asked.options.get('subjects')},"
            f" the data says {asked.matches}. Run this side alone (--only) to look into it"
        )
    return tally


class Indexer:
    """`spark.index` in a process of its own, with so many cores."""

    warm = False

    def __init__(self, name: str, cores: int, first: Work, broker: int) -> None:
        """`broker`: its process id."""
        self.name, self._cores, self._first, self._broker = name, cores, first, broker
        self.raw: list[float] = []

    def run(self, work: Work) -> Tally:
        with tempfile.TemporaryDirectory(prefix="bench-index-") as name:
            folders = [Path(name, each) for each in ("first", "whole")]
            for folder, of in zip(folders, (self._first, work), strict=True):
                write_config(folder, of, f"{of.topic}-none", "at_least_once")
            command = [sys.executable, "-m", "bench.peers.index_spark", str(self._cores), str(self._broker)]
            command += map(str, folders)
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise PeerUnavailable(f"the index was not made within {DEADLINE_S} s") from error
        if done.returncode:
            raise PeerUnavailable(f"spark.index failed: {done.stderr[-500:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        if told["done"] < work.records:
            raise WrongAnswer(f"{self.name}: {told['done']} of {work.records} offsets of {work.topic} are indexed")
        self.raw.append(work.records / told["seconds"])
        taken = told["broker"] / CORES if self._cores == CORES else 0.0
        return Tally(work.records, None, told["seconds"] - taken)

    def close(self) -> None:
        """Each run is a process that has ended."""


def find_listener(bootstrap: str) -> int:
    """The id of the process that listens at this port of the machine. Raises PeerUnavailable if there is none."""
    port = int(bootstrap.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return int(connection.pid)
    raise PeerUnavailable(f"no process of this machine listens at {bootstrap}, so its processor time is not known")


def _measure_index(dataset: Dataset, settings: Settings, progress: Progress) -> Case:
    first, work = dataset.plan_warm_up(CODEC), dataset.plan(CODEC, SELECTIVITIES["100%"])
    broker = find_listener(work.bootstrap)
    ours = Indexer("overlay", CORES, first, broker)
    sides = [side for side in (ours, Indexer("one-core", 1, first, broker)) if settings.wants_side(side.name)]

    def run(side: Indexer, work: Work) -> Tally:
        return side.run(work)

    case = measure_case("spark", INDEX, sides, run, work, GOALS[INDEX], settings.rounds, progress)
    return judge_by_clock(case, statistics.median(ours.raw))


def judge_by_clock(case: Case, raw: float) -> Case:
    """The case of the index with `raw`, our rate by the clock: it has the same goal over one core, which `raw` is judged by
    as well. Without that peer nothing is judged."""
    peer = case.peers.get("one-core")
    limit = {} if peer is None else {"raw": GOALS[INDEX]["one-core"] * peer}
    return replace(case, extra={"raw": raw}, limit=limit)
