"""Series of streams and consumers: at zero before the first event, gone with what they tell of."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import generate_latest

from overlay.clock import monotonic
from overlay.kafka.admin import Admin
from overlay.metrics import Metrics
from overlay.scan.states import REASONS as NULL_REASONS
from overlay.state.lag import Lags
from overlay.worker.dispatch_io.ack_topics import STALL_S, AckTopics, _Probe
from overlay.worker.gauges import Gauges
from overlay.worker.metric_series import FEW, RESULTS, TURN, Series, observe_all
from tests.support.kafka import NewTopicFixture
from tests.worker.scenes import Scene, serve

ALERTS = Path(__file__).parents[2] / "grafana" / "alerts.yml"
OF_FILTER = re.compile(r"overlay_(records_evaluated|filter_results|filter_nulls)_total\{")
RISES = re.compile(r"(?:increase|rate)\((overlay_\w+)")


def list_alerting() -> set[str]:
    """The counters that an alert computes a rise of."""
    return set(RISES.findall(ALERTS.read_text(encoding="utf-8")))


def scrape(metrics: Metrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_alerting_counters_are_zero_before_the_first_event(scene: Scene, new_topic: NewTopicFixture) -> None:
    scene.add_stream("S", new_topic())
    scene.add_consumer("S", "c")
    with serve(scene) as served:
        lines = scrape(served.service.metrics)
    assert {"overlay_records_lost_total", "overlay_corrupt_batches_total"} <= list_alerting()
    for name in list_alerting():
        found = [line for line in lines if line.startswith(name + "{")]
        assert found, name
        assert all(line.endswith(" 0.0") for line in found), found
    assert 'overlay_records_lost_total{stream="S"} 0.0' in lines
    assert 'overlay_corrupt_batches_total{action="stop",stream="S"} 0.0' in lines
    assert 'overlay_dead_letters_total{consumer="c",stream="S"} 0.0' in lines


def test_counters_of_the_service_are_zero_before_the_first_event() -> None:
    metrics = Metrics()
    Series(metrics).open_service()
    lines = scrape(metrics)
    assert {f'overlay_acks_unnamed_total{{part="{part}"}} 0.0' for part in ("token", "range")} <= set(lines)


async def test_counters_of_a_filter_are_zero_before_the_first_event() -> None:
    """Also where a consumer gets one later; a consumer without a filter has none of them."""
    metrics = Metrics()
    series = Series(metrics)
    series.open_consumers([("S", "c"), ("S", "d")], [("S", "c")])

    def list_counted() -> set[str]:
        return {line for line in scrape(metrics) if OF_FILTER.match(line)}

    counted = list_counted()
    series.open_consumers([("S", "c"), ("S", "d")], [("S", "c"), ("S", "d")])
    assert list_counted() - counted == {line.replace('consumer="c"', 'consumer="d"') for line in counted}
    assert len(counted) == 1 + len(RESULTS) + len(NULL_REASONS)
    assert 'overlay_records_evaluated_total{consumer="c",stream="S"} 0.0' in counted
    assert 'overlay_filter_results_total{consumer="c",result="unknown",stream="S"} 0.0' in counted
    assert 'overlay_filter_nulls_total{consumer="c",reason="unparsable",stream="S"} 0.0' in counted
    await series.close_consumers([("S", "c")])
    series.open_consumers([("S", "c")], [("S", "c")])
    assert counted <= list_counted()


def test_counters_of_unreadable_records_are_zero_before_the_first_event() -> None:
    metrics = Metrics()
    series = Series(metrics)
    series.open_service()
    series.open_streams(["S"])
    assert {
        'overlay_control_records_unreadable_total{reason="batch",topic="control"} 0.0',
        'overlay_control_records_unreadable_total{reason="size",topic="requests"} 0.0',
        'overlay_index_records_unreadable_total{reason="crc",stream="S"} 0.0',
        'overlay_unforeseen_errors_total{task="control"} 0.0',
    } <= set(scrape(metrics))


def test_an_open_series_keeps_its_value() -> None:
    metrics = Metrics()
    series = Series(metrics)
    metrics.records_lost.labels("S").inc(3)
    series.open_streams(["S"])
    assert 'overlay_records_lost_total{stream="S"} 3.0' in scrape(metrics)


@pytest.mark.parametrize("label", ["stream", "consumer"])
async def test_every_series_goes_with_its_stream_or_consumer(label: str) -> None:
    """Whatever has the label: a metric that is added later and forgotten in `Series` is found here."""
    metrics = Metrics()
    series = Series(metrics)
    series.open_streams(["S"])
    series.open_consumers([("S", "c")], [("S", "c")])
    third = {"reason": ["unparsable"], "action": ["skip"], "answer": ["no"], "kind": ["ack"], "result": ["true"]}
    third["outcome"] = ["fetched"]
    for metric in vars(metrics).values():
        names = getattr(metric, "_labelnames", ())
        if metric in (metrics.consumer_position, metrics.spark_job_info):
            continue  # a job's alone
        if label in names and (label == "consumer" or "consumer" not in names):
            values = {"stream": "S", "consumer": "c"} | {name: found[0] for name, found in third.items()}
            if metric is metrics.records_unaddressed:
                values["reason"] = "missing"
            if metric is metrics.index_records_unreadable:
                values["reason"] = "crc"
            metric.labels(*(values[name] for name in names))
    if label == "consumer":
        await series.close_consumers([("S", "c")])
        series.close_silences([("S", "c")])
        assert not [line for line in scrape(metrics) if 'consumer="c"' in line]
    else:
        metrics.delivery_latency_seconds.labels("S", "").observe(1)
        series.close_streams(["S"])
        assert not [line for line in scrape(metrics) if 'stream="S"' in line and 'consumer="c"' not in line]


async def test_only_consumers_that_were_opened_are_closed() -> None:
    """Thousands that another worker serves cost nothing, and others have their turn meanwhile."""
    metrics, closed = Metrics(), list[tuple[str, str]]()

    class Watched(Series):
        def _close_consumer(self, id: tuple[str, str]) -> None:
            closed.append(id)

    series = Watched(metrics)
    series.open_consumers([("S", f"c{n}") for n in range(2 * TURN)])
    closing = asyncio.create_task(series.close_consumers([("S", f"c{n}") for n in range(5_000)]))
    await asyncio.sleep(0)
    assert len(closed) == TURN
    await closing
    assert len(closed) == 2 * TURN
    assert not series.opened


async def test_other_tasks_run_while_many_series_are_opened() -> None:
    """Each filter has series of its own, and thousands of consumers may have one."""
    ids, metrics = [("S", f"c{n}") for n in range(2 * TURN)], Metrics()
    series = Series(metrics)
    opening = asyncio.create_task(series.open_many(ids, set(ids[::2])))
    await asyncio.sleep(0)
    assert len(series.opened) == TURN
    await opening
    assert len(series.opened) == 2 * TURN
    lines = scrape(metrics)
    for name, count in (("records_delivered", 2 * TURN), ("records_evaluated", TURN)):
        assert sum(line.startswith(f"overlay_{name}_total{{") for line in lines) == count


async def test_a_consumer_that_comes_back_counts_from_zero() -> None:
    """Its former series is not counted in any more."""
    metrics = Metrics()
    series = Series(metrics)
    for _ in range(2):
        series.open_consumers([("S", "c")])
        series.count_delivered(("S", "c"), 3)
        series.count_delivered(("S", "c"), 4)
        assert 'overlay_records_delivered_total{consumer="c",stream="S"} 7.0' in scrape(metrics)
        await series.close_consumers([("S", "c")])


@pytest.mark.parametrize("count", [0, 1, FEW, 500])
def test_many_amounts_are_observed_as_one_after_the_other(count: int) -> None:
    metrics = Metrics()
    one_by_one, together = (metrics.delivery_latency_seconds.labels("S", name) for name in ("a", "b"))
    # on the bounds of buckets, between them, and beyond the last one
    amounts = [(0.0, 0.005, 0.0051, 0.5, 300.0, 1_000.0)[number % 6] for number in range(count)]
    for amount in amounts:
        one_by_one.observe(amount)
    observe_all(together, amounts)
    lines = [
        line
        for line in scrape(metrics)
        if line.startswith("overlay_delivery_latency_seconds") and "created" not in line
    ]
    assert sorted(line.replace('consumer="b"', 'consumer="a"') for line in lines if 'consumer="b"' in line) == sorted(
        line for line in lines if 'consumer="a"' in line
    )


def test_gauges_of_a_stream_go_when_its_shard_moves() -> None:
    """Its counters stay."""
    metrics = Metrics()
    series = Series(metrics)
    series.open_streams(["S"])
    for gauge in (
        metrics.index_lag_records,
        metrics.index_stopped,
        metrics.ledger_runs,
        metrics.stream_stopped,
        metrics.redelivery_suspended,
        metrics.partitions_awaiting_schemas,
    ):
        gauge.labels("S").set(1)
    series.close_indexes(["S"])
    series.close_readings(["S"])
    left = [line for line in scrape(metrics) if 'stream="S"' in line]
    assert left
    gauges = [line for line in left if "_total{" not in line and "_created{" not in line]
    assert not [
        line for line in gauges if line.startswith(("overlay_index_", "overlay_ledger", "overlay_stream_stopped"))
    ]
    gone = ("overlay_redelivery_suspended", "overlay_partitions_awaiting_schemas")
    assert not [line for line in left if line.startswith(gone)]


async def test_a_scrape_sets_nothing_of_what_is_elsewhere() -> None:
    metrics = Metrics()
    gauges = Gauges(metrics, Lags(), [])
    gauges.set_stream({"name": "S", "state": "elsewhere", "index": None})
    await gauges.set_consumers(set)
    assert not [line for line in scrape(metrics) if 'stream="S"' in line]


def test_one_shard_whose_deadlines_wait_suspends_the_stream() -> None:
    """The others do not take that back."""
    metrics = Metrics()
    waiting, idle = (AckTopics(cast("Admin", None), metrics, {}, {}, {}) for _ in range(2))
    waiting.up_to, idle.up_to = {"S": 0}, {"S": 0, "T": 0}
    gauges = Gauges(metrics, Lags(), [])
    for since, told in ((monotonic(), "0.0"), (monotonic() - 2 * STALL_S, "1.0")):
        waiting._probes["S"] = _Probe(0, {("acks", 0): 5}, since)
        for shards in ((waiting, idle), (idle, waiting)):
            gauges.set_suspended(shard.find_suspended() for shard in shards)
            lines = scrape(metrics)
            assert f'overlay_redelivery_suspended{{stream="S"}} {told}' in lines
            assert 'overlay_redelivery_suspended{stream="T"} 0.0' in lines


def test_an_index_that_is_not_kept_has_no_lag_of_zero() -> None:
    metrics = Metrics()
    gauges = Gauges(metrics, Lags(), [])
    part = {"chunks": 1, "position": 100, "end": 250}
    kept = {"reason": "", "partitions": {"t-0": part}, "ledger": None}
    refused: dict[str, object] = {"reason": "its topic refuses", "partitions": {}, "ledger": None}
    for index, is_stopped in ((kept, "0.0"), (refused, "1.0"), (kept, "0.0")):
        gauges.set_stream({"name": "S", "state": "running", "waiting": {}, "index": index})
        lines = scrape(metrics)
        assert 'overlay_index_lag_records{stream="S"} 150.0' in lines
        assert f'overlay_index_stopped{{stream="S"}} {is_stopped}' in lines


def test_a_stream_whose_consumers_have_left_is_not_stopped_here() -> None:
    """The worker that keeps its index alone would otherwise report its last stop for ever."""
    metrics = Metrics()
    gauges = Gauges(metrics, Lags(), [])
    index: dict[str, object] = {"reason": "", "partitions": {}, "ledger": None}
    for state, told in (("stopped", "1.0"), ("elsewhere", "0.0")):
        gauges.set_stream({"name": "S", "state": state, "waiting": {}, "index": index})
        assert f'overlay_stream_stopped{{stream="S"}} {told}' in scrape(metrics)


async def test_a_consumer_that_goes_during_a_scrape_gets_no_series_back() -> None:
    metrics, ids = Metrics(), [("S", f"c{n}") for n in range(2 * TURN)]
    opened = dict.fromkeys(ids)
    setting = asyncio.create_task(Gauges(metrics, Lags(), opened.keys()).set_consumers(set))
    await asyncio.sleep(0)
    opened.clear()
    await setting
    assert len([line for line in scrape(metrics) if line.startswith("overlay_consumer_stalled{")]) == TURN


def test_what_a_worker_has_is_told_from_the_first_scrape() -> None:
    metrics = Metrics()
    told = ("overlay_ready", "overlay_shards_owned", "overlay_shards")
    assert {f"{name} 0.0" for name in told} <= set(scrape(metrics))
    Gauges(metrics, Lags(), []).set_worker(is_ready=True, owned=2, shards=5)
    assert {f"{name} {number}" for name, number in zip(told, (1.0, 2.0, 5.0), strict=True)} <= set(scrape(metrics))


def test_partitions_that_wait_for_a_schema_are_counted() -> None:
    metrics = Metrics()
    gauges = Gauges(metrics, Lags(), [])
    cases: list[tuple[dict[str, object], str]] = [({"t-0": {}, "t-3": {}}, "2.0"), ({}, "0.0")]
    for waiting, count in cases:
        gauges.set_stream({"name": "S", "state": "running", "waiting": waiting, "index": None})
        assert f'overlay_partitions_awaiting_schemas{{stream="S"}} {count}' in scrape(metrics)
