"""The metrics of a pipeline, from Spark's reports and the job's plans."""

from __future__ import annotations

import json
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from overlay.errors import OverlayError
from overlay.state.job_plan import BatchPlan, ConsumerPlan
from overlay.state.lag import Lag
from spark.figures import Figures, JobMetrics
from spark.pipeline import main
from tests.ops.tree import ROOT, read_yaml
from tests.support.prometheus import PROMTOOL, run_promtool

SOURCE = ("t", 0)
RULES = ROOT / "grafana" / "alerts.yml"


def report(figures: Figures, start: int, end: int, latest: int) -> None:
    """As Spark reports a batch."""

    def spell(offset: int) -> str:
        return json.dumps({"t": {"0": offset}, "topic ids": {"t": "id"}})

    source = SimpleNamespace(startOffset=spell(start), endOffset=spell(end), latestOffset=spell(latest))
    progress: Any = SimpleNamespace(runId=figures.query, batchDuration=100, sources=[source])
    figures.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


def read(metrics: JobMetrics, name: str, consumer: str, **more: str) -> float | None:
    value = metrics.registry.get_sample_value(name, {"stream": "S", "consumer": consumer, **more})
    return None if value is None else float(value)


def plan(batch: int, end: int, consumers: dict[str, ConsumerPlan]) -> BatchPlan:
    return BatchPlan(batch, 0, "S", "", {SOURCE: (0, end)}, consumers, {})


def test_a_consumer_that_catches_up_has_a_lag_of_its_own() -> None:
    metrics = JobMetrics()
    figures = Figures("S", "J", metrics)
    figures.query = "q"
    old, new = ConsumerPlan("", 0, 100, 0), ConsumerPlan("", 0, 7, 1, reads={SOURCE: (0, 30)})
    figures.note(plan(1, 100, {"old": old, "new": new}))
    report(figures, 0, 100, 105)
    assert read(metrics, "overlay_consumer_lag_records", "old") == 5
    assert read(metrics, "overlay_consumer_lag_records", "new") == 5 + 70
    assert read(metrics, "overlay_records_delivered_total", "new") == 7
    figures.note(plan(2, 100, {"new": ConsumerPlan("", 7, 30, 1, reads={SOURCE: (30, 100)})}))
    report(figures, 100, 100, 105)
    assert read(metrics, "overlay_consumer_lag_records", "new") == 5
    assert read(metrics, "overlay_consumer_lag_records", "old") is None
    assert read(metrics, "overlay_records_delivered_total", "new") == 30


def test_a_job_shows_the_positions_the_lag_and_the_owner_of_its_last_plan() -> None:
    metrics = JobMetrics()
    figures = Figures("S", "J", metrics)
    old, new = ConsumerPlan("", 0, 100, 0), ConsumerPlan("", 0, 7, 1, reads={SOURCE: (0, 30)})
    first = replace(plan(1, 100, {"old": old, "new": new}), owner="app-1").complete(1)
    figures.show(first, {"old": Lag(5, 2.5), "new": Lag(75, None)})
    assert read(metrics, "overlay_consumer_position", "new", topic="t", partition="0") == 30
    assert read(metrics, "overlay_consumer_lag_seconds", "old") == 2.5
    assert read(metrics, "overlay_consumer_lag_seconds", "new") is None
    assert read(metrics, "overlay_consumer_lag_records", "new") == 75
    owner = {"stream": "S", "spark_job": "J", "application": "app-1"}
    assert metrics.registry.get_sample_value("overlay_spark_job_info", owner) == 1
    second = replace(plan(2, 105, {"new": replace(new, reads={SOURCE: (30, 105)})}), owner="app-2").complete(2)
    figures.show(second, {"new": Lag(0, 0.0)})
    assert read(metrics, "overlay_consumer_position", "new", topic="t", partition="0") == 105
    for name, more in (("lag_seconds", {}), ("lag_records", {}), ("position", {"topic": "t", "partition": "0"})):
        assert read(metrics, f"overlay_consumer_{name}", "old", **more) is None
    assert metrics.registry.get_sample_value("overlay_spark_job_info", owner) is None
    assert metrics.registry.get_sample_value("overlay_spark_job_info", owner | {"application": "app-2"}) == 1


