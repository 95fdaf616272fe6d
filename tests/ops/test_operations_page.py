"""docs/operations.md against the code: metrics, pages, alerts and the files it links to."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram

from overlay.metrics import Metrics
from overlay.worker.http import make_app
from tests.test_docs import find_anchors

from .tree import ROOT, list_ports, read_compose, read_yaml

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
METRICS = Metrics()


class NoReports:
    """A worker of which nothing is asked."""

    def report(self) -> dict[str, Any]:
        raise NotImplementedError

    def report_readiness(self) -> dict[str, Any]:
        raise NotImplementedError

    async def look(self) -> dict[str, Any]:
        raise NotImplementedError

    async def set_gauges(self) -> None:
        raise NotImplementedError


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
    routes = make_app(METRICS, NoReports()).router.routes()
    served = {route.resource.canonical for route in routes if route.resource}
    assert {page for row in _rows("HTTP") for page in re.findall(r"`(/[\w/]*)`", row[0])} == served


RULES: list[dict[str, Any]] = read_yaml(ROOT / "grafana" / "alerts.yml")["groups"][0]["rules"]


def test_it_lists_every_alert_with_its_severity() -> None:
    rows = _rows("What to watch")
    assert [(row[0].strip("`"), row[1]) for row in rows] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in RULES
    ]
    assert all(row[2] for row in rows)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_the_runbook_of_an_alert_is_a_section_of_its_own(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/alerts.md"
    assert anchor == rule["alert"].lower()
    assert anchor in find_anchors(ROOT / page)
    section = (ROOT / page).read_text(encoding="utf-8").split(f"## {rule['alert']}\n", 1)[1].split("\n## ", 1)[0]
    assert len(section) > 100, "too short to say what to do"


def test_runbooks_are_in_the_order_of_the_alerts_and_of_nothing_else() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_its_addresses_are_those_of_compose() -> None:
    published = {host for service in read_compose()["services"].values() for _, host, _ in list_ports(service)}
    assert {int(port) for port in re.findall(r"localhost:(\d+)", PAGE)} == published


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", PAGE))))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).resolve().exists()
