"""Looking for a history that finds a mutant: the scripted one that it names, or else the first of some seeds.

Each search has a Python process of its own, for a mutant can only be put in while the product is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .catalog import MUTANTS

HASH_SEED = "0"
LONGEST_S = 900
"""Real seconds that one history may take: one that does not end has found the mutant as well."""


@dataclass(frozen=True, slots=True)
class Found:
    """A history that failed: its seed, None for a scripted one, and the failure in one line."""

    seed: int | None
    failure: str


def search(name: str, seeds: Iterable[int]) -> Found | None:
    """Return a history that fails with a mutant and passes without: the scripted one that the mutant names, or else that of
    the first of some seeds. None if there is none."""
    if test := MUTANTS[name].history:
        failure = _ask("scripted", name, test)
        return None if failure is None or _ask("scripted", "", test) is not None else Found(None, failure)
    left = list(seeds)
    while left and (found := _spawn(name, left)) is not None:
        assert found.seed is not None
        if _spawn("", [found.seed]) is None:
            return found
        left = [seed for seed in left if seed > found.seed]
    return None


def _spawn(name: str, seeds: Iterable[int]) -> Found | None:
    """Run histories in another process, with a mutant or, if `name` is empty, without one."""
    told = _ask("search", name, *map(str, seeds))
    return None if told is None else Found(told["seed"], told["failure"])


def _ask(module: str, *arguments: str) -> Any:
    """Run a module of this package in another process, and return what it prints last, which is JSON."""
    command = [sys.executable, "-m", f"tests.sim.mutants.{module}", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(name: str, seeds: Iterable[int]) -> Found | None:
    """Run histories in this process, up to the first that fails."""
    if name:
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
