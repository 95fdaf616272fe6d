"""Dashboards and alerts against the /metrics of a service that runs and has delivered something."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import RunningService, StartService, write_service_file
from tests.support.waiting import wait_until

from .checks import find_faults
from .exposition import Exposition, read_exposition, write_fleet_exposition
from .tree import list_queries

RECORDS = 60
DEADLINE_S = 60


def _write_config(folder: Path, bootstrap: str, topic: str) -> None:
    write_service_file(folder, bootstrap)
    (folder / "streams").mkdir()
    (folder / "consumers").mkdir()
    (folder / "streams" / "trips.yaml").write_text(
        f"name: TRIPS\ntopics: [{topic}]\nsubject: {{template: 'trips.{{header:to}}'}}\nsubjects: ['trips.>']\n"
        "properties: {number: {type: long, from: '{value:number}'}, seats: {type: long, from: '{value:seats}'}}\n"
    )
    (folder / "consumers" / "rome.yaml").write_text(
        f"stream: TRIPS\ndurable_name: rome\ndeliver_subject: {topic}-rome\n"
        "filter_subject: trips.rome\nack_policy: none\nfilter: {sql: number >= 30 OR seats = 1}\n"
    )


def _produce_trips(bootstrap: str, topic: str) -> None:
    """A third goes to Rome, a third to Oslo, a third nowhere (no header, so no subject). `slots` is no number."""
    producer = SureProducer(bootstrap)
    places: list[list[tuple[str, str | bytes | None]]] = [[("to", b"rome")], [("to", b"oslo")], []]
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"number": number, "seats": "many"}).encode(), headers=places[number % 3])
    assert producer.flush(30) == 0


def _value(service: RunningService, series: str) -> float:
    lines = [line.rsplit(" ", 1) for line in service.get("/metrics").splitlines() if line.startswith(series)]
    return float(lines[0][1]) if lines else 0.0


def test_dashboards_and_alerts_ask_for_what_a_running_service_offers(
    running_service: StartService, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    topic = new_topic()
    _write_config(tmp_path / "config", bootstrap, topic)
    service = running_service(tmp_path / "config")
    _produce_trips(bootstrap, topic)
    delivered = 'overlay_records_delivered_total{consumer="rome",stream="TRIPS"}'
    wait_until(lambda: _value(service, delivered) == RECORDS / 6, DEADLINE_S, f"{delivered} is {RECORDS / 6}")
    decoded = 'overlay_records_decoded_total{stream="TRIPS"}'
    wait_until(lambda: _value(service, decoded) == RECORDS, DEADLINE_S, f"{decoded} is {RECORDS}")

    # those of the row Fleet are another process's (tests/fleet/test_running.py)
    offered = read_exposition(service.get("/metrics") + write_fleet_exposition())
    assert [fault for query in list_queries() for fault in find_faults(query, offered)] == []
    _check_values(service, offered)
    assert service.get_json("/healthz")["status"] == "ok"
    assert service.stop() == 0, service.read_log()


def test_prometheus_needs_no_other_page_than_metrics(
    running_service: StartService, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Lag and state are worked out when they are asked for: a scrape alone has to be enough to ask."""
    topic = new_topic()
    _write_config(tmp_path / "config", bootstrap, topic)
    service = running_service(tmp_path / "config", wait=False)
    of_consumer, of_stream = '{consumer="rome",stream="TRIPS"}', '{stream="TRIPS"}'
    gauges = [f"overlay_consumer_{name}{of_consumer}" for name in ("lag_records", "lag_seconds", "stalled")]
    gauges.append(f"overlay_stream_stopped{of_stream}")
    wait_until(lambda: _has_all(service, gauges), DEADLINE_S, f"/metrics has {gauges}")


def _has_all(service: RunningService, series: list[str]) -> bool:
    try:
        page = service.get("/metrics")
    except OSError:  # it does not listen yet
        return False
    return all(name in page for name in series)


def _check_values(service: RunningService, offered: Exposition) -> None:
    """What a service that is well says of the records above."""
    one_each = {
        'overlay_records_fetched_total{stream="TRIPS"}': RECORDS,
        'overlay_records_decoded_total{stream="TRIPS"}': RECORDS,
        'overlay_records_unaddressed_total{reason="missing",stream="TRIPS"}': RECORDS / 3,
        'overlay_records_evaluated_total{consumer="rome",stream="TRIPS"}': RECORDS / 3,
        'overlay_filter_results_total{consumer="rome",result="true",stream="TRIPS"}': RECORDS / 6,
        'overlay_filter_results_total{consumer="rome",result="unknown",stream="TRIPS"}': RECORDS / 6,
        'overlay_filter_nulls_total{consumer="rome",reason="unparsable",stream="TRIPS"}': RECORDS / 3,
        'overlay_consumer_lag_records{consumer="rome",stream="TRIPS"}': 0,
        'overlay_consumer_stalled{consumer="rome",stream="TRIPS"}': 0,
        'overlay_stream_stopped{stream="TRIPS"}': 0,
    }
    assert set(offered.labels) >= {series.partition("{")[0] for series in one_each}
    assert {series: _value(service, series) for series in one_each} == one_each
    latency = 'overlay_delivery_latency_seconds_count{consumer="",stream="TRIPS"}'
    for series in (
        "overlay_bytes_fetched_total",
        "overlay_commit_seconds_count",
        latency,
        "process_resident_memory_bytes",
    ):
        assert _value(service, series) > 0, series
