"""`python -m tests.sim.mutants [NAME ...] [--seeds N]`: look for a history that finds each mutant, and print a table.

Exits 1 if a mutant was not found. Mutants that wait for what histories do not do yet are left out, unless they are named.
"""

from __future__ import annotations

import argparse
import sys

import click

from .catalog import MUTANTS
from .search import search

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
    click.echo("| mutant | takes out | seeds | failure |\n|---|---|---|---|")
    lost = 0
    for name in names:
        found = search(name, range(asked.first, asked.first + asked.seeds))
        lost += found is None
        seeds, failure = (f"> {asked.seeds}", "") if found is None else (found.seed - asked.first + 1, found.failure)
        origin = MUTANTS[name].mend or "planted"
        click.echo(f"| {name} | {origin} | {seeds} | {failure[:WIDTH].replace('|', '/')} |")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
