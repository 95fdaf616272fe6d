"""Many histories, in one process or in several at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .host import warm_up
from .storm import Storm


@dataclass(frozen=True, slots=True)
class Ended:
    """How a history ended. `failure`: empty if all promises were kept. `virtual_s`: how long it took on its own clock."""

    seed: int
    failure: str
    virtual_s: float


def run_many(seeds: Iterable[int], processes: int) -> Iterator[Ended]:
    """Run the histories of some seeds, and yield each when it has ended.

    Processes are forked from this one when it has loaded what all histories need. Each takes the next seed when it is free.
    """
    warm_up()
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds)


def run(seed: int) -> Ended:
    """Run the history of a seed."""
    storm = Storm(seed)
    start, failure = storm.world.loop.now, ""
    try:
        storm.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, the history has failed
        failure = f"{type(error).__name__}: {error}"
    return Ended(seed, failure, storm.world.loop.now - start)
