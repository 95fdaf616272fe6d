"""`python -m tests.sim SEED` runs one history; `--seeds 1000` runs many. Exits 0 if all promises were kept."""

from __future__ import annotations

import argparse
import os
import sys

from .mutants.catalog import MUTANTS

HASH_SEED = "0"


def fix_hashes() -> None:
    """Start this command again with a fixed PYTHONHASHSEED, unless it has it: sets of texts are walked by their hashes."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Run simulated histories.")
    parser.add_argument("seed", type=int, nargs="?", help="run this history, and print its story if it fails")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="run N histories")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="with --seeds or --speed: the first one")
    parser.add_argument(
        "--speed", action="store_true", help="measure quiet histories and storms, 20 or as --seeds says"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="with --seeds: how many run at once")
    parser.add_argument(
        "--shrink", type=int, default=40, metavar="N", help="runs to find a shorter story with (default: 40)"
    )
    parser.add_argument("--story", action="store_true", help="print the story of a history that passes as well")
    parser.add_argument("--requests", action="store_true", help="with a line for each request in the story")
    parser.add_argument("--mutant", choices=MUTANTS, metavar="NAME", help="with this fault in the product")
    return parser.parse_args()


if __name__ == "__main__":
    fix_hashes()
    asked = parse()
    if asked.mutant:
        MUTANTS[asked.mutant].install()
    from .command import run  # not before: it imports the product

    sys.exit(run(asked))
