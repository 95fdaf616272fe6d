"""`bench start`: every command runs and says what it must; a peer that is not there is told."""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import replace

import pytest

from bench import start
from bench.dataset import load
from bench.errors import PeerUnavailable, WrongAnswer
from bench.progress import Progress
from bench.settings import Settings
from bench.start import LIMITS, Command, time_command

QUICK = replace(Settings().shorten(), scale=0.01)


def test_every_case_is_measured(bootstrap: str) -> None:
    found = {case.name: case for case in start.measure(load(bootstrap, QUICK.scale), QUICK, Progress(io.StringIO()))}
    assert list(found) == ["import", "ls", "info", "next", "read"]
    assert {name: case.limit["overlay"] for name, case in found.items() if case.limit} == LIMITS
    assert all(case.overlay > 0 for case in found.values())
    assert set(found["import"].peers) == {"confluent"}
    for program, cases in {"kcat": ("ls", "read"), "nats": ("ls", "info", "next", "read")}.items():
        for name in cases:
            where = found[name].skipped if shutil.which(program) is None else found[name].peers
            assert program in where


def test_a_program_is_timed_to_its_end_or_to_its_first_line() -> None:
    code = "import time; print('first', flush=True); time.sleep(1); print('second')"
    first = Command("x", (sys.executable, "-c", code), "first", to_first_line=True)
    whole = Command("x", (sys.executable, "-c", code), "second")
    assert time_command(whole) > 1_000
    assert time_command(first) < time_command(whole)


def test_programs_in_python_have_their_byte_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; print('kept' if not sys.dont_write_bytecode else 'compiled anew')"
    assert time_command(Command("x", (sys.executable, "-c", code), "kept")) > 0


def test_what_cannot_be_timed() -> None:
    with pytest.raises(WrongAnswer, match="did not say 'b'"):
        time_command(Command("x", (sys.executable, "-c", "print('a')"), "b"))
    with pytest.raises(WrongAnswer, match="exit code 3: gone"):
        time_command(
            Command("x", (sys.executable, "-c", "import sys; print('gone', file=sys.stderr); sys.exit(3)"), "b")
        )
    with pytest.raises(WrongAnswer, match="Traceback"):
        time_command(Command("x", (sys.executable, "-c", "1 / 0"), "b", to_first_line=True))


def test_a_peer_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerUnavailable, match="kcat is not on PATH"):
        time_command(Command("kcat", ("kcat", "-L"), "x"))
