"""Dashboards and alerts against the metrics that there are, and against their own rules."""

from __future__ import annotations

from typing import Any

import pytest

from .checks import find_faults
from .exposition import read_exposition, write_exposition
from .tree import DASHBOARDS, ROOT, Query, list_panels, list_queries, read_dashboard, read_yaml

QUERIES = list_queries()
OFFERED = read_exposition(write_exposition())


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.name)
def board(request: pytest.FixtureRequest) -> Any:
    return read_dashboard(request.param)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.place)
def test_every_metric_and_label_of_a_query_exists(query: Query) -> None:
    assert find_faults(query, OFFERED) == []


@pytest.mark.parametrize(
    ("expression", "text", "fault"),
    [
        ("overlay_records_fetched", "", "/metrics has no overlay_records_fetched"),
        ('overlay_records_fetched_total{consumer="x"}', "", "overlay_records_fetched_total has no label consumer"),
        ("sum by (topic) (overlay_fenced_total)", "", "overlay_fenced_total has no label topic"),
        ("overlay_consumer_stalled", "{{shard}}", "overlay_consumer_stalled has no label shard"),
        ("sum(overlay_consumer_stalled) by (stream)", "{{consumer}}", "the text shows consumer"),
        ("1 + 1", "", "no metric in"),
    ],
)
def test_a_faulty_query_is_found(expression: str, text: str, fault: str) -> None:
    faults = find_faults(Query("here", expression, (text,)), OFFERED)
    assert len(faults) == 1
    assert fault in faults[0]


def test_every_metric_of_the_overlay_is_on_the_dashboard() -> None:
    shown = " ".join(query.expression for query in QUERIES if query.place.startswith("overview.json"))
    families = {
        name.rsplit("_", 1)[0] if name.endswith(("_bucket", "_sum", "_count")) else name for name in OFFERED.names
    }
    missing = {name for name in families if name.startswith("overlay_") and name not in shown}
    assert missing == {"overlay_build_info"}


def test_dashboards_use_the_data_source_that_is_provisioned(board: Any) -> None:
    sources = read_yaml(ROOT / "grafana" / "provisioning" / "datasources" / "prometheus.yaml")["datasources"]
    known = {(source["type"], source["uid"]) for source in sources}
    users = [*list_panels(board), *board["templating"]["list"]]
    users += [target for panel in list_panels(board) for target in panel["targets"]]
    assert {(user["datasource"]["type"], user["datasource"]["uid"]) for user in users} <= known


def test_panels_have_a_title_a_text_and_a_unit_each_and_do_not_overlap(board: Any) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]
    for panel in list_panels(board):
        assert panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(identifiers) == len(set(identifiers))


def test_the_rows_are_those_of_the_operations_page(board: Any) -> None:
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert rows == ["Now", "Throughput", "Lag", "Acks", "Latency", "Health", "Process", "Fleet", "Spark"]
    assert [variable["name"] for variable in board["templating"]["list"]] == ["stream", "consumer"]
