"""The measurement of `python -m tests.sim --speed`. How fast it is depends on the machine, and is asked of no test."""

from __future__ import annotations

from .speed import measure_speed


def test_speed_of_quiet_histories_and_of_storms_is_told() -> None:
    found = list(measure_speed([3], quiet_s=10.0))
    assert [(speed.name, speed.histories) for speed in found] == [
        ("two records a minute", 1),
        ("a record a second", 1),
        ("a record a second, and acks", 1),
        ("storms", 1),
    ]
    assert all(speed.virtual_s > 10 and speed.steps > speed.requests > 0 and speed.cpu_s > 0 for speed in found)
    storms = str(found[-1])
    assert storms.startswith("storms: ")
    assert "virtual seconds a second of processor time" in storms
