"""Tables of workers and shards, from the picture of the fleet (overlay/fleet/picture.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from .figures import UNKNOWN, show_clock, show_count, show_seconds
from .table import make_table

_STYLES = {
    "running": "green",
    "silent": "bold red",
    "no owner": "bold red",
    "two owners": "bold red",
    "drained": "yellow",
}


def print_workers(console: Console, found: Mapping[str, Any]) -> None:
    """Print the output of `overlay workers`. `found`: the picture, as `/fleet` has it."""
    right = ("consumers", "clock ahead", "last status")
    table = make_table(console, "worker", "state", "shards", "version", "config", right=right)
    for row in found["workers"]:
        table.add_row(
            Text(row["worker"]),
            Text(row["state"], style=_STYLES.get(row["state"], "")),
            Text(", ".join(map(str, row["shards"])) or UNKNOWN),
            Text(row["version"]),
            Text(row["digest"]),
            show_count(row["consumers"]),
            show_clock(row["clock_ahead_seconds"]),
            f"{show_seconds(max(0, found['time'] - row['seen']) / 1000)} ago",
        )
    console.print(table)
    _print_remarks(console, found, [(row["worker"], row["reason"]) for row in found["workers"]])


def print_shards(console: Console, found: Mapping[str, Any]) -> None:
    """Print the output of `overlay shards`. `found`: the picture, as `/fleet` has it."""
    table = make_table(console, "shard", "state", "worker", right=("consumers",))
    for row in found["shards"]:
        table.add_row(
            Text(str(row["shard"])),
            Text(row["state"], style=_STYLES.get(row["state"], "")),
            Text(", ".join(row["workers"]) or UNKNOWN),
            show_count(row["consumers"]),
        )
    console.print(table)
    _print_remarks(console, found, [(f"shard {row['shard']}", row["reason"]) for row in found["shards"]])


def _print_remarks(console: Console, found: Mapping[str, Any], reasons: list[tuple[str, str]]) -> None:
    """Print the reasons that rows have, the findings, and how many records of the topic were passed over."""
    lines = [f"{name}: {reason}" for name, reason in reasons if reason]
    lines += [
        f"{finding['kind'].replace('_', ' ')} {finding['about']}".rstrip() + f": {finding['text']}"
        for finding in found["findings"]
    ]
    ignored = {reason: count for reason, count in found["ignored"].items() if count}
    if ignored:
        told = ", ".join(f"{count:,} {reason}" for reason, count in ignored.items())
        lines.append(f"records of the topic that were passed over: {told}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
