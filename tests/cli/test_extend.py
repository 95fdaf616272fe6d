"""`overlay stream extend`: partitions added to a stream of one, with a service that runs, and interrupted at any moment."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.config import load
from overlay.kafka.admin import Admin
from overlay.state.amend import amend
from overlay.state.shard_state import Delta, ShardState
from overlay.worker import extension
from tests.support.kafka import NewTopicFixture, add_partitions
from tests.support.ledger import check_in_order, read_ledger
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Seen,
    Served,
    await_records,
    expect,
    produce,
    read_committed,
    serve,
)
from tests.worker.scenes import scene as scene

SHARDS = 3
UNREAD = "not read until `overlay stream extend`"


def command(scene: Scene) -> list[str]:
    return ["stream", "extend", "S", "--config", str(scene.folder), "--yes"]


def run(scene: Scene) -> str:
    done = CliRunner().invoke(overlay, command(scene))
    assert done.exit_code == 0, done.output
    return done.output


def set_up(scene: Scene, topic: str, shards: int) -> list[str]:
    """A stream of one partition with three consumers, on as many shards as there are."""
    with (scene.folder / "overlay.yaml").open("a") as file:
        file.write(f"shards: {shards}\n")
    scene.add_stream("S", topic, subject={"header": "to"}, index={"chunk_records": 40, "chunk_age": "200ms"})
    write(scene, topic, 100, partitions=1)
    return [scene.add_consumer("S", name) for name in ("a", "b", "c")]


def write(scene: Scene, topic: str, count: int, partitions: int = 3) -> None:
    for partition in range(partitions):
        produce(scene.bootstrap, topic, ["x"] * count, partition=partition)


def grow(scene: Scene, topic: str, served: Served) -> None:
    add_partitions(scene.bootstrap, topic, 3)
    wait_until(lambda: UNREAD in served.stream("S")["reason"], DEADLINE_S, "the service has seen the partitions")


def check(scene: Scene, topic: str, outputs: Sequence[str], first: int) -> None:
    """Everything once and in order; the first records have the sequences that they had."""
    wanted = expect(read_committed(scene.bootstrap, topic), prefix="")
    found: dict[str, list[Seen]] = {}
    for output in outputs:
        with CommittedReader(scene.bootstrap, output) as reader:
            found[output] = await_records(reader, len(wanted))
    ledger = read_ledger(scene)
    assert [ledger.sequences[(topic, 0), offset] for offset in range(first)] == list(range(1, first + 1))
    for name, output in zip("abc", outputs, strict=True):
        check_in_order(found[output], wanted, ledger, name)


@pytest.mark.parametrize("shards", [1, SHARDS])
def test_a_running_service_takes_it_up(scene: Scene, new_topic: NewTopicFixture, shards: int) -> None:
    topic = new_topic()
    outputs = set_up(scene, topic, shards)
    with serve(scene) as served:
        with CommittedReader(scene.bootstrap, outputs[0]) as reader:
            await_records(reader, 100)
        refused = CliRunner().invoke(overlay, command(scene))
        assert refused.exit_code == 1 and "nothing was added to it" in str(refused.exception)
        grow(scene, topic, served)
        write(scene, topic, 50)
        with CommittedReader(scene.bootstrap, outputs[0]) as reader:
            await_records(reader, 150)
        assert "up to 150 its sequences are the offsets" in run(scene)
        write(scene, topic, 50)
        check(scene, topic, outputs, 150)
        assert "has its ledger already" in run(scene)
        write(scene, topic, 20)
        check(scene, topic, outputs, 150)
    with serve(scene):
        write(scene, topic, 20)
        check(scene, topic, outputs, 150)


def test_interrupted_between_its_steps(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Every shard has been told that there is a ledger, and there is none: the stream stops until the command is run again."""
    topic = new_topic()
    outputs = set_up(scene, topic, SHARDS)
    with serve(scene) as served:
        grow(scene, topic, served)
        loaded = load(scene.folder)
        plan = asyncio.run(extension.plan_extension(loaded, "S"))

        def join(state: ShardState) -> Delta:
            return Delta(topics={("S", plan.topic): plan.identity})

        async def amend_states() -> None:
            async with Admin(loaded.service.kafka) as admin:
                await amend(loaded.service, admin, join)

        asyncio.run(amend_states())
        wait_until(lambda: served.stream("S")["state"] == "stopped", DEADLINE_S, "the stream has stopped")
        assert "was interrupted, run it again" in served.stream("S")["reason"]
        write(scene, topic, 50)
        run(scene)
        check(scene, topic, outputs, 100)


def test_killed_at_any_moment(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    outputs = set_up(scene, topic, SHARDS)
    with serve(scene) as served:
        grow(scene, topic, served)
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-m", "overlay", *command(scene)], stdout=subprocess.DEVNULL)
            time.sleep(random.uniform(0.5, 4.0))  # a kill at any moment is what is tested; nothing is waited for
            process.kill()
            process.wait()
            write(scene, topic, 20)
        run(scene)
        write(scene, topic, 20)
        check(scene, topic, outputs, 100)
