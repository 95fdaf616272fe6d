from __future__ import annotations

import pytest

from overlay.view.figures import show_bytes, show_clock, show_count, show_rate, show_seconds


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"), (0.0, "0/s"), (0.4, "0.4/s"), (9.96, "10/s"), (12.3, "12/s"),
        (999.4, "999/s"), (1_234.0, "1.2 k/s"), (857_000.0, "857 k/s"), (2.5e6, "2.5 M/s"),
    ],
)  # fmt: skip
def test_rates(rate: float | None, text: str) -> None:
    assert show_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.031, "31 ms"),
        (0.5, "0.5 s"),
        (1.52, "1.5 s"),
        (119.0, "119 s"),
        (180.0, "3 min"),
        (7_200.0, "2 h"),
        (4e5, "5 d"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert show_seconds(seconds) == text


def test_counts() -> None:
    assert [show_count(count) for count in (None, 0, 336_776)] == ["-", "0", "336,776"]


def test_bytes() -> None:
    sizes = (None, 0, 999, 12_345, 1_234_567, 5 * 10**10)
    assert [show_bytes(size) for size in sizes] == ["-", "0 B", "999 B", "12 kB", "1.2 MB", "50 GB"]


def test_a_clock_that_is_hardly_behind_is_not_shown_with_a_sign() -> None:
    assert [show_clock(seconds) for seconds in (-0.01, 0.0, 0.04, -1.24)] == ["0.0 s", "0.0 s", "0.0 s", "-1.2 s"]
