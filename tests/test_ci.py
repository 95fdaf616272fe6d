"""What continuous integration runs goes on without packages that cannot be fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.source import REPOSITORY

TOOLS = ("bash", "dirname", "env", "id", "mkdir", "timeout")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the script, and `bin` with a `make` that says what it is asked for and an `apt-get` without network."""
    folder, tools = tmp_path / "checkout", tmp_path / "checkout" / "bin"
    (folder / ".ci").mkdir(parents=True)
    tools.mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", folder / ".ci" / "run")
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (tools / tool).symlink_to(found)
    add(tools / "make", 'echo "make $*"')
    add(tools / "apt-get", 'echo "apt-get $*"; exit 100')
    return folder


def add(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def run(checkout: Path) -> tuple[list[str], str]:
    """The commands that the script has run, and what it has complained of."""
    found = subprocess.run(
        [checkout / ".ci" / "run"], env={**os.environ, "PATH": str(checkout / "bin")}, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    return found.stdout.splitlines(), found.stderr


def test_what_cannot_be_fetched_is_skipped(checkout: Path) -> None:
    commands, complaints = run(checkout)
    assert commands[0] == "make audit" and commands[-1] == "make test"
    assert "the tests of the alerts are skipped" in complaints
    assert "the tests of the page in a browser are skipped" in complaints


def test_what_is_there_is_not_fetched(checkout: Path) -> None:
    for name in ("prometheus", "chromium"):
        add(checkout / "bin" / name, "exit 1")
    assert run(checkout) == (["make audit", "make test"], "")


def test_a_browser_is_installed(checkout: Path) -> None:
    add(checkout / "bin" / "sudo", 'shift; exec "$@"')
    add(checkout / "bin" / "prometheus", "exit 1")
    add(checkout / "bin" / "apt-get", 'echo "apt-get $*"')
    commands, complaints = run(checkout)
    assert commands[1:-1] == ["apt-get install --yes --quiet --no-install-recommends chromium"]
    assert complaints == ""
