"""The metrics of a pipeline, from Spark's reports and the job's plans."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from overlay.state.job_plan import BatchPlan, ConsumerPlan
from spark.figures import Figures

SOURCE = ("t", 0)


def report(figures: Figures, start: int, end: int, latest: int) -> None:
    """As Spark reports a batch."""

    def spell(offset: int) -> str:
        return json.dumps({"t": {"0": offset}, "topic ids": {"t": "id"}})

    source = SimpleNamespace(startOffset=spell(start), endOffset=spell(end), latestOffset=spell(latest))
    progress: Any = SimpleNamespace(runId=figures.query, batchDuration=100, sources=[source])
    figures.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


def read(figures: Figures, name: str, consumer: str) -> float | None:
    value = figures.metrics.registry.get_sample_value(name, {"stream": "S", "consumer": consumer})
    return None if value is None else float(value)


def plan(batch: int, end: int, consumers: dict[str, ConsumerPlan]) -> BatchPlan:
    return BatchPlan(batch, 0, "S", "", {SOURCE: (0, end)}, consumers, {})


def test_a_consumer_that_catches_up_has_a_lag_of_its_own() -> None:
    figures = Figures("S")
    figures.query = "q"
    old, new = ConsumerPlan("", 0, 100, 0), ConsumerPlan("", 0, 7, 1, reads={SOURCE: (0, 30)})
    figures.note(plan(1, 100, {"old": old, "new": new}))
    report(figures, 0, 100, 105)
    assert read(figures, "overlay_consumer_lag_records", "old") == 5
    assert read(figures, "overlay_consumer_lag_records", "new") == 5 + 70
    assert read(figures, "overlay_records_delivered_total", "new") == 7
    figures.note(plan(2, 100, {"new": ConsumerPlan("", 7, 30, 1, reads={SOURCE: (30, 100)})}))
    report(figures, 100, 100, 105)
    assert read(figures, "overlay_consumer_lag_records", "new") == 5
    assert read(figures, "overlay_consumer_lag_records", "old") is None
    assert read(figures, "overlay_records_delivered_total", "new") == 30
