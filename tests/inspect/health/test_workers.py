"""What is said of workers and of clocks, by the statuses in the fleet's topic."""

from __future__ import annotations

import pytest

from overlay.fleet.findings import Expected, look, survey
from overlay.fleet.memory import Memory
from overlay.fleet.status import Status
from overlay.inspect.health.diagnosis import Check, Diagnosis, Severity
from overlay.inspect.health.workers import judge_clock, judge_workers
from tests.fleet.statuses import NOW, make_status


def judge(*statuses: Status, version: str = "1.0", expected: Expected | None = None) -> list[Diagnosis]:
    memory = Memory()
    for status in statuses:
        memory.fold(status, NOW)
    picture = look(memory, NOW, expected or Expected(digest="d1"))
    return list(judge_workers(picture, survey(picture), version))


def test_workers_without_a_fault() -> None:
    (found,) = judge(make_status("a", shards=(0,), shard_count=2), make_status("b", shards=(1,), shard_count=2))
    assert (found.severity, found.text) == (Severity.OK, "2 workers, 2 shards, all served")


def test_versions_and_files_that_differ_are_warnings() -> None:
    one = make_status("a", shards=(0,), shard_count=2)
    found = judge(one, make_status("b", shards=(1,), shard_count=2, version="1.1", digest="d2"))
    assert [(each.severity, each.check) for each in found] == [
        (Severity.WARNING, Check.WORKERS),
        (Severity.WARNING, Check.WORKERS),
        (Severity.NOTE, Check.WORKERS),
    ]
    assert "d1 at a, the folder of this fleet; d2 at b" in found[0].text
    assert found[0].todo == "Give all the same files"
    assert found[2].text == "this command is version 1.0, workers are 1.1"


def test_a_shard_without_an_owner_is_an_error() -> None:
    (found,) = judge(make_status("a", shards=(0,), shard_count=2))
    assert (found.severity, found.about) == (Severity.ERROR, "shard 1")


def test_no_worker_is_a_warning() -> None:
    (found,) = judge()
    assert (found.severity, found.text) == (Severity.WARNING, "no worker is heard")
    assert found.todo == "Start one, or see why none reaches Kafka"


def test_a_worker_whose_clock_differs() -> None:
    (found,) = judge(make_status("a", clock=NOW + 9_000))
    assert (found.severity, found.check, found.about) == (Severity.WARNING, Check.CLOCK, "worker a")


@pytest.mark.parametrize(
    ("ahead_ms", "severity", "says"),
    [
        (None, Severity.NOTE, "was not compared"),
        (2_000, Severity.OK, "within 2 s"),
        (-2_000, Severity.OK, "within 2 s"),
        (2_100, Severity.WARNING, "2.1 s ahead of Kafka's"),
        (-60_000, Severity.WARNING, "60.0 s behind Kafka's"),
    ],
)
def test_this_machine_s_clock(ahead_ms: int | None, severity: Severity, says: str) -> None:
    found = judge_clock(ahead_ms)
    assert found.severity is severity and says in found.text
    assert found.todo or severity is Severity.OK
