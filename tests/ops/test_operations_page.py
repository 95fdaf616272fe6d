"""docs/operations.md against the code: metrics, pages, alerts and the files it links to."""

from __future__ import annotations

import re

import pytest
from prometheus_client import Counter, Gauge, Histogram

from overlay.metrics import Metrics
from overlay.worker.http import make_app

from .tree import ROOT, list_ports, read_compose, read_yaml

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
METRICS = Metrics()


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without the table's head."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


def _metrics() -> set[tuple[str, str, tuple[str, ...]]]:
    """Name, type and labels of every metric of the one list."""
    labels = {
        # the library says nowhere in public which labels a metric was given
        f"overlay_{name}": tuple(metric._labelnames)
        for name, metric in vars(METRICS).items()
        if isinstance(metric, Counter | Gauge | Histogram)
    }
    found: set[tuple[str, str, tuple[str, ...]]] = {("overlay_build_info", "gauge", ("version", "python"))}
    for family in METRICS.registry.collect():
        if family.name in labels:
            suffix = "_total" if family.type == "counter" else ""
            found.add((family.name + suffix, family.type, labels[family.name]))
    return found


def test_it_lists_every_metric_with_type_and_labels() -> None:
    listed = {(row[0].strip("`"), row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in _rows("Metrics")}
    assert listed == _metrics()
    assert all(row[3] for row in _rows("Metrics"))


def test_it_lists_every_page() -> None:
    routes = make_app(METRICS, dict).router.routes()
    served = {route.resource.canonical for route in routes if route.resource}
    assert {page for row in _rows("HTTP") for page in re.findall(r"`(/\w+)`", row[0])} == served


def test_it_says_what_to_do_about_every_alert() -> None:
    rules = read_yaml(ROOT / "grafana" / "alerts.yml")["groups"][0]["rules"]
    rows = _rows("What to watch")
    assert [row[0].strip("`") for row in rows] == [rule["alert"] for rule in rules]
    assert all(row[1] and row[2] for row in rows)


def test_its_addresses_are_those_of_compose() -> None:
    published = {host for service in read_compose()["services"].values() for _, host, _ in list_ports(service)}
    assert {int(port) for port in re.findall(r"localhost:(\d+)", PAGE)} == published


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).resolve().exists()
