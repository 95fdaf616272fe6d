"""Take turns: every round runs each side once, and the next round begins with another side.

What the machine does beside (a compaction, a neighbour) then falls on all sides alike, and the median of the rounds
drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bench.errors import PeerUnavailable
from bench.figures import OVERLAY


class Named(Protocol):
    @property
    def name(self) -> str: ...


SideT = TypeVar("SideT", bound=Named)


@dataclass(slots=True)
class Runs:
    """What each side gave, a figure a round, and why some gave nothing."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def take_turns(sides: Sequence[SideT], rounds: int, measure: Callable[[SideT], float]) -> Runs:
    """Run `measure` on every side in every round. A peer that raises PeerUnavailable is out."""
    runs = Runs({side.name: [] for side in sides})
    for number in range(rounds):
        first = number % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            if side.name in runs.skipped:
                continue
            try:
                runs.figures[side.name].append(measure(side))
            except PeerUnavailable as error:
                if side.name == OVERLAY:
                    # without our own side there is nothing to compare
                    raise
                runs.skipped[side.name] = str(error)
                del runs.figures[side.name]
    return runs