def test_jobs_of_several_streams_share_a_page() -> None:
    metrics = JobMetrics()
    for stream in ("S", "T"):
        begun = replace(plan(1, 100, {"c": ConsumerPlan("", 0, 100, 0)}), name=stream)
        figures = Figures(stream, stream, metrics)
        figures.note(begun)
        figures.show(begun, {"c": Lag(1, 1.0)})
    page = generate_latest(metrics.registry).decode()
    for stream in ("S", "T"):
        assert f'overlay_records_delivered_total{{consumer="c",stream="{stream}"}} 100.0' in page
        assert f'overlay_consumer_lag_seconds{{consumer="c",stream="{stream}"}} 1.0' in page


def test_a_job_s_page_has_nothing_of_a_worker() -> None:
    """Of a worker `overlay_ready 0` means that no shard is served."""
    page = generate_latest(JobMetrics().registry).decode()
    names = {family.name for family in text_string_to_metric_families(page) if family.name.startswith("overlay_")}
    assert {name for name in names if not name.endswith("_created")} == {
        "overlay_build_info",
        "overlay_commit_seconds",
        "overlay_consumer_lag_records",
        "overlay_consumer_lag_seconds",
        "overlay_consumer_position",
        "overlay_dead_letters",
        "overlay_records_delivered",
        "overlay_records_fetched",
        "overlay_records_lost",
        "overlay_spark_job_info",
    }


def ask(host: str, port: int) -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as page:
        return str(page.read().decode())


def test_metrics_are_served_at_one_address_alone() -> None:
    """A server of all addresses would answer at each address of the loopback interface."""
    with JobMetrics().serve("127.0.0.1", 0) as port:
        assert "overlay_build_info" in ask("127.0.0.1", port)
        with pytest.raises(OSError, match="refused"):
            ask("127.0.0.2", port)
        with pytest.raises(
            OverlayError, match=f"127.0.0.1:{port}: metrics cannot be served there: Address already in use"
        ):
            JobMetrics().serve("127.0.0.1", port).__enter__()
    with JobMetrics().serve("", 0) as port:
        assert "overlay_build_info" in ask("127.0.0.2", port)
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), 10):
        pass


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--metrics-port", "1", "--metrics-listen", "h:1"], "give --metrics-port or --metrics-listen, not both"),
        (["--metrics-listen", "9102"], "'9102' is not host:port"),
    ],
)
def test_an_address_of_metrics_is_checked_at_once(words: list[str], fault: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--config", str(tmp_path), "--checkpoint", "x", *words])
    assert done.exit_code == 2
    assert fault in done.output


@pytest.mark.skipif(not PROMTOOL, reason="no promtool on PATH: install Prometheus to test the alerts")
def test_a_job_that_goes_on_fires_no_alert(tmp_path: Path) -> None:
    """Its page as it is after a batch, for an hour, beside a worker that is up."""
    metrics = JobMetrics()
    figures = Figures("S", "J", metrics)
    figures.query = "q"
    begun = replace(plan(1, 100, {"c": ConsumerPlan("", 0, 100, 0)}), owner="app-1")
    figures.note(begun)
    report(figures, 0, 100, 100)
    figures.show(begun.complete(1), {"c": Lag(0, 0.0)})
    page = generate_latest(metrics.registry).decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    where = {"job": "overlay-spark", "instance": "d:9102"}
    series = {write_series(sample.name, {**sample.labels, **where}): sample.value for sample in samples}
    series |= {write_series("up", where): 1, write_series("up", {"job": "overlay", "instance": "w:8222"}): 1}
    rules = [rule["alert"] for rule in read_yaml(RULES)["groups"][0]["rules"]]
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": f"{value:g}+0x240"} for name, value in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minutes}m", "alertname": rule, "exp_alerts": []} for rule in rules for minutes in (25, 59)
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}))
    run_promtool(tmp_path, "test", "rules", "test.yml")


def write_series(name: str, labels: dict[str, str]) -> str:
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"
