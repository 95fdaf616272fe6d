"""The lock files and the Makefile: that set-up needs nothing but a Python, and takes what was locked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from supply.locks import read_lock

from .tree import ROOT

LOCKS = ("requirements.lock", "requirements-service.lock", "requirements-build.lock")
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def _pins(lock: str) -> set[tuple[str, str]]:
    return set(_PIN.findall((ROOT / lock).read_text(encoding="utf-8")))


def _names(requirements: list[str]) -> set[str]:
    words = (re.split(r"[\[<>=! ]", text)[0] for text in requirements)
    return {re.sub(r"[-_.]+", "-", word).lower() for word in words} - {"kafka-overlay"}


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_name_no_registry_and_every_package_has_hashes(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|file:|--(extra-)?index|--find-links|(?<!\w)/\w", text)
    entries = [entry for entry in re.split(r"\n(?=[a-z0-9])", text) if _PIN.match(entry)]
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_locks_hold_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run = _names(project["dependencies"])
    extras = _names([text for extra in project["optional-dependencies"].values() for text in extra])
    assert run - {name for name, _ in _pins("requirements-service.lock")} == set(), "run `make lock`"
    assert (run | extras) - {name for name, _ in _pins("requirements.lock")} == set(), "run `make lock`"


def test_every_python_gets_the_same_versions() -> None:
    names = [name for name, _ in _pins("requirements.lock")]
    assert len(names) == len(set(names))


def test_the_image_has_the_versions_that_the_tests_have() -> None:
    assert _pins("requirements-service.lock") <= _pins("requirements.lock")
    assert _pins("requirements-build.lock") <= _pins("requirements.lock")


def test_the_build_backend_is_locked() -> None:
    """`make lock` takes it from the line that it reads here as well."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = _names(tomllib.loads(text)["build-system"]["requires"])
    assert re.findall(r'^requires = \["([a-z]+)[^"]*"\]$', text, re.MULTILINE) == [*asked]
    locked = {package.name: package.users for package in read_lock(ROOT / "requirements-build.lock")}
    assert asked <= locked.keys()
    assert {user for users in locked.values() for user in users} - locked.keys() == set()
    theirs = {package.name for package in read_lock(ROOT / "requirements.lock") if asked & {*package.users}}
    assert theirs <= locked.keys()


def _copy_project(folder: Path) -> None:
    for name in ("Makefile", "pyproject.toml", *LOCKS):
        shutil.copy(ROOT / name, folder)


def _make(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path or os.environ["PATH"], "HOME": str(folder)}
    command = [str(shutil.which("make")), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_a_python_that_is_too_old_is_told(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    _write_program(tmp_path / "old", "exit 1\n")
    done = _make(tmp_path, "venv", f"PYTHON={tmp_path / 'old'}")
    assert done.returncode != 0
    assert "no Python 3.11 or newer" in done.stderr
    assert "make venv PYTHON=" in done.stderr


def test_a_python_without_ensurepip_is_told(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    _write_program(tmp_path / "bare", 'case "$2" in *ensurepip*) exit 1;; esac\n')
    done = _make(tmp_path, "venv", f"PYTHON={tmp_path / 'bare'}")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def _write_fake_python(folder: Path) -> Path:
    """A Python whose `-m venv` makes a folder with a pip that notes its calls, and fails while `broken` is there."""
    pip = f'echo "$@" >> {folder}/calls; test ! -e {folder}/broken\n'
    python = folder / "python"
    script = f"#!/bin/sh\n{pip}"
    _write_program(
        python,
        f'case "$1" in --version) echo Python 3.12.0;; -m) echo "$@" >> {folder}/calls; for last; do :; done;'
        f" mkdir -p $last/bin; cat > $last/bin/python <<'EOF'\n{script}EOF\nchmod +x $last/bin/python;; esac\n",
    )
    return python


def test_an_install_that_was_broken_off_is_begun_again_and_a_finished_one_is_left_alone(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    asked = f"PYTHON={_write_fake_python(tmp_path)}"
    calls = tmp_path / "calls"
    (tmp_path / "broken").touch()
    assert _make(tmp_path, "venv", asked).returncode != 0
    assert not (tmp_path / ".venv/.installed").exists()
    assert "--clear" not in calls.read_text()

    (tmp_path / "broken").unlink()
    calls.unlink()
    done = _make(tmp_path, "venv", asked)
    assert done.returncode == 0, done.stderr
    venv, packages, project = calls.read_text().splitlines()
    assert venv == f"-m venv --clear {(tmp_path / '.venv').resolve()}"
    assert {"--require-hashes", "--no-deps"} <= set(packages.split())
    assert {"--editable", "--no-deps", "--no-build-isolation"} <= set(project.split())

    calls.unlink()
    assert _make(tmp_path, "venv", asked).stdout.strip() in ("", "make: Nothing to be done for 'venv'.")
    assert not calls.exists()

    later = time.time() + 10
    os.utime(tmp_path / "requirements.lock", (later, later))
    assert _make(tmp_path, "venv", asked).returncode == 0
    assert calls.read_text().startswith(f"-m venv {(tmp_path / '.venv').resolve()}\n")


def test_help_lists_every_target_that_is_meant_for_people(tmp_path: Path) -> None:
    done = _make(ROOT, "help")
    shown = re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert shown == phony[1].split()


def test_ci_runs_what_a_contributor_types() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")
    assert sys.version_info >= (3, 11)
