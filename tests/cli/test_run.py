"""`overlay run` up to where it would serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from overlay.cli.run import run
from overlay.cli.validate import validate
from overlay.errors import ConfigError
from tests.config.folders import write_folder


def test_the_folder_comes_from_the_environment_as_for_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = write_folder(tmp_path / "meant", {"streams/flights.yaml": "zork: 1\n"}), tmp_path / "here"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setenv("OVERLAY_CONFIG", str(folder))
    done = CliRunner().invoke(run, [])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(f"{folder}: no stream can be served. Add one to streams/")


def test_without_one_it_is_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERLAY_CONFIG", raising=False)
    done = CliRunner().invoke(run, [])
    assert isinstance(done.exception, ConfigError)
    assert "overlay.yaml: no such file. A config folder holds" in str(done.exception)


def test_the_folder_of_init_is_found_below_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "overlay-config", {"streams/flights.yaml": "zork: 1\n"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OVERLAY_CONFIG", raising=False)
    assert str(CliRunner().invoke(run, []).exception).startswith("overlay-config: no stream can be served")
    assert "overlay-config/streams/flights.yaml" in CliRunner().invoke(validate, []).output
    # the current folder counts if it is one itself, and the environment counts more than both
    (tmp_path / "overlay.yaml").write_text("kafka: {bootstrap.servers: 127.0.0.1:9092}\n")
    assert "0 problems" in CliRunner().invoke(validate, []).output
    monkeypatch.setenv("OVERLAY_CONFIG", str(tmp_path / "overlay-config"))
    assert "flights.yaml" in CliRunner().invoke(validate, []).output
