"""Looking for the first history that finds a mutant, in a Python process of its own for each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

HASH_SEED = "0"
LONGEST_S = 900
"""Real seconds that one history may take: one that does not end has found the mutant as well."""


@dataclass(frozen=True, slots=True)
class Found:
    """A history that failed: its seed and the failure in one line."""

    seed: int
    failure: str


def search(name: str, seeds: Iterable[int]) -> Found | None:
    """Return the first of some seeds whose history fails with a mutant, and passes without."""
    left = list(seeds)
    while left:
        found = _spawn(name, left)
        if found is None:
            return None
        if _spawn("", [found.seed]) is None:
            return found
        left = [seed for seed in left if seed > found.seed]
    return None


def _spawn(name: str, seeds: Iterable[int]) -> Found | None:
    """Run histories in another process, with a mutant or, if `name` is empty, without one."""
    command = [sys.executable, "-m", "tests.sim.mutants.search", name, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return None if told is None else Found(told["seed"], told["failure"])


def run(name: str, seeds: Iterable[int]) -> Found | None:
    """Run histories in this process, up to the first that fails."""
    if name:
        from .catalog import MUTANTS

        MUTANTS[name].install()
    # not before: it imports the product
    from overlay.logs import set_up_logs
    from tests.sim.storm import Storm

    set_up_logs(level=50)
    signal.signal(signal.SIGALRM, _give_up)
    for seed in seeds:
        signal.alarm(LONGEST_S)
        try:
            Storm(seed).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the history has failed
            return Found(seed, _tell(error))
        finally:
            signal.alarm(0)
    return None


def _give_up(*_: Any) -> None:
    raise TimeoutError(f"the history has not ended after {LONGEST_S} s")


def _tell(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    found = run(sys.argv[1], map(int, sys.argv[2:]))
    print(json.dumps(None if found is None else {"seed": found.seed, "failure": found.failure}))  # noqa: T201
