"""The `overlay` command as a shell sees it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from overlay.cli import COMMANDS, overlay
from overlay.local import status, stop
from tests.support.waiting import wait_until

HEAVY = (
    "numba",
    "pyarrow",
    "pydantic",
    "aiokafka",
    "confluent_kafka",
    "numpy",
    "faust",
    "aiohttp",
    "rich",
    "cryptography",
)
HELP_S = 0.4
SLOW_MACHINE = 3


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overlay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_help_answers_at_once() -> None:
    def measure() -> float:
        """Return the processor's seconds that the command took."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(measure() for _ in range(3)) < HELP_S * SLOW_MACHINE


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom overlay.cli import overlay\n"
        "overlay(['--help'], standalone_mode=False)\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_help_lists_every_command_with_its_line() -> None:
    shown = " ".join(CliRunner().invoke(overlay, ["--help"]).output.split())
    for name, entry in COMMANDS.items():
        assert f"{name} {entry.help}" in shown


def test_unknown_command_is_a_usage_error() -> None:
    done = run("dance")
    assert done.returncode == 2
    assert "No such command 'dance'" in done.stderr


def test_overlay_errors_are_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("local", "up", "--home", tmp_path / "file" / "home")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_logs_without_broker_say_so(tmp_path: Path) -> None:
    done = run("local", "logs", "--home", tmp_path)
    assert done.returncode == 1
    assert "no broker has run there" in done.stderr


def test_status_without_broker_has_its_exit_code(tmp_path: Path) -> None:
    assert CliRunner().invoke(overlay, ["local", "status", "--home", str(tmp_path)]).exit_code == 3
    done = run("local", "status", "--json", "--home", tmp_path)
    assert json.loads(done.stdout)["condition"] == "absent"


@pytest.mark.kafka
def test_up_status_logs_down(tmp_path: Path) -> None:
    try:
        up = run("local", "up", "--home", tmp_path)
        assert up.returncode == 0, up.stderr
        assert status(tmp_path).bootstrap in up.stdout
        assert "overlay local down --home" in up.stdout
        assert "running already" in run("local", "up", "--home", tmp_path).stdout
        shown = json.loads(run("local", "status", "--json", "--home", tmp_path).stdout)
        assert (shown["condition"], shown["bootstrap"]) == ("running", status(tmp_path).bootstrap)
        assert "Kafka Server started" in run("local", "logs", "-n", "100", "--home", tmp_path).stdout
        _check_topic(tmp_path)
        _check_follow(tmp_path)
        assert "was not running" in run("local", "down", "--home", tmp_path).stdout
    finally:
        stop(tmp_path)


def _check_topic(home: Path) -> None:
    """`topic` finds the broker of its home by itself."""
    assert run("local", "topic", "create", "orders", "--partitions", "2", "--home", home).returncode == 0
    (home / "orders.txt").write_text("a\nb\n")
    done = run("local", "topic", "produce", "orders", home / "orders.txt", "--format", "raw", "--home", home)
    assert done.stdout.startswith("2 records written to orders"), done.stderr
    assert run("local", "topic", "list", "--home", home).stdout.split()[-3:] == ["orders", "2", "2"]


def _check_follow(home: Path) -> None:
    """`logs --follow` prints what is added, and ends with the broker."""
    command = [sys.executable, "-m", "overlay", "local", "logs", "--follow", "-n", "1000", "--home", str(home)]
    with (home / "followed").open("w+") as followed, subprocess.Popen(command, stdout=followed) as follower:
        wait_until(lambda: "Kafka Server started" in (home / "followed").read_text(), 20, "the log to be printed")
        assert run("local", "down", "--home", home).stdout.strip() == "Kafka has stopped"
        assert follower.wait(20) == 0
    log = (home / "logs" / "broker.log").read_text()
    assert (home / "followed").read_text().splitlines()[-1] == log.splitlines()[-1]
