"""What breaks, and when: a timetable that a seed decides.

Each worker has its own row of faults: it is killed and started again after some seconds, or frozen
for 3 to 35 s, which is longer than the session timeout of the workers' group (6 s) and than a
transaction's timeout (15 s) more often than not. The rows overlap, so now and then both workers are
away. Consumers come at random moments. The broker restarts once, in the middle.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass


class What(enum.Enum):
    KILL = "kill"
    START = "start"
    FREEZE = "freeze"
    THAW = "thaw"
    ARRIVAL = "arrival"
    RESTART_BROKER = "restart broker"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """`at`: seconds since the storm began; `worker`: the number of the worker that it happens to, -1 for none."""

    at: float
    worker: int
    what: What

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.what.value}" + (f" worker {self.worker}" if self.worker >= 0 else "")


FREEZE_S = (3.0, 35.0)


def plan_faults(rng: random.Random, seconds: float, workers: int, arrivals: int) -> list[Fault]:
    """Return the faults of a storm that lasts so many seconds, in order. Every worker runs again at its end."""
    faults = [Fault(rng.uniform(0.35, 0.65) * seconds, -1, What.RESTART_BROKER)]
    faults += [Fault(rng.uniform(0.1, 0.85) * seconds, -1, What.ARRIVAL) for _ in range(arrivals)]
    for worker in range(workers):
        faults += _plan_worker(rng, seconds, worker)
    return sorted(faults, key=lambda fault: fault.at)


def _plan_worker(rng: random.Random, seconds: float, worker: int) -> list[Fault]:
    faults: list[Fault] = []
    at = rng.uniform(0.03, 0.1) * seconds
    while at < seconds:
        if rng.random() < 0.55:
            back = at + rng.uniform(0.5, 6.0)
            faults += [Fault(at, worker, What.KILL), Fault(min(back, seconds), worker, What.START)]
        else:
            back = at + rng.uniform(*FREEZE_S)
            faults += [Fault(at, worker, What.FREEZE), Fault(min(back, seconds), worker, What.THAW)]
        at = back + rng.uniform(6.0, 25.0)
    return faults
