"""The bench as a whole, on very little data and the run's broker: every peer runs, every count is right."""

from __future__ import annotations

import io
import json

import pytest

from bench import scan, sizing, skip, sql
from bench.__main__ import report
from bench.dataset import load
from bench.progress import Progress
from bench.settings import Settings
from bench.table import print_table

SMALL = Settings(
    scale=0.02,
    rounds=1,
    faust_records=1_000,
    codecs=frozenset({"lz4"}),
    selectivities=frozenset({"33%"}),
)


def test_scan_measures_every_peer(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    cases = list(scan.measure(load(bootstrap, SMALL.scale), SMALL, Progress(io.StringIO())))
    found = json.loads(json.dumps(report("scan", SMALL, cases)))
    assert found["bench"] == "scan"
    assert found["machine"]["cores"] >= 1
    (case,) = found["cases"]
    assert (case["case"], case["unit"], case["skipped"]) == ("lz4/33%", "records/s", {})
    assert set(case["peers"]) == set(case["ratio"]) == {"confluent", "java", "nats", "faust", "unfiltered"}
    assert case["overlay"] > 0
    print_table("scan", cases)
    assert "lz4/33%" in capsys.readouterr().out


def test_sql_measures_every_case(bootstrap: str) -> None:
    cases = {case.name: case for case in sql.measure(load(bootstrap, SMALL.scale), SMALL, Progress(io.StringIO()))}
    peers = {name: set(case.peers) for name, case in cases.items()}
    by_headers, by_json, by_avro = {"confluent", "subject"}, {"orjson", "subject"}, {"fastavro", "json"}
    by_protobuf = {"protobuf", "json"}
    assert peers == {
        "16%/headers": by_headers,
        "2.5%/headers": by_headers,
        "0.1%/headers": by_headers,
        "16%/json": by_json,
        "0.1%/json": by_json,
        "16%/avro": by_avro,
        "0.1%/avro": by_avro,
        "16%/protobuf": by_protobuf,
        "0.1%/protobuf": by_protobuf,
        "100 filters": {"one"},
        "100 equal": {"one"},
    }
    assert not any(case.skipped for case in cases.values())


def test_skip_answers_every_question(bootstrap: str) -> None:
    """The counts are checked by the bench itself."""
    found = list(skip.measure(load(bootstrap, SMALL.scale), SMALL, Progress(io.StringIO())))
    peers = {"fullscan", "confluent", "nats"}
    figures = ("index-size", "index-load", "index-memory", "plan-million")
    assert {case.name: set(case.peers) for case in found} == {
        **dict.fromkeys(skip.GOALS, peers),
        **{name: set() for name in figures},
    }
    assert not any(case.skipped for case in found)
    # those in milliseconds are for a machine that does nothing else
    sizes = [case.judge() for case in found if case.name in ("index-size", "index-memory")]
    assert sizes == [{"overlay": True}] * 2


@pytest.mark.slow
def test_sizing_measures_every_case(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few that the differences mean nothing; the deliveries are counted by the bench itself."""
    for name, count in {"FEW": 2, "MORE": 300, "PENDING": 30_000, "METERED": 5}.items():
        monkeypatch.setattr(sizing, name, count)
    settings = Settings(scale=0.01, rounds=1, latency_s=0.1)
    found = list(sizing.measure(load(bootstrap, 0.01), settings, Progress(io.StringIO())))
    names = ["consumers", "consumers-idle", "acked", "acked-idle", "pending", "metrics"]
    assert [case.name for case in found] == names
    metrics = found[-1]
    assert metrics.overlay > 0 and metrics.extra["pause"] > 0 and set(metrics.judge()) == {"overlay"}


def test_sizing_times_metrics(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "METERED", 5)
    settings = Settings(scale=0.01, rounds=2, cases=frozenset({"metrics"}))
    (case,) = sizing.measure(load(bootstrap, 0.01), settings, Progress(io.StringIO()))
    assert (case.name, len(case.runs["overlay"])) == ("metrics", 2)
    assert case.overlay > 0 and case.extra["pause"] > 0
