"""docs/fleet.md against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from prometheus_client import Gauge

from overlay.fleet.actions import Actions, Kind, Requests
from overlay.fleet.chunks import ChunkLooks
from overlay.fleet.delta import KEYS
from overlay.fleet.findings import PATIENCE_MS
from overlay.fleet.http import make_app
from overlay.fleet.live import LivePicture
from overlay.fleet.metrics import FleetMetrics
from overlay.fleet.status import ConsumerStatus, Refusal, Status

PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")


def read_rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    table = PAGE[PAGE.index(f"# {heading}\n") :].partition("\n|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def list_names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_it_lists_every_member_of_a_status() -> None:
    rows = read_rows("What a worker publishes")
    assert sorted(list_names([row[0] for row in rows])) == sorted(Status.model_fields)
    (consumers,) = (row[1] for row in rows if row[0] == "`consumers`")
    assert sorted(list_names([consumers])) == sorted(ConsumerStatus.model_fields)


def test_it_lists_every_page() -> None:
    live = LivePicture()
    actions = Actions(lambda: "a-secret-of-24-characters", cast(Requests, None), live)
    chunks = ChunkLooks(lambda stream, consumer: {})
    routes = make_app(live, FleetMetrics(), actions, chunks).router.routes()
    served = {route.resource.canonical for route in routes if route.resource}
    assert {row[0].strip("`") for row in read_rows("The picture")} == served


def test_it_lists_every_action() -> None:
    listed = {name for row in read_rows("Actions") for name in re.findall(r"`(\w+)`", row[0])}
    assert listed == {kind.value for kind in Kind}


def test_it_lists_every_table_of_the_events() -> None:
    rows = read_rows("Events")
    assert {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows} == dict(KEYS)


def test_it_lists_every_reason() -> None:
    assert list_names([row[0] for row in read_rows("Records that are passed over")]) == [each.value for each in Refusal]


def test_it_lists_every_finding_and_how_long_it_waits() -> None:
    listed = {row[0].strip("`"): row[1] for row in read_rows("Findings")}
    assert listed == {kind.value: f"{wait // 1000} s" for kind, wait in PATIENCE_MS.items()}


def test_it_lists_every_metric() -> None:
    metrics = FleetMetrics()
    wanted = {f"{each._name}": each._labelnames for each in vars(metrics).values() if isinstance(each, Gauge)}
    listed = {row[0].strip("`"): tuple(list_names([row[2]])) for row in read_rows("Metrics")}
    assert listed == wanted
