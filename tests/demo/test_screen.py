"""What is shown while the service works: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from io import StringIO

from rich.console import Console

from overlay.demo.screen import Screen
from overlay.demo.service import DeliveryProgress, Look

TOTAL = 9000


def make_looks(began: float) -> list[Look]:
    def consumer(count: int, lag: int | None) -> tuple[DeliveryProgress, ...]:
        return (DeliveryProgress("late", "late-out", ("f.JFK.>", "f.*.AA"), count, lag, ""),)

    return [
        Look(began),
        Look(began + 0.1, 0, 0, consumer(0, None)),
        Look(began + 5, 0, 0, consumer(0, TOTAL)),
        Look(began + 9, 0, 0, consumer(0, TOTAL)),
        Look(began + 10, 3000, 4000, consumer(30, 5000)),
        Look(began + 10.5, TOTAL, TOTAL, consumer(90, 0)),
    ]


def show(screen: Screen) -> None:
    with screen.show_publishing(TOTAL) as progress:
        for done in (4096, 8192, TOTAL):
            progress(done)
    with screen.show_scan(TOTAL) as step:
        for look in make_looks(time.monotonic()):
            step(look)


def test_lines_where_there_is_no_terminal() -> None:
    out = StringIO()
    show(Screen(Console(file=out, force_terminal=False, width=80)))
    lines = out.getvalue().splitlines()
    assert lines[:3] == [f"publishing flights: {n} of 9,000" for n in ("4,096", "8,192", "9,000")]
    assert lines[3] == "starting the service"
    assert "are compiled, which takes some tens of seconds (5 s so far)" in lines[4]
    assert lines[5] == "still loading (9 s so far)"
    assert lines[-1] == "9,000 of 9,000 records scanned and committed"
    assert "\x1b" not in out.getvalue()


def test_a_table_on_a_terminal() -> None:
    out = StringIO()
    console = Console(
        file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"}
    )  # a dumb one shows no cursor
    show(Screen(console))
    text = out.getvalue()
    assert "9,000/9000" in text or "9000/9000" in text
    last = text[text.rindex("consumer") :]
    for word in ("f.JFK.>", "f.*.AA", "12,000", "9,000", "120"):
        assert word in last, last
    assert text.rstrip().endswith("\x1b[?25h")


def test_a_long_path_is_not_wrapped() -> None:
    out = StringIO()
    Screen(Console(file=out, force_terminal=False, width=20)).say("x" * 50 + " [bold]")
    assert out.getvalue() == "x" * 50 + " [bold]\n"
