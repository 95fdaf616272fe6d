"""The screen of `overlay top`, by its lines: workers, what is wrong, and consumers in an order. Pure.

A line is a list of spans, each a text with a style, so that tests read texts and the terminal gets colours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rich.cells import cell_len, set_cell_size

from .figures import UNKNOWN, show_clock, show_count, show_rate, show_seconds

Row = Mapping[str, Any]


class Style(Enum):
    """How a span looks. The values are ANSI codes."""

    PLAIN = ""
    HEAD = "7"
    DIM = "2"
    GOOD = "32"
    ODD = "33"
    BAD = "1;31"


_STYLES = {
    **dict.fromkeys(("running",), Style.GOOD),
    **dict.fromkeys(("starting", "catching up", "parked", "drained", "waiting", "removed"), Style.ODD),
    **dict.fromkeys(("silent", "stalled", "stopped", "not served", "no owner", "two owners"), Style.BAD),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a line."""

    text: str
    style: Style = Style.PLAIN


Line = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of consumers. `width`: cells, 0 for those that share what is left."""

    title: str
    width: int
    is_number: bool = True


COLUMNS = (
    Column("consumer", 0, is_number=False),
    Column("state", 11, is_number=False),
    Column("worker", 16, is_number=False),
    Column("records/s", 10),
    Column("lag", 13),
    Column("lag time", 8),
    Column("unacked", 9),
    Column("redelivered", 11),
)
_LEAST = 20
"""Least width of the column with names; columns from the right are left out for it."""
MOST_FINDINGS = 5
MOST_WORKERS = 8
"""Most findings and workers that are listed; the rest is counted."""
HELP = "order: r rate, l lag, t lag time, u unacked, d redelivered, s state, n name   up/down PgUp/PgDn   q quit"


class Order(Enum):
    """What consumers are sorted by: the key that chooses it, and its name."""

    RATE = "r", "rate"
    LAG = "l", "lag"
    LAG_TIME = "t", "lag-time"
    UNACKED = "u", "unacked"
    REDELIVERED = "d", "redelivered"
    STATE = "s", "state"
    NAME = "n", "name"

    @property
    def key(self) -> str:
        return self.value[0]

    @property
    def word(self) -> str:
        return self.value[1]


_FIELDS = {
    Order.RATE: "rate",
    Order.LAG: "lag",
    Order.LAG_TIME: "lag_s",
    Order.UNACKED: "unacked",
    Order.REDELIVERED: "redelivered",
}
_WORST = ("not served", "silent", "stalled", "stopped", "waiting", "starting", "parked", "catching up")
"""States by how much they want to be looked at; all others come after them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a user has chosen: the order of the consumers, and which of them in this order is shown
    first (`first`, from 0).
    """

    order: Order = Order.RATE
    first: int = 0


_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


def split_keys(text: str) -> list[str]:
    """Return the keys in what a terminal has sent: single characters, and the sequences of keys such as Up. If it has sent
    nothing, the terminal is gone, which is the key "".
    """
    return _KEY.findall(text) or [""]


def press(choice: Choice, key: str, page: int) -> Choice | None:
    """Return what is chosen after a key was pressed; None if the key ends the program. `key`: as the
    terminal sends it, "" if the terminal is gone. `page`: how many consumers a screen has.
    """
    if key in ("", "q", "\x03", "\x1b"):
        return None
    for order in Order:
        if key == order.key:
            return Choice(order)
    moves = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": -page, "\x1b[6~": page, " ": page}
    if key in ("\x1b[H", "g"):
        return replace(choice, first=0)
    return replace(choice, first=max(0, choice.first + moves.get(key, 0)))


def draw(found: Mapping[str, Any], choice: Choice, width: int, height: int, prefix: str) -> list[Line]:
    """Return a screen of at most `height` lines (two at least) of at most `width` cells. `found`: the picture, as
    `/fleet` has it.
    """
    top = [_draw_title(found, prefix), *_draw_findings(found["findings"]), *_draw_workers(found), ()]
    shown = rank(found["consumers"], choice.order)
    room = max(1, height - len(top) - 2)
    first = min(choice.first, max(0, len(shown) - room))
    columns = fit(width)
    table = [_draw_heads(columns), *(_draw_consumer(row, columns) for row in shown[first : first + room])]
    last = min(first + room, len(shown))
    foot = f"{first + 1 if shown else 0}-{last} of {len(shown):,} by {choice.order.word}   {HELP}"
    lines = [*top, *table][: max(1, height - 1)]
    return [cut(line, width) for line in [*lines, (Span(foot, Style.DIM),)]]


def count_rows(found: Mapping[str, Any], height: int) -> int:
    """Return how many consumers fit on a screen of `height` lines, below what else it shows; at least 1."""
    findings, workers = len(found["findings"]), len(found["workers"])
    above = 3 + min(findings, MOST_FINDINGS + 1) + min(workers, MOST_WORKERS + 1)
    return max(1, height - above - 2)


def rank(consumers: Sequence[Row], order: Order) -> list[Row]:
    """Return the consumers in an order, equal ones by name: for a number the largest first, for STATE
    the worst state first, for NAME by stream and name.
    """
    by_name = sorted(consumers, key=lambda row: (row["stream"], row["name"]))
    if order is Order.NAME:
        return by_name
    if order is Order.STATE:
        return sorted(by_name, key=lambda row: _WORST.index(row["state"]) if row["state"] in _WORST else len(_WORST))
    return sorted(by_name, key=lambda row: -(row[_FIELDS[order]] or 0))


def _draw_title(found: Mapping[str, Any], prefix: str) -> Line:
    live = [row for row in found["workers"] if row["state"] != "silent"]
    parts = [
        f"{len(live)} worker{'' if len(live) == 1 else 's'}",
        f"{len(found['shards'])} shard{'' if len(found['shards']) == 1 else 's'}",
        f"{len(found['consumers']):,} consumer{'' if len(found['consumers']) == 1 else 's'}",
        show_rate(sum(row["rate"] for row in found["consumers"])),
        f"lag {show_count(sum(row['lag'] or 0 for row in found['consumers']))}",
    ]
    return (Span(f" overlay top  {prefix}  {', '.join(parts)}", Style.HEAD),)


def _draw_findings(findings: Sequence[Row]) -> Iterator[Line]:
    for finding in findings[:MOST_FINDINGS]:
        about = f" {finding['about']}" if finding["about"] else ""
        yield (Span(f"! {finding['kind'].replace('_', ' ')}{about}: {finding['text']}", Style.BAD),)
    if len(findings) > MOST_FINDINGS:
        yield (Span(f"! and {len(findings) - MOST_FINDINGS} more, see `overlay workers`", Style.BAD),)


def _draw_workers(found: Mapping[str, Any]) -> Iterator[Line]:
    rates: dict[str, float] = {}
    for row in found["consumers"]:
        rates[row["worker"]] = rates.get(row["worker"], 0.0) + row["rate"]
    heads = ("worker", "state", "shards", "consumers", "records/s", "clock ahead", "status")
    yield (Span("  ".join(_lay_worker(heads)), Style.DIM),)
    for row in found["workers"][:MOST_WORKERS]:
        shards = ",".join(map(str, row["shards"])) or UNKNOWN
        seen = f"{show_seconds(max(0, found['time'] - row['seen']) / 1000)} ago"
        rate = show_rate(rates.get(row["worker"], 0.0))
        clock = show_clock(row["clock_ahead_seconds"])
        name, state, *rest = _lay_worker(
            (row["worker"], row["state"], shards, show_count(row["consumers"]), rate, clock, seen)
        )
        yield Span(f"{name}  "), Span(state, _STYLES.get(row["state"], Style.PLAIN)), Span("  " + "  ".join(rest))
    if len(found["workers"]) > MOST_WORKERS:
        yield (Span(f"and {len(found['workers']) - MOST_WORKERS} more, see `overlay workers`", Style.DIM),)


def _lay_worker(cells: Sequence[str]) -> list[str]:
    return [_pad(cell, width, is_number) for cell, (width, is_number) in zip(cells, _WORKER_CELLS, strict=True)]


_WORKER_CELLS = ((24, False), (8, False), (14, False), (9, True), (10, True), (11, True), (9, True))
"""Width of each cell of a worker, and whether it is a number."""


def fit(width: int) -> tuple[Column, ...]:
    """Return the columns for a terminal of `width` cells: the names, and from the left as many of the
    others as leave the names _LEAST cells. The width of the first column is what the others leave.
    """
    columns: tuple[Column, ...] = COLUMNS
    while len(columns) > 1 and width - sum(column.width + 2 for column in columns[1:]) < _LEAST:
        columns = columns[:-1]
    left = max(1, width - sum(column.width + 2 for column in columns[1:]))
    return (replace(columns[0], width=left), *columns[1:])


def _draw_heads(columns: Sequence[Column]) -> Line:
    cells = (_pad(column.title, column.width, column.is_number) for column in columns)
    return (Span("  ".join(cells), Style.DIM),)


def _draw_consumer(row: Row, columns: Sequence[Column]) -> Line:
    values = (
        f"{row['stream']}/{row['name']}",
        row["state"],
        row["worker"] or UNKNOWN,
        show_rate(row["rate"]),
        show_count(row["lag"]),
        show_seconds(row["lag_s"]),
        show_count(row["unacked"]),
        show_count(row["redelivered"]),
    )
    spans = []
    for number, (column, value) in enumerate(zip(columns, values, strict=False)):
        style = _STYLES.get(value, Style.PLAIN) if column.title == "state" else Style.PLAIN
        spans.append(Span(("  " if number else "") + _pad(value, column.width, column.is_number), style))
    return tuple(spans)


def _pad(text: str, width: int, is_number: bool) -> str:
    """Return a text of exactly this many cells: numbers on the right, other texts on the left, cut if they are longer."""
    if is_number:
        return text.rjust(width)[:width]
    return set_cell_size(text, width)


def cut(line: Line, width: int) -> Line:
    """Return a line of at most this many cells."""
    found, left = [], width
    for span in line:
        text = span.text if cell_len(span.text) <= left else set_cell_size(span.text, left)
        left -= cell_len(text)
        found.append(Span(text, span.style))
    return tuple(span for span in found if span.text)
