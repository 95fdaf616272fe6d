"""Where logs go in a program of one's own: its stdout is for its data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from overlay import logs
from overlay.logs import BURST, WINDOW_S, Repeats
from tests.support.kafka import NewTopicFixture, produce_values

ROOT = Path(__file__).parents[1]

PROGRAM = """
import sys
import pytest
import structlog
import overlay
from tests.kafka.answers import refuse_fetches

client = overlay.open(bootstrap=sys.argv[1])
for how in ("as it is", "set up"):
    if how == "set up":
        structlog.configure(processors=[structlog.processors.JSONRenderer()])
    codes = iter([-1])
    with pytest.MonkeyPatch.context() as patch:
        refuse_fetches(patch, lambda topic, partition: next(codes, 0))
        print(how, sum(batch.num_rows for batch in client.read(topic=sys.argv[2])))
"""
LOGGING = """
from overlay.logs import LEVELS, get_logger, name_source, set_up_logs

set_up_logs(human=False, level=LEVELS["warning"])
name_source(worker="box:8222")
log = get_logger(__name__)
log.info("unheard")
for number in range(30):
    log.warning("fetch failed", broker=1, error=f"error {number}")
log.error("fetch failed", broker=1, error="another level")
"""
WARNING = "partition cannot be fetched"


def test_warnings_go_to_stderr_unless_the_program_says_otherwise(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a", b"b", b"c"])
    command = [sys.executable, "-c", PROGRAM, bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    before, log, after = done.stdout.splitlines()
    assert (before, after) == ("as it is 3", "set up 3")
    assert log.startswith("{") and WARNING in log
    (warning,) = done.stderr.splitlines()
    assert WARNING in warning and "\x1b" not in warning, "no colours where no terminal is"


def test_commands_work_without_stderr(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a", b"b", b"c"])
    command = f'exec "$0" -m overlay read --topic {topic} --bootstrap {bootstrap} --count 2>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, b"3\n")


def test_logs_have_a_level_and_name_the_worker_and_repeat_themselves_ten_times() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning"] * BURST + ["error"]
    assert {line["worker"] for line in lines} == {"box:8222"}


SECRET = "hunter" + "2"
FAILING = """
import sys
import structlog
from overlay.logs import get_logger, set_up_logs

def fail():
    password = "hunter" + "2"
    raise KeyError("zork")

how = sys.argv[1]
if how == "configured":
    # all the rest as structlog has it by default
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
elif how == "set up":
    set_up_logs(human=True)
log = get_logger(__name__)
try:
    fail()
except KeyError as error:
    log.exception("not foreseen", at="once")
    found = error
log.exception("not foreseen", of=found, at="later")
"""


@pytest.mark.parametrize("how", ["configured", "set up", "not set up"])
def test_tracebacks_show_no_local_variables(how: str) -> None:
    """structlog's own default shows them where rich is installed."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING, how], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert SECRET not in done.stderr
    assert [done.stderr.count(text) for text in ("not foreseen", "KeyError: 'zork'", ", in fail")] == [2, 2, 2]
    assert "once" in done.stderr and "later" in done.stderr


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def passes(repeats: Repeats, level: str = "warning", **fields: object) -> dict[str, object] | None:
    """What is logged of an event; None if it is dropped."""
    try:
        return {**repeats(None, level, {"event": "e", "level": level, **fields})}
    except structlog.DropEvent:
        return None


def test_the_next_one_says_how_many_were_dropped() -> None:
    clock = Clock()
    repeats = Repeats(clock)
    passed = [passes(repeats, reason=f"r{number}") for number in range(BURST + 7)]
    assert passed.count(None) == 7
    clock.now = WINDOW_S
    assert passes(repeats, reason="r") == {"event": "e", "level": "warning", "reason": "r", "repeated": 7}
    assert passes(repeats) == {"event": "e", "level": "warning"}


def test_what_is_about_something_else_is_no_repetition() -> None:
    repeats = Repeats(Clock())
    for _ in range(3 * BURST):
        passes(repeats, consumer="c", shard=1)
        assert passes(repeats, "info", consumer="c", shard=1), "what is no fault is never dropped"
    assert passes(repeats, consumer="c", shard=1, count=5) is None
    for other in ({"consumer": "d", "shard": 1}, {"consumer": "c", "shard": 2}, {"consumer": "c"}):
        assert passes(repeats, **other)
    assert passes(repeats, "error", consumer="c", shard=1)


@pytest.mark.parametrize("name", ["first", "where", "offset"])
def test_an_offset_makes_no_other_kind(name: str) -> None:
    """Strangers write as many bad records as they like."""
    repeats = Repeats(Clock())
    places: list[Any] = [f"topic-0@{offset}" if name != "offset" else offset for offset in range(BURST + 3)]
    passed = [passes(repeats, **{name: place}) for place in places]
    assert passed.count(None) == 3
    if name != "offset":
        assert passes(repeats, **{name: "topic-1@0"}), "another partition"


def test_the_ids_of_requests_make_no_other_kind() -> None:
    repeats = Repeats(Clock())
    passed = [passes(repeats, request=f"id-{number}", subject=f"$JS.API.{number}") for number in range(BURST + 3)]
    assert passed.count(None) == 3


def test_kinds_that_are_not_met_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_KINDS", 3)
    repeats = Repeats(Clock())
    for number in range(10):
        for _ in range(BURST):
            assert passes(repeats, consumer=f"c{number}")
    assert len(repeats._kinds) == 3
    assert passes(repeats, consumer="c9") is None
    assert passes(repeats, consumer="c0")
