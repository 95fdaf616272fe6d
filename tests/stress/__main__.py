"""The command: see the package's docstring."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys

# one arena for all threads; each byte that is freed is overwritten, and each that is allocated has another value than zero
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "165"}


def main() -> int:
    """Run jobs for a while. Return 1 if an answer was wrong or a thread failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="Do pure work in many threads.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2, help="for each job")
    parser.add_argument("--jobs", default="", help="names to look for, with commas between; all when empty")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # malloc reads these when the process starts
        command = [sys.executable, "-m", "tests.stress", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ENVIRONMENT})
    faulthandler.enable()
    from .engine import run
    from .jobs import JOBS
    from .neighbours import NEIGHBOURS

    wanted = [job for job in JOBS if any(word in job.name for word in options.jobs.split(","))]
    if not wanted:
        parser.error(f"no job has such a name: {options.jobs}. There are {', '.join(job.name for job in JOBS)}")
    report = run(wanted, NEIGHBOURS, options.seconds, options.threads)
    for name, times in sorted(report.done.items()):
        sys.stdout.write(f"{name}: {times}\n")
    for fault in report.faults:
        sys.stderr.write(f"FAULT {fault}\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
