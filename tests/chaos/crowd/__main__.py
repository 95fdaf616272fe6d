"""`python -m tests.chaos.crowd`: one storm, and whether it broke a promise."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from .storm import Storm


def main() -> int:
    """Run one storm, print what it found, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.crowd", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the faults last (default: 900)")
    parser.add_argument("--consumers", type=int, default=300, help="how many consumers there are (default: 300)")
    parser.add_argument("--rate", type=float, default=400.0, help="orders a second (default: 400)")
    parser.add_argument(
        "--no-clock", action="store_true", help="judge nothing by the clock: for a machine that is busy"
    )
    parser.add_argument("--folder", type=Path, help="where config and logs go (default: a temporary folder)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="overlay-crowd-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"crowd: seed {options.seed}, {options.seconds:.0f} s, logs in {folder}", flush=True)  # noqa: T201
    storm = Storm(
        folder, options.seed, options.seconds, options.consumers, options.rate, trusts_clock=not options.no_clock
    )
    found = storm.run()
    print(json.dumps(found.figures), flush=True)  # noqa: T201
    for fault in found.faults:
        print(f"BROKEN: {fault}", flush=True)  # noqa: T201
    print(f"crowd: {'broke a promise' if found.faults else 'passed'} (seed {options.seed})", flush=True)  # noqa: T201
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
