"""The cases of the Spark bench, without Spark and Kafka: their filters, their config folders, and their page."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bench.dataset import load as load_flights
from bench.figures import Case, Unit
from bench.patterns import choose_patterns
from bench.pipeline_spark import CASES, CONSUMERS, GOALS, SHARE
from bench.service import write_consumers
from bench.sides import Work
from bench.spark import GOALS as SPARK_GOALS
from bench.spark import IN_ONE_SESSION, INDEX, judge_by_clock
from overlay.config import load
from spark.job.folder import choose_consumers

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_each_of_the_ten_consumers_takes_about_a_twentieth() -> None:
    dataset = load_flights("nowhere:9092", 1)
    patterns = choose_patterns(dataset.subjects, CONSUMERS, SHARE)
    shares = [dataset.count(pattern, dataset.records) / dataset.records for pattern in patterns]
    assert len(set(patterns)) == CONSUMERS
    assert shares == pytest.approx([SHARE] * CONSUMERS, abs=0.01)
    assert [abs(share - SHARE) for share in shares] == sorted(abs(share - SHARE) for share in shares)


def test_patterns_come_in_the_order_of_their_distance() -> None:
    subjects = pa.array(["a.b.c"] * 3 + ["a.b.d"] * 2 + ["a.e.c"] * 5)
    assert choose_patterns(subjects, 3, 0.5) == ("a.b.*", "a.e.*", "a.e.c")
    assert choose_patterns(subjects, 1, 1.0) == ("a.*.*",)


def test_one_job_takes_all_consumers_of_a_folder(tmp_path: Path) -> None:
    filters = ["flights.JFK.>", "flights.*.ATL.*"]
    works = [Work("nowhere:9092", "flights", 10, pattern) for pattern in filters]
    consumers = {f"c-{number}": (work, f"out-{number}") for number, work in enumerate(works)}
    write_consumers(tmp_path, consumers, "exactly_once", "spark")
    chosen = choose_consumers(load(tmp_path), list(consumers))
    found = {config.id[1]: (str(config.filters[0]), config.deliver_subject) for config in chosen.configs}
    assert found == {"c-0": ("flights.JFK.>", "out-0"), "c-1": ("flights.*.ATL.*", "out-1")}


def test_every_case_has_goals_and_is_on_the_page() -> None:
    assert set(GOALS) == set(CASES)
    page = PAGE.read_text(encoding="utf-8")
    assert [case for case in (*IN_ONE_SESSION, INDEX) if f"`{case}`" not in page] == []


def test_the_rate_by_the_clock_is_judged_as_well() -> None:
    """An index that is fast but for the broker's time on the same cores has not reached its goal."""
    goal = SPARK_GOALS[INDEX]
    case = Case(INDEX, Unit.RATE, 2_000_000.0, {"one-core": 1_000_000.0}, goal)
    assert judge_by_clock(case, 1_500_000).judge() == {"one-core": True, "raw": False}
    assert judge_by_clock(case, goal["one-core"] * 1_000_000).judge() == {"one-core": True, "raw": True}
    assert judge_by_clock(Case(INDEX, Unit.RATE, 2_000_000.0, goal=goal), 1_500_000.0).judge() == {}
