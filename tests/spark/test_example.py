"""examples/spark: delays by carrier and hour, equal to what the data set says."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.examples import find_example
from overlay.local.flights import publish, read_flights
from tests.spark.test_acks import read_acks
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.service import StartService, running_service, write_service_file
from tests.support.waiting import wait_until

__all__ = ["running_service"]

DEADLINE_S = 150
FLIGHTS = 6_000
"""Seven days."""
Delays = Mapping[tuple[str, str], tuple[int, float, float]]


def load_example() -> Any:
    return SimpleNamespace(**runpy.run_path(str(find_example("spark") / "delays.py")))


@pytest.fixture
def served(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, running_service: StartService) -> Path:
    """The example's folder with topics of its own, served until the output topics have everything."""
    folder = tmp_path / "config"
    shutil.copytree(find_example("spark"), folder)
    write_service_file(folder, bootstrap)
    source = new_topic()
    for file in (folder / "streams").iterdir():
        file.write_text(file.read_text().replace("[flights]", f"[{source}]"))
    for file in (folder / "consumers").iterdir():
        text = re.sub(r"deliver_subject: (\w+)", rf"deliver_subject: {source}-\1", file.read_text())
        # without redeliveries, the number of deliveries is known
        file.write_text(re.sub(r"ack_policy: explicit\nmax_ack_pending.*\n", "ack_policy: none\n", text))
    loaded = load(folder)
    assert not loaded.problems
    publish(bootstrap, source, table=read_flights().slice(0, FLIGHTS))
    make_topic(bootstrap, f"{loaded.service.topics.prefix}.FLIGHTS.acks", 2)
    service = running_service(folder)
    expected = {"kennedy": "JFK", "laguardia": "LGA"}
    for name, airport in expected.items():
        count = choose(airport).num_rows
        wait_until(lambda c=count, n=name: delivered(bootstrap, f"{source}-{n}") >= c, 60, f"{count} for {name}")  # type: ignore[misc]
    assert service.stop() == 0
    return folder


def delivered(bootstrap: str, topic: str) -> int:
    """Records at most: transactions leave markers between them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"})
    count = 0
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (batch := consumer.consume(1000, 0.5)) and not any(message.error() for message in batch):
            count += len(batch)
    finally:
        consumer.close()
    return count


def choose(*airports: str) -> pa.Table:
    table = read_flights().slice(0, FLIGHTS)
    return table.filter(pc.and_(pc.is_in(table["origin"], pa.array(airports)), pc.is_valid(table["dep_delay"])))


def compute_delays() -> Delays:
    """By pyarrow, from the data set: the hours that are complete when two later days have been seen."""
    table = choose("JFK", "LGA")
    hours = pc.strptime(table["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "s")
    grouped = table.append_column("at", hours).group_by(["at", "carrier"])
    found = grouped.aggregate([("dep_delay", "count"), ("dep_delay", "mean"), ("dep_delay", "max")]).to_pylist()
    last = pc.max(hours).as_py()
    return {
        (row["at"].isoformat(), row["carrier"]): (
            row["dep_delay_count"],
            round(row["dep_delay_mean"], 9),
            row["dep_delay_max"],
        )
        for row in found
        if (last - row["at"]).total_seconds() >= 49 * 3600
    }


def read_delays(spark: SparkSession, out: Path) -> Delays:
    rows = spark.read.parquet(str(out / "delays")).collect()
    found = {(r.hour.isoformat(), r.carrier): (r.flights, round(r["mean"], 9), r.longest) for r in rows}
    assert len(found) == len(rows), "an hour of a carrier is there twice"
    return found


def check(spark: SparkSession, bootstrap: str, folder: Path, out: Path) -> None:
    expected = compute_delays()
    assert len(expected) > 300
    assert read_delays(spark, out) == expected
    departures = spark.read.parquet(str(out / "departures")).select("consumer", "sequence").collect()
    assert len(departures) == len({(row.consumer, row.sequence) for row in departures}) == choose("JFK", "LGA").num_rows
    acks = read_acks(bootstrap, f"{load(folder).service.topics.prefix}.FLIGHTS.acks")
    assert {(each.token.consumer, each.token.stream_seq) for each in acks} == {
        (row.consumer, row.sequence) for row in departures
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_statistics_are_those_of_the_data(
    spark: SparkSession, bootstrap: str, served: Path, tmp_path: Path
) -> None:
    example, out = load_example(), tmp_path / "out"
    for begin in (example.archive, example.summarise):
        assert begin(spark, str(served), str(out), once=True).awaitTermination(DEADLINE_S)
    check(spark, bootstrap, served, out)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_and_started_again_twice(spark: SparkSession, bootstrap: str, served: Path, tmp_path: Path) -> None:
    """Once after the first batch has been planned, once after a batch of each query is done; the third run ends by itself."""
    program, out = find_example("spark") / "delays.py", tmp_path / "out"
    program = write_small(program, tmp_path / "delays.py")
    for signs in (["departures/offsets/0"], ["departures/commits/1", "delays/commits/0"], []):
        command = [sys.executable, str(program), "--config", str(served), "--out", str(out), "--once"]
        with (tmp_path / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [*command, "--master", "local[2]"], stdout=log, stderr=log, start_new_session=True
            )
            try:
                if signs:
                    for sign in signs:
                        wait_until((out / "checkpoints" / sign).exists, DEADLINE_S, sign)
                    driver.kill()
                assert driver.wait(DEADLINE_S) == (-signal.SIGKILL if signs else 0)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)
    check(spark, bootstrap, served, out)


def write_small(program: Path, small: Path) -> Path:
    """The program with batches so small that there are several."""
    text = program.read_text(encoding="utf-8")
    assert "50000" in text
    small.write_text(text.replace("50000", "1500"), encoding="utf-8")
    return small
