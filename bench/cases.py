"""The cases of a bench over the flights: each codec with each selectivity, every side in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

from bench.dataset import CODECS, SELECTIVITIES, Dataset
from bench.errors import PeerUnavailable
from bench.figures import Case, Unit, summarise
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings
from bench.sides import Contender, Tally, Work

Goals = Mapping[str, Mapping[str, float]]
"""By case and peer: how many times better than the peer is wanted."""
SideT = TypeVar("SideT", bound=Contender)
WorkT = TypeVar("WorkT")


def measure_cases(
    bench: str,
    sides: Sequence[SideT],
    run: Callable[[SideT, Work], Tally],
    goals: Goals,
    dataset: Dataset,
    settings: Settings,
    progress: Progress,
) -> Iterator[Case]:
    """Each case as soon as it is measured; the sides are closed at the end.

    `run` has a side do the work and checks what came of it. Sides that run in this process do a little first, then
    everything a few times, for the broker's sake.
    """
    sides = [side for side in sides if settings.wants_side(side.name)]
    with ExitStack() as stack:
        for side in sides:
            stack.enter_context(closing(side))
        for codec in CODECS:
            chosen = [name for name in SELECTIVITIES if settings.wants_case(codec, name)]
            if not chosen:
                continue
            dataset.publish(codec, progress.count(f"publishing {codec}"))
            warm_up(sides, run, dataset.plan_warm_up(codec), progress)
            for _ in range(settings.passes):
                warm_up(sides, run, dataset.plan(codec, SELECTIVITIES["100%"]), progress)
            for name in chosen:
                case, work = f"{codec}/{name}", dataset.plan(codec, SELECTIVITIES[name])
                yield measure_case(bench, case, sides, run, work, goals.get(case, {}), settings.rounds, progress)


def measure_case(
    bench: str,
    case: str,
    sides: Sequence[SideT],
    run: Callable[[SideT, WorkT], Tally],
    work: WorkT,
    goal: Mapping[str, float],
    rounds: int,
    progress: Progress,
) -> Case:
    """One case: every side does the same work in every round."""

    def measure_side(side: SideT) -> float:
        progress.say(f"{bench} {case}: {side.name}")
        return run(side, work).rate

    runs = take_turns(sides, rounds, measure_side)
    return summarise(case, Unit.RATE, runs.figures, goal=goal, skipped=runs.skipped)


def warm_up(sides: Sequence[SideT], run: Callable[[SideT, WorkT], Tally], work: WorkT, progress: Progress) -> None:
    """Have those sides that run in this process do a little work."""
    for side in sides:
        if side.warm:
            progress.say(f"warming up {side.name}")
            try:
                run(side, work)
            except PeerUnavailable:
                continue  # the first round meets the same and says so
