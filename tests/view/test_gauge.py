"""The bar of a reading: its numbers are read when it is drawn."""

from __future__ import annotations

import io

from rich.console import Console

from overlay.view.gauge import Gauge


def draw(gauge: Gauge) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(gauge.get_renderable())
    return console.export_text()


def test_what_remains() -> None:
    shown = draw(Gauge(lambda: (250, 1_000, 240, 7)))
    assert "25%" in shown and "7 found" in shown and "750 left" in shown


def test_what_is_followed_has_no_end() -> None:
    shown = draw(Gauge(lambda: (250, None, 240, 7)))
    assert "7 found" in shown and "left" not in shown


def test_the_numbers_of_this_moment() -> None:
    passed = 1
    gauge = Gauge(lambda: (1, 2, 3, passed))
    assert "1 found" in draw(gauge)
    passed = 2
    assert "2 found" in draw(gauge)


def test_what_becomes_of_records_has_its_word() -> None:
    assert "7 indexed" in draw(Gauge(lambda: (250, 1_000, 7, 7), "indexed"))
