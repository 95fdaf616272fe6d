"""The bench as a whole, on very little data and the run's broker: every peer runs, every count is right."""

from __future__ import annotations

import io
import json

import pytest

from bench import scan
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
