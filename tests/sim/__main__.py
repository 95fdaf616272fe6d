"""`python -m tests.sim SEED` runs one history; `--seeds 1000` runs many. Exits 0 if all promises were kept."""

from __future__ import annotations

import os
import sys

HASH_SEED = "0"


def fix_hashes() -> None:
    """Start this command again with a fixed PYTHONHASHSEED, unless it has it: sets of texts are walked by their hashes."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])


if __name__ == "__main__":
    fix_hashes()
    from .command import main  # not before: it imports the service, which takes seconds

    sys.exit(main())
