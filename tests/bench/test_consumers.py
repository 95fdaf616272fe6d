"""The bench of many consumers, with few of them: every case runs, and every count is right."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from bench import consumers, far_behind, idle, page, thousands, two_workers
from bench.consumers import Contest
from bench.dataset import load
from bench.figures import Case, Unit
from bench.orders import CENTS, Orders
from bench.progress import Progress
from bench.settings import Settings
from tests.support.browser import CHROMIUM

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
RATES = tuple(consumers.PLANS)
OTHERS = (*idle.CASES, *thousands.LIMITS, far_behind.CASE, *page.CASES, two_workers.CASE)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forty consumers instead of thousands, and short waits."""
    for name, value in {"CUSTOMERS": 40, "OUTPUTS": 3, "GROUPS": 3, "GROUP": 4, "FILTERS": 10, "FAR": 20_000}.items():
        monkeypatch.setattr(consumers, name, value)
    monkeypatch.setattr(consumers, "MILLION", 4_000)
    monkeypatch.setattr(consumers, "RECORDS", 4_000)
    monkeypatch.setattr(consumers, "WARM_UP", 1_000)
    monkeypatch.setattr(thousands, "SETTLE_S", 0.5)
    monkeypatch.setattr(thousands, "CHANGE_S", 0.3)
    monkeypatch.setattr(far_behind, "SETTLE_S", 1)
    for module in (idle, thousands, page):
        monkeypatch.setattr(module, "OUTPUTS", 2)
    yield


def measure(bootstrap: str, *cases: str) -> dict[str, Case]:
    settings = Settings(scale=1, rounds=1, latency_s=1, cases=frozenset(cases))
    return {case.name: case for case in consumers.measure(load(bootstrap, 0.01), settings, Progress(io.StringIO()))}


def test_every_order_is_delivered_once(bootstrap: str) -> None:
    """The counts are checked by the bench itself."""
    found = measure(bootstrap, *RATES)
    assert {name: set(case.peers) for name, case in found.items()} == {
        "5000": {"one"},
        "36x100": {"one", "nats"},
        "million-subjects": {"one"},
        "sql-500": {"one"},
        "8-shards": {"one"},
    }
    assert {name: set(case.judge()) for name, case in found.items()} == {name: {"one"} for name in RATES}
    assert not any(case.skipped for case in found.values())


@pytest.mark.slow
def test_idle_services_are_looked_at(bootstrap: str) -> None:
    found = measure(bootstrap, *idle.CASES)
    assert {name: case.unit for name, case in found.items()} == {
        "idle-memory": Unit.KILOBYTES,
        "idle-cpu": Unit.PERCENT,
    }
    assert all(set(case.judge()) == {"overlay"} for case in found.values())
    assert all(len(case.runs["overlay"]) == 1 for case in found.values())


@pytest.mark.slow
def test_consumers_are_created_changed_and_restarted(bootstrap: str) -> None:
    found = measure(bootstrap, *thousands.LIMITS)
    assert set(found) == set(thousands.LIMITS)
    assert all(case.overlay > 0 for case in found.values())
    assert set(found["change-5000"].peers) == {"quiet"}
    assert set(found["change-5000"].judge()) == {"quiet", "change"}
    restart = found["restart-5000"]
    assert restart.extra["ready"] <= restart.overlay and restart.extra["first"] > 0


@pytest.mark.slow
def test_the_tail_is_measured_beside_one_far_behind(bootstrap: str) -> None:
    (case,) = measure(bootstrap, far_behind.CASE).values()
    assert (set(case.peers), set(case.judge())) == ({"without"}, {"without"})


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH: install it to look at the page")
def test_the_page_is_painted_and_watched(bootstrap: str) -> None:
    found = measure(bootstrap, *page.CASES)
    assert {name: case.unit for name, case in found.items()} == {
        "page-5000": Unit.MILLISECONDS,
        "page-cpu": Unit.PERCENT,
    }
    assert all(set(case.judge()) == {"overlay"} for case in found.values())
    assert 0 < found["page-5000"].extra["first"] <= found["page-5000"].overlay


@pytest.mark.slow
def test_two_workers_deliver_what_one_does(bootstrap: str) -> None:
    (case,) = measure(bootstrap, two_workers.CASE).values()
    assert (set(case.peers), set(case.judge())) == ({"one"}, {"one"})
    assert case.extra["wall"] <= case.overlay


def test_filters_of_two_workers_take_each_order_once() -> None:
    texts = [two_workers.describe_consumer(number, "out")["filter"] for number in range(two_workers.CONSUMERS)]
    bounds = [[int(word) for word in re.findall(r"\d+", str(text))] for text in texts]
    assert bounds[0][0] == 0 and bounds[-1][1] >= CENTS
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


@pytest.mark.parametrize("case", RATES)
def test_both_sides_have_as_many_deliveries(case: str) -> None:
    contest = consumers.PLANS[case]("nowhere:9092", 1)
    assert {job.deliveries for job in contest.values()} == {contest["overlay"].orders.records}
    assert len(contest["one"].consumers) == 1 or contest["one"].shards < contest["overlay"].shards


def test_filters_take_each_order_once() -> None:
    contest: Contest = consumers.PLANS["sql-500"]("nowhere:9092", 1)
    filters = [str(wants["filter"]) for wants in contest["overlay"].consumers.values()]
    width = CENTS // 10
    assert len(set(filters)) == 10
    assert all(f"cents >= {at * width} AND cents < {(at + 1) * width}" in filters[at] for at in range(10))


def test_cents_take_every_value() -> None:
    rows = Orders("nowhere:9092", CENTS, 7).list_rows()
    assert len({value.partition(b'"cents":')[2].partition(b",")[0] for value, _ in rows}) == CENTS


def test_every_case_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [case for case in (*RATES, *OTHERS) if f"`{case}`" not in page] == []
