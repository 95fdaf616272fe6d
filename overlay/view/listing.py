"""Lists of streams and of consumers as rows of text, and as plain lines for pipes.

On a terminal table.py draws them. The library that draws takes as long to load as Kafka takes to answer, so that scripts
do without it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from .facts import ConsumerFacts, OverlayFacts
from .figures import UNKNOWN, show_count, show_rate, show_seconds

_GAP = "  "
_LEFT_OUT = dict.fromkeys(map(ord, "\a\b\v\f\r"))
"""Control characters that would move what comes behind them."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of texts, a row for each stream or consumer. `left`: names of the columns of words, which come first; `right`:
    those of numbers. `remarks`: lines below the table.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    remarks: Sequence[str]


def list_streams(facts: OverlayFacts) -> Listing:
    """Return what `overlay stream ls` shows."""
    rows = [
        (
            found.name,
            found.state,
            ", ".join(found.topics),
            str(len(found.consumers)),
            str(len(found.partitions)) if found.partitions else UNKNOWN,
            show_rate(found.rate),
            show_count(found.behind),
        )
        for found in facts.streams.values()
    ]
    remarks = [f"{found.name}: {found.reason}" for found in facts.streams.values() if found.reason]
    right = ("consumers", "partitions", "records/s", "behind")
    return Listing(("stream", "state", "topics"), right, rows, [*remarks, *facts.notes])


def list_consumers(facts: OverlayFacts, shown: Sequence[ConsumerFacts]) -> Listing:
    """Return what `overlay consumer ls` shows for the consumers `shown`."""
    rows = [
        (
            found.stream,
            found.name,
            found.state,
            found.deliver_subject or UNKNOWN,
            show_count(found.consumer_sequence),
            show_rate(found.rate),
            show_count(found.lag_records),
            show_seconds(found.lag_seconds),
        )
        for found in shown
    ]
    remarks = [f"{found.stream}/{found.name}: {found.reason}" for found in shown if found.reason]
    left, right = ("stream", "consumer", "state", "output"), ("sequence", "records/s", "lag", "lag time")
    return Listing(left, right, rows, [*remarks, *facts.notes])


def write_plain(listing: Listing) -> str:
    """Return the table and the remarks as lines, uncut and without styles, the last without a line end."""
    table = [(*listing.left, *listing.right), *listing.rows]
    cells = [[cell.translate(_LEFT_OUT) for cell in row] for row in table]
    widths = [max(map(_measure, column)) for column in zip(*cells, strict=True)]
    lines = [
        _GAP.join(
            cell + " " * (width - _measure(cell)) if at < len(listing.left) else " " * (width - _measure(cell)) + cell
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([*lines, *(remark.translate(_LEFT_OUT) for remark in listing.remarks)])


def _measure(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
