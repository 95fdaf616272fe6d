from __future__ import annotations

import json

import pytest

from bench.figures import OVERLAY, Case, Unit, find_percentile, find_ratio, summarise
from bench.settings import Settings


def test_more_is_better_for_rates() -> None:
    assert find_ratio(Unit.RATE, ours=2_000_000, theirs=200_000) == 10


def test_less_is_better_for_times() -> None:
    assert find_ratio(Unit.MILLISECONDS, ours=20, theirs=50) == 2.5


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        (range(1, 101), 50, 50),
        (range(1, 101), 99, 99),
        (range(1, 1001), 99, 990),
        ([7], 99, 7),
        ([3, 1, 2], 50, 2),
        ([1, 2], 50, 1),
        ([5, 6], 100, 6),
        ([5, 6], 0, 5),
    ],
)
def test_percentiles_are_values_that_occurred(values: list[float], percent: int, expected: float) -> None:
    assert find_percentile(values, percent) == expected


def test_a_case_holds_medians_and_ratios() -> None:
    runs = {OVERLAY: [900.0, 1000.0, 5.0], "slow": [100.0, 90.0, 110.0], "gone": []}
    case = summarise("lz4/33%", Unit.RATE, runs, goal={"slow": 10}, skipped={"gone": "no such program"})
    assert case.overlay == 900
    assert case.peers == {"slow": 100}
    assert case.ratio == {"slow": 9}
    assert case.judge() == {"slow": False}


def test_a_goal_is_met_when_the_ratio_reaches_it() -> None:
    case = Case("lz4/100%", Unit.RATE, 91.0, {"unfiltered": 100.0}, {"unfiltered": 0.91})
    assert case.judge() == {"unfiltered": True}


def test_a_goal_without_its_peer_is_not_judged() -> None:
    case = Case("lz4/33%", Unit.RATE, 91.0, goal={"java": 3})
    assert case.judge() == {}


def test_limits_are_for_our_own_figures() -> None:
    limit = {"p50": 40.0, "p99": 80.0}
    case = Case("latency/exactly_once", Unit.MILLISECONDS, 85.0, limit=limit, extra={"p50": 28.0, "p99": 85.0})
    assert case.judge() == {"p50": True, "p99": False}


def test_cases_are_chosen_by_name() -> None:
    assert Settings().wants("skip")
    chosen = Settings(cases=frozenset({"skip", "index"}))
    assert chosen.wants("33%", "skip") and not chosen.wants("33%")


def test_a_rate_must_reach_its_limit() -> None:
    assert Case("streaming/1%", Unit.RATE, 300_000.0, limit={OVERLAY: 300_000.0}).judge() == {OVERLAY: True}
    assert Case("streaming/1%", Unit.RATE, 299_000.0, limit={OVERLAY: 300_000.0}).judge() == {OVERLAY: False}


def test_the_figure_of_a_case_may_have_a_limit_itself() -> None:
    assert Case("index-size", Unit.PERCENT, 0.22, limit={OVERLAY: 0.5}).judge() == {OVERLAY: True}
    assert Case("index-load", Unit.MILLISECONDS, 12_000.0, limit={OVERLAY: 10_000.0}).judge() == {OVERLAY: False}


def test_json_has_the_shape_that_readers_expect() -> None:
    runs = {OVERLAY: [2_100_000.4], "confluent": [180_000.0]}
    case = summarise("lz4/33%", Unit.RATE, runs, goal={"confluent": 10.0}, skipped={"faust": "not installed"})
    assert json.loads(json.dumps(case.to_json())) == {
        "case": "lz4/33%",
        "unit": "records/s",
        "overlay": 2_100_000,
        "peers": {"confluent": 180_000},
        "ratio": {"confluent": 11.67},
        "goal": {"confluent": 10.0},
        "met": {"confluent": True},
        "skipped": {"faust": "not installed"},
        "runs": {"overlay": [2_100_000], "confluent": [180_000]},
    }


def test_json_of_times_has_percentiles_beside_the_figure() -> None:
    case = Case(
        "latency/at_least_once", Unit.MILLISECONDS, 10.456, limit={"p99": 20}, extra={"p50": 1.3, "p99": 10.456}
    )
    found = case.to_json()
    assert (found["unit"], found["overlay"], found["p50"], found["p99"]) == ("ms", 10.46, 1.3, 10.46)
    assert (found["goal"], found["met"]) == ({"p99": 20}, {"p99": True})
