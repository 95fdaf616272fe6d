"""What a bench reports: a case with our figure, the peers' figures, the ratios between them and the goals (pure).

A ratio says how many times better we are than the peer, so that more is always better: for rates ours / theirs, for
times theirs / ours.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Unit(enum.Enum):
    RATE = "records/s"  # more is better
    # of these less is better
    MILLISECONDS = "ms"
    PERCENT = "%"
    KILOBYTES = "KB"
    MEGABYTES = "MB"


OVERLAY = "overlay"
"""Our side's name among the runs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a bench: medians over the rounds.

    `peers`, `ratio`, `goal` and `skipped` go by the peer's name; `limit` holds goals on our figures alone, by the name of
    the figure (`p50`; `overlay` for that of the case), in the unit of the case: what a rate must reach, and others stay
    below. `extra` are further figures of ours.
    `runs`: what each round gave.
    """

    name: str
    unit: Unit
    overlay: float
    peers: Mapping[str, float] = field(default_factory=dict)
    goal: Mapping[str, float] = field(default_factory=dict)
    limit: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> dict[str, float]:
        return {peer: find_ratio(self.unit, self.overlay, theirs) for peer, theirs in self.peers.items()}

    def judge(self) -> dict[str, bool]:
        """Whether each goal is met."""
        ratio = self.ratio
        reached = {peer: ratio[peer] >= goal for peer, goal in self.goal.items() if peer in ratio}
        figures = {OVERLAY: self.overlay, **self.extra}
        limits = {name: limit for name, limit in self.limit.items() if name in figures}
        if self.unit is Unit.RATE:
            return reached | {name: figures[name] >= limit for name, limit in limits.items()}
        return reached | {name: figures[name] < limit for name, limit in limits.items()}

    def to_json(self) -> dict[str, object]:
        """Return the case as an object for JSON. Rates to the record, ratios to two places."""
        return {
            "case": self.name,
            "unit": self.unit.value,
            "overlay": _shorten(self.unit, self.overlay),
            **{name: _shorten(self.unit, value) for name, value in self.extra.items()},
            "peers": {peer: _shorten(self.unit, value) for peer, value in self.peers.items()},
            "ratio": {peer: round(value, 2) for peer, value in self.ratio.items()},
            "goal": dict(self.goal) | dict(self.limit),
            "met": self.judge(),
            "skipped": dict(self.skipped),
            "runs": {side: [_shorten(self.unit, value) for value in values] for side, values in self.runs.items()},
        }


def find_ratio(unit: Unit, ours: float, theirs: float) -> float:
    """How many times better `ours` is. Both must be above 0."""
    return ours / theirs if unit is Unit.RATE else theirs / ours


def find_percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of `values` that at least `percent` % of them do not exceed (nearest rank). Not for empty ones."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def summarise(
    name: str,
    unit: Unit,
    runs: Mapping[str, Sequence[float]],
    *,
    goal: Mapping[str, float],
    skipped: Mapping[str, str],
) -> Case:
    """A case from what each side gave in each round; a side without rounds is left out, ours must be there."""
    medians = {side: statistics.median(values) for side, values in runs.items() if values}
    return Case(name, unit, medians.pop(OVERLAY), medians, goal, skipped=skipped, runs=runs)


def _shorten(unit: Unit, value: float) -> float:
    return round(value) if unit is Unit.RATE else round(value, 2)
