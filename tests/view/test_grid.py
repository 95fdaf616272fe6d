"""The table of records, on a terminal and piped."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from overlay.view.grid import Grid

from .test_lines import make_batch

RECORD = {"key": b"k", "value": b"v" * 300, "headers": [{"name": "to", "value": b"rome"}, {"name": "x", "value": None}]}


def draw(*batches: tuple[dict[str, Any], ...], width: int | None = None) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=width is not None, width=width or 10_000, color_system=None)
    grid = Grid(console, lambda raw: out.write(raw.decode()))
    for records in batches:
        grid.print(make_batch(*records))
    return out.getvalue().splitlines()


def test_piped_lines_are_whole() -> None:
    head, line = draw((RECORD,))
    assert head.split() == ["sequence", "timestamp", "subject", "key", "headers", "value"]
    assert line.split() == ["7", "2013-01-01T05:15:00.250Z", "a.b", "k", "to=rome", "x=-", "v" * 300]
    assert head.index("value") == line.index("vvv") and head.index("sequence") + 8 == line.index("7") + 1


def test_the_names_come_once() -> None:
    lines = draw((RECORD, RECORD), (RECORD | {"subject": "a.much.longer.one"},))
    assert len(lines) == 4 and [line.startswith("sequence") for line in lines] == [True, False, False, False]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    wide = RECORD | {"key": "漢字".encode() * 40, "subject": "s" * 300}
    lines = draw((RECORD, wide), width=width)
    assert len(lines) == 3 and all(cell_len(line) <= width for line in lines)
    assert lines[1].endswith("…")


def test_the_value_has_room_on_a_narrow_terminal() -> None:
    wide = RECORD | {"key": b"k" * 300, "subject": "s" * 300, "headers": [{"name": "h" * 300, "value": b"x"}]}
    head, line = draw((wide,), width=80)
    assert head.endswith("value") and line[head.index("value") :].startswith("v" * 10)
    assert line.split()[1] == "2013-01-01T05:15:00.250Z" and line.count("…") == 4


def test_several_partitions() -> None:
    head, line = draw((RECORD | {"sequence": None, "partition": 3},))
    assert head.split()[:2] == ["partition", "offset"] and line.split()[:2] == ["3", "6"]


def test_a_stream_that_grows() -> None:
    lines = draw((RECORD,), (RECORD | {"sequence": None, "partition": 3},))
    assert [line.split()[0] for line in lines] == ["sequence", "7", "partition", "3"]


def test_terminals_are_not_given_orders() -> None:
    (_, line) = draw(({"key": b"a\x1b[2J\nb", "value": b"\xff\x00", "headers": [{"name": "\r", "value": b"\t"}]},))
    assert line.isprintable()
    assert "a\\x1b[2J\\nb" in line and "\\xff\\x00" in line and "\\r=\\t" in line


def test_what_is_missing() -> None:
    (_, line) = draw(({"subject": None, "timestamp": None},))
    assert line.split() == ["7", "-", "-", "-", "-"]
