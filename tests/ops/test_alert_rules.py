"""Each alert against series of values, by promtool: it is quiet, fires after its time, and ends.

Series have a value every 15 seconds; times are minutes. What is asked for lies aside of the edges of windows, which
Prometheus 2 includes and Prometheus 3 does not.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from overlay.fleet.findings import Kind
from tests.support.prometheus import PROMTOOL, run_promtool

from .tree import ROOT, list_queries, read_yaml

needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="no promtool on PATH: install Prometheus to test the alerts")
RULES = ROOT / "grafana" / "alerts.yml"
ALERTS: dict[str, Any] = {rule["alert"]: rule for rule in read_yaml(RULES)["groups"][0]["rules"]}
A_MINUTE = 4
"""Values."""
WORKER = {"instance": "w:8222", "job": "overlay"}
DRIVER = {"instance": "d:9102", "job": "overlay-spark"}
FLEET = {"instance": "f:8223", "job": "overlay"}
OF_STREAM = {**WORKER, "stream": "S"}
OF_CONSUMER = {**OF_STREAM, "consumer": "c"}
GONE = ["stale"]
"""A value: the series ends, as those of a target that does not answer."""


def hold(value: float, minutes: float) -> list[str]:
    """One value for so long."""
    return [f"{value:g}"] * round(minutes * A_MINUTE)


def grow(first: int, step: int, minutes: float) -> list[str]:
    """A value that grows by `step` each time."""
    return [str(first + step * at) for at in range(round(minutes * A_MINUTE))]


def lack(minutes: float) -> list[str]:
    """No value for so long."""
    return ["_"] * round(minutes * A_MINUTE)


def retry(times: int) -> list[str]:
    """1 for a minute, but for a moment at its end, so often."""
    return (hold(1, 0.75) + hold(0, 0.25)) * times


@dataclass(frozen=True, slots=True)
class Case:
    """`series`: values by series. `quiet`, `firing`: minutes at which the alert is not firing, and is firing with exactly these
    `labels` (beside the severity) and this `summary`."""

    alert: str
    series: Mapping[str, Sequence[str]]
    quiet: Sequence[float]
    firing: Sequence[float]
    labels: Mapping[str, str]
    summary: str


def name(metric: str, labels: Mapping[str, str]) -> str:
    return metric + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"


def count(alert: str, metric: str, labels: Mapping[str, str], summary: str, most: int = 0) -> Iterator[Case]:
    """A counter that rises above `most` within ten minutes: from what it was, and as a worker shows it the first time."""
    series = name(metric, labels)
    known = [*hold(7, 20), *hold(7 + most, 1), *hold(10 + most, 15)] if most else [*hold(0, 20), *hold(3, 15)]
    rises = 21 if most else 20
    yield Case(alert, {series: known}, (19.75, rises - 0.25, rises + 10.25), (rises, rises + 8.5), labels, summary)
    fresh = [*lack(20), *hold(3 + most, 15)]
    yield Case(alert, {series: fresh}, (19.75, 30.25), (20, 29.5), labels, summary)


GAUGES = [
    Case(
        "OverlayDown",
        {name("up", WORKER): [*hold(1, 5), *hold(0, 5), *hold(1, 5)]},
        (5, 5.75, 10),
        (6, 9.75),
        WORKER,
        "The overlay at w:8222 has not answered for a minute",
    ),
    Case(
        "OverlayAbsent",
        {name("up", WORKER): [*hold(1, 5), *GONE, *lack(14.75), *hold(1, 5)]},
        (5, 9.75, 20),
        (10, 19.75),
        {"job": "overlay"},
        "Prometheus knows no overlay to ask any more",
    ),
    Case(
        "OverlayNotReady",
        {name("overlay_ready", WORKER): [*hold(1, 5), *hold(0, 10), *hold(1, 5)]},
        (5, 7.75, 15),
        (8, 14.75),
        WORKER,
        "The overlay at w:8222 has not served all its shards for three minutes",
    ),
    Case(
        "ShardsUnowned",
        {
            name("overlay_shards_owned", WORKER): [*hold(2, 12), *hold(4, 5)],
            name("overlay_shards", WORKER): hold(4, 17),
            # a second worker that ends
            name("overlay_shards_owned", {**WORKER, "instance": "v:8222"}): [*hold(2, 5), *GONE],
            name("overlay_shards", {**WORKER, "instance": "v:8222"}): [*hold(4, 5), *GONE],
        },
        (4.75, 7.75, 12),
        (8, 11.75),
        {"job": "overlay"},
        "Only 2 shards have a worker",
    ),
    Case(
        "FleetUnserved",
        {
            name("overlay_fleet_findings", {**FLEET, "kind": "no_worker"}): [*hold(0, 5), *hold(1, 5), *hold(0, 5)],
            # a process that stands by, and a finding that takes no delivery away
            name("overlay_fleet_findings", {**FLEET, "instance": "g:8223", "kind": "no_worker"}): hold(0, 15),
            name("overlay_fleet_findings", {**FLEET, "kind": "versions_differ"}): hold(1, 15),
        },
        (5, 6.75, 10),
        (7, 9.75),
        {"job": "overlay", "kind": "no_worker"},
        "`overlay fleet run` finds consumers that are not served (no_worker)",
    ),
    Case(
        "FleetFinding",
        {
            name("overlay_fleet_findings", {**FLEET, "kind": "settings_differ"}): [
                *hold(0, 5),
                *hold(1, 20),
                *hold(0, 5),
            ],
            name("overlay_fleet_findings", {**FLEET, "kind": "versions_differ"}): [*hold(1, 14.5), *hold(0, 15.5)],
            name("overlay_fleet_findings", {**FLEET, "kind": "no_worker"}): hold(1, 30),
        },
        (14.75, 19.75, 25),
        (20, 24.75),
        {"job": "overlay", "kind": "settings_differ"},
        "`overlay fleet run` has findings for a quarter of an hour (settings_differ)",
    ),
    Case(
        "StreamStopped",
        {name("overlay_stream_stopped", OF_STREAM): [*hold(0, 5), *retry(5), *hold(0, 6)]},
        (4.75, 11.75),
        (5, 6.75, 11.25),
        OF_STREAM,
        "Stream S, or a partition of it, is not read",
    ),
    Case(
        "ConsumerStalled",
        {
            name("overlay_consumer_stalled", OF_CONSUMER): [*hold(0, 5), *retry(6), *hold(0, 6)],
            name("overlay_consumer_stalled", {**OF_CONSUMER, "consumer": "short"}): [
                *hold(0, 5),
                *hold(1, 1),
                *hold(0, 11),
            ],
        },
        (5, 7, 11.75),
        (7.25, 7.75, 11),
        OF_CONSUMER,
        "Consumer c of stream S cannot go on",
    ),
    Case(
        "SparkJobDown",
        {name("up", DRIVER): [*hold(1, 5), *hold(0, 10), *hold(1, 5)]},
        (5, 9.75, 15),
        (10, 14.75),
        DRIVER,
        "The Spark driver at d:9102 has not answered for five minutes",
    ),
    Case(
        "SparkJobSilent",
        {
            name("overlay_spark_silent_seconds", OF_CONSUMER): [*grow(0, 15, 20), *hold(0, 5)],
            name("overlay_spark_silent_seconds", {**OF_CONSUMER, "consumer": "busy"}): [*grow(0, 15, 10), *hold(0, 15)],
        },
        (15, 16, 20),
        (16.25,),
        OF_CONSUMER,
        "Consumer c of stream S has records to read, and its Spark job has done nothing for 16m 15s",
    ),
    Case(
        "ConsumerFallsBehind",
        {
            name("overlay_consumer_lag_seconds", OF_CONSUMER): [*grow(0, 15, 25), *hold(0, 5)],
            name("overlay_consumer_lag_seconds", {**OF_CONSUMER, "consumer": "still"}): hold(400, 30),
        },
        (5.25, 15, 25),
        (15.25,),
        OF_CONSUMER,
        "Consumer c of stream S is 15m 15s behind, and the gap grows",
    ),
    Case(
        "IndexFallsBehind",
        {
            name("overlay_index_lag_records", OF_STREAM): [*grow(1_000_000, 1_000, 45), *hold(0, 5)],
            name("overlay_index_lag_records", {**OF_STREAM, "stream": "still"}): hold(2_000_000, 50),
        },
        (0.25, 30, 45),
        (30.25,),
        OF_STREAM,
        "The chunk index of stream S is 1.121M offsets behind, and the gap grows",
    ),
    Case(
        "IndexStopped",
        {name("overlay_index_stopped", OF_STREAM): [*hold(0, 5), *retry(15), *hold(0, 6)]},
        (5, 14.75, 22),
        (15, 15.75, 21),
        OF_STREAM,
        "Stream S has no chunk index",
    ),
    Case(
        "RedeliverySuspended",
        {name("overlay_redelivery_suspended", OF_STREAM): [*hold(0, 5), *hold(1, 10), *hold(0, 5)]},
        (5, 9.75, 15),
        (10, 14.75),
        OF_STREAM,
        "Deadlines of stream S wait for acks behind an open transaction",
    ),
]
COUNTERS = [
    *count(
        "RecordsLost",
        "overlay_records_lost_total",
        OF_STREAM,
        "Retention removed records of stream S before they were read",
    ),
    *count(
        "AcksLost", "overlay_acks_lost_total", OF_STREAM, "Retention removed acks of stream S before they were read"
    ),
    *count(
        "AckLogLost",
        "overlay_ack_logs_lost_total",
        OF_STREAM,
        "The ack topic of stream S was created again or lost its end",
    ),
    *count(
        "DeadLetters", "overlay_dead_letters_total", OF_CONSUMER, "Messages of consumer c of stream S were given up"
    ),
    *count(
        "CorruptBatches",
        "overlay_corrupt_batches_total",
        {**OF_STREAM, "action": "stop"},
        "Stream S has batches that cannot be read (stop)",
    ),
    *count(
        "ControlRecordsUnreadable",
        "overlay_control_records_unreadable_total",
        {**WORKER, "topic": "control", "reason": "key"},
        "The control topic has records that the overlay at w:8222 passes over (key)",
    ),
    *count(
        "ControlRecordsUnreadable",
        "overlay_control_records_unreadable_total",
        {**WORKER, "topic": "requests", "reason": "size"},
        "The requests topic has records that the overlay at w:8222 passes over (size)",
    ),
    *count(
        "AcksUnreadable",
        "overlay_acks_refused_total",
        {**WORKER, "reason": "payload"},
        "An ack topic has records that the overlay at w:8222 cannot read (payload)",
    ),
    *count(
        "AcksUnreadable",
        "overlay_acks_refused_total",
        {**WORKER, "reason": "records"},
        "An ack topic has records that the overlay at w:8222 cannot read (records)",
    ),
    Case(
        "AcksUnreadable",
        {
            name("overlay_acks_refused_total", {**WORKER, "reason": reason}): [*hold(0, 20), *grow(3, 1, 15)]
            for reason in ("future", "closed", "unknown", "incarnation")
        },
        (19.75, 21, 30),
        (),
        WORKER,
        "",
    ),
    *count(
        "UnforeseenErrors",
        "overlay_unforeseen_errors_total",
        {**WORKER, "task": "control"},
        "The overlay at w:8222 has met an error that it does not know (control)",
    ),
    *count(
        "TransactionsFail",
        "overlay_shard_restarts_total",
        {**WORKER, "cause": "Fenced"},
        "Transactions are aborted again and again: Fenced",
        most=2,
    ),
]
CASES = [*GAUGES, *COUNTERS]


def write_test(case: Case) -> dict[str, Any]:
    """The case as promtool takes it."""
    rule = ALERTS[case.alert]
    fired = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    looks: list[tuple[float, list[Any]]] = [(at, []) for at in case.quiet]
    looks += [(at, [fired]) for at in case.firing]
    return {
        "interval": "15s",
        "input_series": [{"series": series, "values": " ".join(values)} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{round(at * 60)}s", "alertname": case.alert, "exp_alerts": expected}
            for at, expected in sorted(looks, key=lambda look: look[0])
        ],
    }


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_after_its_time_and_ends(case: Case, tmp_path: Path) -> None:
    test = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [write_test(case)]}
    (tmp_path / "test.yml").write_text(json.dumps(test))  # JSON is YAML
    run_promtool(tmp_path, "test", "rules", "test.yml")


@needs_promtool
def test_a_wrong_expectation_is_found(tmp_path: Path) -> None:
    late = Case("OverlayDown", {name("up", WORKER): hold(0, 5)}, (4,), (), WORKER, "")
    test = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [write_test(late)]}
    (tmp_path / "test.yml").write_text(json.dumps(test))
    with pytest.raises(AssertionError, match="OverlayDown"):
        run_promtool(tmp_path, "test", "rules", "test.yml")


def test_every_finding_that_is_named_exists() -> None:
    """A kind that the rule for pages does not name is a ticket."""
    kinds: list[set[str]] = []
    for alert in ("FleetUnserved", "FleetFinding"):
        (named,) = re.findall(r'kind[!=]~"([^"]+)"', ALERTS[alert]["expr"])
        kinds.append(set(named.split("|")))
    assert kinds[0] == kinds[1] < {kind.value for kind in Kind}


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == ALERTS.keys()


@needs_promtool
def test_prometheus_itself_accepts_queries_rules_and_settings(tmp_path: Path) -> None:
    """The queries of the dashboards are held against its grammar as rules."""
    for file in ("alerts.yml", "prometheus.yml"):
        shutil.copy(ROOT / "grafana" / file, tmp_path)
    rules = [{"record": f"dashboard:query:{at}", "expr": query.expression} for at, query in enumerate(list_queries())]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_promtool(tmp_path, "check", "config", "prometheus.yml")
    run_promtool(tmp_path, "check", "rules", "alerts.yml", "queries.yml")
