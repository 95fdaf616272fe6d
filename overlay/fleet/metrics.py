"""The Prometheus metrics of `overlay fleet run` (docs/fleet.md#metrics)."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.process_collector import ProcessCollector

from .findings import Kind
from .status import Refusal

WORKER_STATES = ("running", "waiting", "drained", "silent")
SHARD_STATES = ("running", "starting", "no owner", "two owners")


class FleetMetrics:
    """The metrics of one fleet process, in a registry of their own. `set` gives values to all but those of the
    process itself. While the process has no picture of the fleet they are 0, and the gauges of consumers and advisories have no
    series.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace="overlay_fleet", registry=registry)

        self.active = gauge("active", "1 while this process has the fleet's topic and judges, 0 while it stands by")
        self.workers = gauge("workers", "Workers by state", "state")
        self.shards = gauge("shards", "Shards by state", "state")
        self.consumers = gauge("consumers", "Consumers by state", "state")
        self.findings = gauge("findings", "Open findings by kind", "kind")
        self.ignored = gauge(
            "ignored_records", "Records of the topics that were passed over, since the start", "reason"
        )
        self.advisories = gauge("advisories", "Advisories and dead letters of the last hour, by cause", "cause")

    def set(self, picture: Mapping[str, Any]) -> None:
        """Set the gauges by `picture`, the JSON object that `/fleet` answers. For {}, that is while this process
        stands by or has no picture yet, set all to 0, and remove the series of consumers and advisories.
        """
        self.active.set(bool(picture))
        for metric, part, states in (
            (self.workers, "workers", WORKER_STATES),
            (self.shards, "shards", SHARD_STATES),
        ):
            counts = Counts(row["state"] for row in picture.get(part, ()))
            for state in states:
                metric.labels(state).set(counts[state])
        # the states of consumers are the workers' to choose
        self.consumers.clear()
        for state, count in Counts(row["state"] for row in picture.get("consumers", ())).items():
            self.consumers.labels(state).set(count)
        self.advisories.clear()
        for cause, count in _sum_causes(picture).items():
            self.advisories.labels(cause).set(count)
        open_findings = Counts(row["kind"] for row in picture.get("findings", ()))
        for kind in Kind:
            self.findings.labels(kind.value).set(open_findings[kind.value])
        for reason in Refusal:
            self.ignored.labels(reason.value).set(picture.get("ignored", {}).get(reason.value, 0))


def _sum_causes(picture: Mapping[str, Any]) -> Counts[str]:
    """Return how many advisories and dead letters there were in the last hour, by cause."""
    sums = Counts[str]()
    for row in picture.get("advisories", ()):
        sums[row["cause"]] += row["hour"]
    return sums
