"""Tables of consumers with acks: pending acks, redeliveries, and what holds back new messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from .acks import show_gate
from .figures import UNKNOWN, show_count
from .table import make_table

if TYPE_CHECKING:
    from overlay.client.control.control import ConsumerInfo


def print_report(console: Console, found: Sequence[ConsumerInfo]) -> None:
    """Print the output of `overlay consumer report`."""
    right = ("delivered", "unacked", "delayed", "redelivered", "to come", "pulls")
    table = make_table(console, "stream", "consumer", "state", "held back by", right=right)
    for info in found:
        own = info.raw.get("overlay", {})
        table.add_row(
            Text(info.stream),
            Text(info.name),
            Text("paused" if info.paused else info.state),
            Text(show_gate(own.get("gate", ""))),
            show_count(info.delivered.consumer_seq),
            show_count(info.num_ack_pending),
            show_count(own.get("num_delayed", 0)),
            show_count(info.num_redelivered),
            UNKNOWN if info.num_pending is None else show_count(info.num_pending),
            show_count(info.num_waiting),
        )
    console.print(table)
