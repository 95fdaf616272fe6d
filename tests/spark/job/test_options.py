"""Options of format("overlay") that a job cannot keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from overlay.client import BadQuestion
from overlay.config import load
from spark.job.folder import choose_consumers
from spark.job.start import fill_options, start_job
from spark.options import read_options
from tests.spark.deliveries import write_job_folder


def test_an_end_in_time_is_refused(tmp_path: Path) -> None:
    """Before anything is opened: neither Spark nor Kafka is asked."""
    chosen = choose_consumers(load(write_job_folder(tmp_path / "config", "127.0.0.1:1", "out")), ("c",))
    job = start_job(
        cast("Any", None), chosen, ("c",), "J", str(tmp_path), once=True, options={"endingTime": "1h"}, index=False,
        patience_s=0.0, note=lambda plan: None,
    )  # fmt: skip
    with pytest.raises(BadQuestion, match="endingTime has no meaning for a job"), job:
        pass


def test_a_batch_has_limits_without_options(tmp_path: Path) -> None:
    """The first batch of a long log would outlast its transaction. Who sets one limit has no other."""
    chosen = choose_consumers(load(write_job_folder(tmp_path / "config", "127.0.0.1:1", "out")), ("c",))
    pace = read_options(fill_options(chosen, {})).pace
    assert pace.records == 10_000_000 and pace.bytes == 1 << 30
    pace = read_options(fill_options(chosen, {"maxBytesPerTrigger": "5"})).pace
    assert pace.records is None and pace.bytes == 5
