"""`python -m tests.sim.mutants [NAME ...] [--seeds N]`: look for a history that finds each mutant, and print a table.

Exits 1 if a mutant was not found. Mutants that wait for what histories do not do yet are left out, unless they are named. A
mutant that names a scripted history has to be found by that one.
"""

from __future__ import annotations

import argparse
import sys

import click

from .catalog import MUTANTS
from .search import Found, search

WIDTH = 110


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants; without a name all that can be found")
    parser.add_argument("--seeds", type=int, default=2_000, metavar="N", help="give a mutant up after N histories")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first history's seed")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in MUTANTS]:
        parser.error(f"no mutant is called {unknown[0]}; there are {', '.join(MUTANTS)}")
    names = asked.names or [name for name, mutant in MUTANTS.items() if not mutant.waits_for]
    click.echo("| mutant | takes out | histories | failure |\n|---|---|---|---|")
    lost = 0
    for name in names:
        found = search(name, range(asked.first, asked.first + asked.seeds))
        lost += found is None
        needed, failure = (
            (f"> {asked.seeds}", "") if found is None else (_count(name, found, asked.first), found.failure)
        )
        origin = MUTANTS[name].mend or "planted"
        click.echo(f"| {name} | {origin} | {needed} | {failure[:WIDTH].replace('|', '/')} |")
    return 1 if lost else 0


def _count(name: str, found: Found, first: int) -> str:
    """Return how many histories it took from a seed on, or the scripted history that found the mutant."""
    return MUTANTS[name].history if found.seed is None else str(found.seed - first + 1)


if __name__ == "__main__":
    sys.exit(main())
