"""`python -m tests.sim.mutants.scripted NAME TEST`: run a scripted history with a mutant, or without one if NAME is empty."""

from __future__ import annotations

import json
import sys

import pytest

from .catalog import MUTANTS
from .mutant import ROOT

FOLDER = ROOT / "tests" / "sim"


class _Failures:
    """A plugin of pytest that keeps how tests failed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        if report.failed and crash is not None:
            self.found.append(" ".join(str(crash.message).split()))


def run(name: str, test: str) -> str | None:
    """Run a test in this process, and return how it failed, None if it passed. Raises RuntimeError if there is no such test."""
    if name:
        MUTANTS[name].install()
    failures = _Failures()
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", f"{FOLDER}/{test}"], plugins=[failures])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"{test} could not be run: {status!r}")
    return None if status == pytest.ExitCode.OK else failures.found[0]


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))  # noqa: T201
