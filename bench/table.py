"""The cases as a table for people: our figure, each peer's, how many times better we are, and if the goal is met."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.figures import OVERLAY, Case, Unit


def print_table(bench: str, cases: Sequence[Case], console: Console | None = None) -> None:
    """Print to standard output. A goal that was missed says so; a peer that did not run says why below the table."""
    console = console or Console()
    peers = list(dict.fromkeys(peer for case in cases for peer in [*case.peers, *case.skipped]))
    table = Table(title=f"{bench}: medians, and how many times better the overlay is", title_justify="left")
    table.add_column("case")
    table.add_column("overlay", justify="right")
    for peer in peers:
        table.add_column(peer, justify="right")
    for case in cases:
        table.add_row(case.name, format_ours(case), *(format_peer(case, peer) for peer in peers))
    console.print(table)
    reasons = {(side, why): None for case in cases for side, why in case.skipped.items()}
    for side, why in reasons:
        console.print(f"{side} did not run: {why}", markup=False)


def format_ours(case: Case) -> str:
    """Our figure, with percentiles where there are some."""
    met = case.judge()

    def tell(name: str, value: float) -> str:
        if name not in case.limit:
            return format_figure(case.unit, value)
        goal = f"{case.limit[name] / 1000:,g} k/s" if case.unit is Unit.RATE else f"< {case.limit[name]:g}"
        return f"{format_figure(case.unit, value)} (goal {goal}: {_tell(met[name])})"

    return "\n".join(
        [tell(OVERLAY, case.overlay), *(f"{name} {tell(name, value)}" for name, value in case.extra.items())]
    )


def format_peer(case: Case, peer: str) -> str:
    """A peer's figure, the ratio, and the goal if there is one."""
    if peer not in case.peers:
        return "-"
    text = format_figure(case.unit, case.peers[peer])
    if peer in case.ratio:
        text += f"\n{case.ratio[peer]:.2f}x"
        if peer in case.goal:
            text += f" (goal {case.goal[peer]:g}: {_tell(case.judge()[peer])})"
    return text


def format_figure(unit: Unit, value: float) -> str:
    if unit is Unit.RATE:
        return f"{value / 1000:,.0f} k/s"
    return f"{value:,.2f} %" if unit is Unit.PERCENT else f"{value:,.1f} {unit.value}"


def _tell(met: bool) -> str:
    return "met" if met else "MISSED"
