"""`overlay demo` as it is typed: to its end, kept, refused, broken off, and when the verdict is bad."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from overlay.cli.demo import demo
from overlay.config import load
from overlay.demo.home import DemoError, DemoHome, open_home, write_config
from overlay.demo.screen import Screen
from overlay.demo.service import start_service
from overlay.demo.spark import show_spark
from overlay.local import Condition, status, stop
from overlay.local.flights import read_flights
from overlay.local.locks import is_locked
from tests.support.waiting import wait_until

# the first start of a machine compiles the kernels
DEADLINE_S = 200
SCALE = "0.02"


@contextmanager
def started(home: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, its output in `out` beside the home. Nothing of it outlives the block."""
    command = [sys.executable, "-m", "overlay", "demo", "--home", str(home), *options]
    with output_of(home).open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        kept = DemoHome(home)
        if is_locked(kept.life_lock):
            subprocess.run(["kill", "-9", kept.pid.read_text().strip()], check=True)
        stop(kept.kafka)


def output_of(home: Path) -> Path:
    return home.with_suffix(".out")


def read(home: Path) -> str:
    return output_of(home).read_text(encoding="utf-8")


def has_ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def assert_stopped(home: Path) -> None:
    assert status(DemoHome(home).kafka).condition is not Condition.RUNNING
    assert not is_locked(DemoHome(home).life_lock)


@pytest.mark.kafka
@pytest.mark.slow
def test_a_kept_demo_goes_on_until_the_commands_it_prints(tmp_path: Path) -> None:
    home = tmp_path / "demo"
    with started(home, "--scale", SCALE, "--keep") as process:
        wait_until(lambda: has_ended(process), DEADLINE_S, "the demo ends")
        said = read(home)
        assert process.returncode == 0, said
        assert "\x1b" not in said
        assert "publishing flights: 6,736 of 6,736" in said
        assert "OK: each output topic holds exactly the flights that its filters select" in said
        _check_spark(said)

        again = CliRunner().invoke(demo, ["--home", str(home), "--scale", SCALE])
        assert isinstance(again.exception, DemoError)
        assert "a demo still runs there. Stop it first (kill " in str(again.exception)

        _read_deliveries(said)
        _check_consumers(said)
        config = load(DemoHome(home).config)
        assert not config.problems
        first_line = (DemoHome(home).config / "overlay.yaml").read_text().splitlines()[0]
        assert (DemoHome(home).config / first_line.rpartition("=")[2]).is_file()

        stopping = re.search(r"stop both +(.*)", said)
        assert stopping is not None
        subprocess.run(_on_this_path(stopping[1]), shell=True, check=True, capture_output=True, timeout=90)
        wait_until(lambda: not is_locked(DemoHome(home).life_lock), 30, "the service has ended")
        assert_stopped(home)


def _check_spark(said: str) -> None:
    """The table that Spark printed says what the data set says."""
    flights = read_flights().slice(0, 6_736).to_pandas()
    chosen = flights.carrier.isin(["AA", "UA"]) | flights.tailnum.fillna("").str.fullmatch("N.*JB")
    wanted = flights[(flights.dep_delay > 60) & (flights.distance >= 1000) & chosen]
    for carrier, group in wanted.groupby("carrier"):
        mean, longest = group.dep_delay.mean(), group.dep_delay.max()
        line = rf"  {carrier} +{len(group):,} +{mean:.1f} min +{longest:.0f} min\n"
        assert re.search(line, said), (line, said)
    assert f"Spark's own Kafka source read these {len(wanted):,} flights" in said


def _on_this_path(command: str) -> str:
    """`overlay` stands for the one under test, wherever it is installed."""
    return re.sub(r"\S+( -m overlay)? local\b", f"{shlex.quote(sys.executable)} -m overlay local", command)


def _read_deliveries(said: str) -> None:
    """The printed one-liner shows records of the first output topic."""
    line = re.search(r'a few deliveries +\S+ -c "(.*)"', said)
    assert line is not None
    shown = subprocess.run([sys.executable, "-c", line[1]], check=True, capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith('flights.JFK.LAX.AA {"year": 2013')


def _check_consumers(said: str) -> None:
    url = re.search(r"(http://\S+/consumers)", said)
    assert url is not None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url[1], timeout=10) as answer:
        found = {consumer["name"]: consumer["lag_records"] for consumer in json.load(answer)}
    assert found == {"jfk-lax-aa": 0, "laguardia-and-ohare": 0, "late-long-haul": 0, "sfo-united": 0}


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_demo_that_is_broken_off_stops_what_it_started(tmp_path: Path, number: signal.Signals, code: int) -> None:
    home = tmp_path / "demo"
    with started(home, "--scale", "20") as process:
        wait_until(lambda: "publishing flights" in read(home) or has_ended(process), DEADLINE_S, "it publishes")
        process.send_signal(number)
        wait_until(lambda: has_ended(process), 60, "the demo ends")
        assert process.returncode == code, read(home)
        assert "Kafka has stopped" in read(home)
        assert_stopped(home)


def test_spark_that_fails_is_quoted(tmp_path: Path) -> None:
    with open_home(tmp_path / "demo") as home:
        write_config(home, "127.0.0.1:1")
        (home.config / "consumers" / "late-long-haul.yaml").unlink()
        with pytest.raises(DemoError, match=r"(?s)exit code 1\. `overlay demo --no-spark` .*Kafka did not answer"):
            show_spark(Screen(Console(quiet=True)), home)


def test_a_bad_verdict_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for good in (True, False):
        monkeypatch.setattr("overlay.demo.play.play", lambda *_, good=good, **__: good)
        assert CliRunner().invoke(demo, []).exit_code == (0 if good else 1)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "thesis.txt").write_text("mine")
    with pytest.raises(DemoError, match="holds files that are not the demo's"), open_home(tmp_path):
        pass
    assert (tmp_path / "kafka" / "thesis.txt").read_text() == "mine"


def test_a_folder_of_an_earlier_demo_is_begun_anew(tmp_path: Path) -> None:
    with open_home(tmp_path / "demo") as home:
        write_config(home, "127.0.0.1:1")
        home.log.write_text("old")
        with pytest.raises(DemoError, match="another `overlay demo` is at work"), open_home(tmp_path / "demo"):
            pass
    with open_home(tmp_path / "demo") as home:
        assert not home.config.exists()
        assert not home.log.exists()
        write_config(home, "127.0.0.1:1")


def test_a_service_that_dies_is_quoted(tmp_path: Path) -> None:
    with open_home(tmp_path / "demo") as home:
        url = write_config(home, "127.0.0.1:1")
        (home.config / "overlay.yaml").write_text("kafka: {bootstrap.server: x}\n")
        service = start_service(home, url)
        try:
            with pytest.raises(DemoError, match=r"(?s)has ended with exit code 1\. The end of .*bootstrap\.server"):
                wait_until(lambda: service.look() and None, 60, "looking at it fails")
        finally:
            service.stop()
        assert service.stop() == 1
        assert not is_locked(home.life_lock)
