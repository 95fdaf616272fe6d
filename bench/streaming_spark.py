"""The cases `streaming/1%` and `streaming/memory` of `python -m bench spark`: a streaming query that catches up with a topic.

Both sides are the same query but for what reads: Trigger.AvailableNow over the whole topic in triggers of TRIGGER records,
each of which counts what passes and adds up the lengths of its values, with a checkpoint. The clock runs from the start
of the query to its end, so that whatever a trigger costs beside its records (planning, checkpoint, tasks) is in the rate.
It is what the query can sustain: input that comes slower than that is kept up with.

- overlay: `format("overlay")` with the option `subjects`.
- native: Spark's Kafka source with includeHeaders and the same predicate on headers.

`streaming/memory` is the most that the Python workers of the overlay's query held at once, and by how much that grew in the
second half of the topic over the first; the JVM has a bound of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.cases import measure_case, warm_up
from bench.errors import WrongAnswer
from bench.figures import OVERLAY, Case, Unit
from bench.peers.native_spark import Asked, await_end, choose, read_all
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Tally

CASE, MEMORY_CASE = "streaming/1%", "streaming/memory"
PATTERN = "flights.LGA.*.FL"
"""3,260 of 336,776."""
TRIGGER = 300_000
LEAST_RATE = 300_000.0
GROWTH_MB = 64.0
LOOK_S = 0.05


def measure_streaming(spark: SparkSession, asked: Asked, settings: Settings, progress: Progress) -> Iterator[Case]:
    """Both cases, after each side has run once. Raises WrongAnswer."""
    ours = Stream(OVERLAY, partial(load_overlay, spark))
    sides = [side for side in (ours, Stream("native", partial(load_native, spark))) if settings.wants_side(side.name)]

    def run(side: Stream, asked: Asked) -> Tally:
        return side.run(asked)

    warm_up(sides, run, asked, progress)
    case = measure_case("spark", CASE, sides, run, asked, {}, settings.rounds, progress)
    yield replace(case, limit={OVERLAY: LEAST_RATE})
    half = len(ours.peaks) // 2
    first, second = max(ours.peaks[:half], default=0), max(ours.peaks[half:])
    growth = {"growth": (second - first) / 1e6} if half else {}
    yield Case(MEMORY_CASE, Unit.MEGABYTES, max(first, second) / 1e6, limit={"growth": GROWTH_MB}, extra=growth)


class Stream:
    """A streaming query over what `load` reads: rows that pass. `peaks`: what the Python workers held at most during each
    trigger of the last run, bytes."""

    warm = True

    def __init__(self, name: str, load: Callable[[Asked], DataFrame]) -> None:
        self.name, self._load = name, load
        self.peaks: list[int] = []

    def run(self, asked: Asked) -> Tally:
        found, self.peaks = 0, []
        folder = Path(tempfile.mkdtemp(prefix="bench-streaming-"))
        watch = Watch()
        with watch.watching():

            def add(batch: DataFrame, number: int) -> None:
                nonlocal found
                found += batch.agg(F.count(F.lit(1)), F.sum(F.length("value"))).collect()[0][0]
                self.peaks.append(watch.take())

            try:
                began = time.perf_counter()
                writer = self._load(asked).writeStream.foreachBatch(add).option("checkpointLocation", str(folder))
                query = writer.trigger(availableNow=True).start()
                try:
                    await_end(query)
                    seconds = time.perf_counter() - began
                finally:
                    query.stop()
            finally:
                shutil.rmtree(folder)
        if found != asked.matches:
            raise WrongAnswer(f"{self.name} on {asked.topic}: {found} records came, the data says {asked.matches}")
        return Tally(asked.records, found, seconds)

    def close(self) -> None:
        """The session is the bench's."""


def load_overlay(spark: SparkSession, asked: Asked) -> DataFrame:
    """`readStream.format("overlay")`."""
    pace = {"maxRecordsPerTrigger": str(TRIGGER), "startingOffsets": "earliest", "columns": "value"}
    return spark.readStream.format("overlay").options(**asked.options, **pace).load()


def load_native(spark: SparkSession, asked: Asked) -> DataFrame:
    """Spark's Kafka source."""
    pace = {"maxOffsetsPerTrigger": str(TRIGGER), "minPartitions": "8"}
    source = spark.readStream.format("kafka").options(**read_all(asked.bootstrap, asked.topic), **pace).load()
    return choose(source, asked.wanted).select("value")


class Watch:
    """Looks every now and then at what the Python processes under the driver hold, without what they share."""

    def __init__(self) -> None:
        self._driver, self._peak = psutil.Process(), 0
        self._over = threading.Event()

    def take(self) -> int:
        """The most since the last time, bytes."""
        peak, self._peak = max(self._peak, self._look()), 0
        return peak

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look in a thread within the block."""
        thread = threading.Thread(target=self._run, name="watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._peak = max(self._peak, self._look())

    def _look(self) -> int:
        held = 0
        for process in self._driver.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                if process.name().startswith("python"):
                    held += process.memory_full_info().uss
        return held
