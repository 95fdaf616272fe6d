"""examples/spark/first_look.py: every table that it shows, equal to what the data set says."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import overlay
from overlay.examples import find_example
from overlay.local.flights import publish, read_flights
from tests.client.indexing import index_stream
from tests.support.kafka import NewTopicFixture
from tests.support.service import write_service_file

FLIGHTS = 6_000
Rows = list[tuple[Any, ...]]


@pytest.fixture
def folder(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Path:
    """The flights example with a topic of its own, indexed but for its end."""
    found = tmp_path / "config"
    shutil.copytree(find_example("flights"), found)
    write_service_file(found, bootstrap)
    topic = new_topic()
    file = found / "streams" / "flights.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("[flights]", f"[{topic}]"), encoding="utf-8")
    publish(bootstrap, topic, table=read_flights().slice(0, FLIGHTS))
    with overlay.open(found) as client:
        index_stream(client, bootstrap, "FLIGHTS", 1, left=500)
    return found


def list_rows(frame: DataFrame) -> Rows:
    return sorted(tuple(row) for row in frame.collect())


def group(table: pa.Table, key: str, *aggregations: tuple[str, str]) -> Rows:
    """Sorted by the key, which comes first."""
    found = table.group_by([key]).aggregate([*aggregations])
    names = [key, *(f"{column}_{function}" for column, function in aggregations)]
    return sorted(zip(*(found[name].to_pylist() for name in names), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_it_shows_is_what_the_data_says(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = find_example("spark") / "first_look.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--config", str(folder)])
    cells = runpy.run_path(str(program), run_name="__main__")
    assert cells["spark"] is spark
    data = read_flights().slice(0, FLIGHTS)
    kennedy = data.filter(pc.equal(data["origin"], "JFK"))
    counted: dict[str, int] = dict(group(kennedy, "carrier", ("origin", "count")))
    means: dict[str, float] = dict(group(kennedy, "carrier", ("dep_delay", "mean")))
    found = list_rows(cells["departures"])
    assert [(carrier, flights) for carrier, flights, _ in found] == sorted(counted.items())
    assert {carrier: mean for carrier, _, mean in found} == pytest.approx(means, abs=0.051)
    delayed = kennedy.filter(pc.greater(kennedy["dep_delay"], 60))
    late = group(delayed, "carrier", ("origin", "count"), ("dep_delay", "max"))
    assert list_rows(cells["late"]) == late and late
    late_flights = {row[0]: row[1] for row in late}
    share = [(carrier, flights, late_flights.get(carrier, 0)) for carrier, flights in sorted(counted.items())]
    assert [row[:3] for row in list_rows(cells["share"])] == share
    airports = [(f"flights.{origin}", count) for origin, count in group(data, "origin", ("carrier", "count"))]
    assert list_rows(cells["airports"]) == airports
    shown = capsys.readouterr().out
    assert "dep_delay" in shown and "To be read: " in shown and "BatchScan overlay" in shown
