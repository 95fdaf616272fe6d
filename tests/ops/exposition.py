"""What a /metrics page offers to queries: series by name, and the labels of each."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from overlay.fleet.metrics import FleetMetrics
from overlay.metrics import Metrics

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Exposition:
    """Names of series that can come, and the labels of those that have come."""

    names: frozenset[str]
    labels: dict[str, frozenset[str]]


def read_exposition(text: str) -> Exposition:
    names: set[str] = set()
    labels: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):  # when a series began: the client library adds one to each counter
            continue
        names |= {family.name + suffix for suffix in _SUFFIXES.get(family.type, ("",))}
        for sample in family.samples:
            labels[sample.name] = frozenset(sample.labels)
    return Exposition(frozenset(names), labels)


def write_exposition() -> str:
    """The /metrics pages of a worker and of a fleet process, on which every metric of the overlay has a series."""
    return _write_page(Metrics()) + write_fleet_exposition()


def write_fleet_exposition() -> str:
    """The /metrics page of a fleet process."""
    return _write_page(FleetMetrics())


def _write_page(metrics: Metrics | FleetMetrics) -> str:
    for metric in vars(metrics).values():
        # the library says nowhere in public which labels a metric was given
        if isinstance(metric, Counter | Gauge | Histogram) and metric._labelnames:
            metric.labels(*metric._labelnames)
    return generate_latest(metrics.registry).decode()
