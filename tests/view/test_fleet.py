"""`overlay workers` and `overlay shards` as text."""

from __future__ import annotations

import io

from rich.console import Console

from overlay.fleet.findings import Expected, look, survey
from overlay.fleet.memory import Memory
from overlay.fleet.picture import describe
from overlay.fleet.status import Refusal, ShardStatus
from overlay.kafka.own_topics import shard_of
from overlay.view.fleet import print_shards, print_workers
from tests.fleet.statuses import NOW, make_consumer, make_status

NAME = next(name for number in range(100) if shard_of(("S", name := f"[bold]{number}"), 3) == 0)
"""Of a consumer of shard 0."""


def make_picture() -> dict[str, object]:
    memory = Memory()
    failing = ShardStatus(number=1, ready=False, reason="no leader")
    status = make_status("east", shard_count=3, consumers=(make_consumer(NAME),), clock=NOW + 2_500)
    memory.fold(status.model_copy(update={"shards": (ShardStatus(number=0), failing)}), NOW)
    memory.fold(make_status("west", shards=(2,), shard_count=3, clock=NOW - 60_000), NOW - 60_000)
    memory.refuse(Refusal.STRANGER)
    picture = look(memory, NOW, Expected())
    return describe(picture, survey(picture), memory.refused)


def show(printing: object) -> str:
    console = Console(file=io.StringIO(), width=10_000, highlight=False)
    assert callable(printing)
    printing(console, make_picture())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_workers() -> None:
    lines = [line.split() for line in show(print_workers).splitlines()]
    assert lines[0][:3] == ["worker", "state", "shards"]
    assert lines[1] == ["east", "running", "0,", "1", "1.0", "d1", "0", "2.5", "s", "0", "s", "ago"]
    assert lines[2] == ["west", "silent", "2", "1.0", "d1", "0", "0.0", "s", "60", "s", "ago"]
    text = show(print_workers)
    assert "worker silent west: no status of this worker since" in text
    assert "shard without owner 2: no worker" in text
    assert "clock differs east: its clock is 2.5 s ahead of Kafka's" in text
    assert "passed over: 1 stranger" in text


def test_shards() -> None:
    lines = [" ".join(line.split()) for line in show(print_shards).splitlines()]
    assert lines[:4] == ["shard state worker consumers", "0 running east 1", "1 starting east 0", "2 no owner - 0"]
    assert "shard 1: no leader" in lines
