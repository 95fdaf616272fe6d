"""Ownership (docs/exactly-once.md#takeover): what a new owner reads, who leaves, and a second worker beside the first."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient

from overlay.errors import Fenced
from overlay.kafka.admin import Admin, connect
from overlay.kafka.log_position import LogPosition
from overlay.kafka.own_topics import shard_id, state_topic
from overlay.output.transaction import Transactions
from overlay.state.shard_state import Delta, ShardState, encode
from overlay.state.takeover import ensure_state_topic, read_state, take_over
from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService, find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    await_records,
    check_output,
    expect,
    produce,
    read_committed,
)

PLACE = ("S", ("source", 0))
Confirm = Callable[[ShardState], Awaitable[int | None]]


def log_position(position: int) -> Delta:
    return Delta({PLACE: LogPosition(position)})


async def commit(transactions: Transactions, delta: Delta) -> None:
    await transactions.begin()
    await transactions.finish(encode(delta))


async def write_openly(transactions: Transactions, delta: Delta) -> None:
    """Write state without a commit: the transaction stays open."""
    await transactions.begin()
    tp = transactions._state
    await (await transactions._producer.send(tp.topic, encode(delta), partition=tp.partition))


async def own(state: ShardState) -> int | None:
    return 7


async def disown(state: ShardState) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Stage:
    """The state topic of a scene, and its workers, which take over each other's shards. All are closed at the end."""

    scene: Scene
    admin: Admin
    client: AIOKafkaClient
    owners: list[Transactions]

    @property
    def topic(self) -> str:
        return state_topic(self.scene.prefix)

    async def set_up(self, shards: int = 1) -> None:
        await ensure_state_topic(self.admin, self.scene.prefix, shards, 1)

    async def take_over(self, shard: int = 0, confirm: Confirm = own) -> tuple[Transactions, ShardState]:
        kafka = {"bootstrap.servers": self.scene.bootstrap}
        owner, state = await take_over(kafka, self.client, self.admin, self.scene.prefix, shard, confirm)
        self.owners.append(owner)
        return owner, state

    async def read(self) -> tuple[ShardState, int]:
        """Shard 0 as it is committed, and how many records that took."""
        return await read_state(self.client, self.admin, self.topic, 0)


@pytest.fixture
async def stage(scene: Scene) -> AsyncIterator[Stage]:
    kafka = {"bootstrap.servers": scene.bootstrap}
    async with connect(kafka) as (admin, client):
        made = Stage(scene, admin, client, [])
        yield made
        for owner in made.owners:
            await owner.close()


async def test_takeover_during_an_open_transaction_reads_what_is_committed(stage: Stage) -> None:
    """The last stable offset lies before the open transaction; the new owner ends it and reads past it."""
    await stage.set_up()
    former, _ = await stage.take_over()
    for position in (10, 20):
        await commit(former, log_position(position))
    await write_openly(former, log_position(30))
    heir, state = await stage.take_over()
    assert (state.cursors, state.generation) == ({PLACE: LogPosition(20)}, 7)
    with pytest.raises(Fenced):
        await former.finish(encode(log_position(40)))
    await commit(heir, log_position(50))
    assert (await stage.read())[0].cursors == {PLACE: LogPosition(50)}


async def test_takeover_is_not_misled_by_an_open_transaction_of_another_writer(stage: Stage) -> None:
    """Another shard's transaction, open over its own partition, hides nothing here."""
    await stage.set_up(shards=2)
    other, _ = await stage.take_over(shard=1)
    await write_openly(other, log_position(1))
    mine, _ = await stage.take_over()
    await commit(mine, log_position(5))
    _, state = await stage.take_over()
    assert state.cursors == {PLACE: LogPosition(5)}


async def test_a_late_worker_leaves_without_writing(stage: Stage) -> None:
    """It has fenced the owner by then, but the state is as it was, and the owner's successor goes on from it."""
    await stage.set_up()
    owner, _ = await stage.take_over()
    await commit(owner, log_position(10))
    _, written = await stage.read()
    with pytest.raises(Fenced, match="not ours"):
        await stage.take_over(confirm=disown)
    assert (await stage.read())[1] == written
    with pytest.raises(Fenced):
        await commit(owner, log_position(20))
    _, state = await stage.take_over()
    assert state.cursors == {PLACE: LogPosition(10)}


async def test_a_checkpoint_makes_what_lies_before_it_void(stage: Stage) -> None:
    await stage.set_up()
    owner, _ = await stage.take_over()
    await commit(owner, Delta({("GONE", ("source", 0)): LogPosition(3)}))
    await owner.begin()
    offset, _ = await owner.finish(encode(log_position(4), checkpoint=True))
    await commit(owner, log_position(9))
    assert (await stage.read())[0].cursors == {PLACE: LogPosition(9)}
    await stage.admin.delete_records(stage.topic, 0, offset)
    state, count = await stage.read()
    assert (state.cursors, count) == ({PLACE: LogPosition(9)}, 2)


def test_names_are_the_shard_s_own() -> None:
    assert len({shard_id("overlay", shard) for shard in range(20)}) == 20


def test_a_second_worker_takes_over(
    scene: Scene, running_service: StartService, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Two processes of one config: one serves, the other stands by. Then the first hangs (SIGSTOP), the second takes over,
    and the first wakes up with a transaction under way: still each record once and in order."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    first = running_service(scene.folder)
    settings = (scene.folder / "overlay.yaml").read_text()
    port = first.url.rpartition(":")[2]
    second_folder = tmp_path / "second"
    shutil.copytree(scene.folder, second_folder)
    (second_folder / "overlay.yaml").write_text(settings.replace(port, str(find_free_port())))
    second = running_service(second_folder, wait=False)
    stop = threading.Event()
    feeding = threading.Thread(target=_feed, args=(scene.bootstrap, topic, stop))
    feeding.start()
    try:
        with CommittedReader(scene.bootstrap, output) as reader:
            await_records(reader, 200)
            owner = first if "shard taken over" not in second.read_log() else second
            owner.process.send_signal(signal.SIGSTOP)
            stopped_at = len(reader.read())
            await_records(reader, stopped_at + 1_000)
            owner.process.send_signal(signal.SIGCONT)
            awake = time.monotonic()
            wait_until(
                lambda: time.monotonic() - awake > 3 and len(reader.read()) > 0,
                DEADLINE_S,
                "it has been awake for a while",
            )
            stop.set()
            feeding.join(30)
            wanted = expect(read_committed(scene.bootstrap, topic))
            await_records(reader, len(wanted))
    finally:
        first.process.send_signal(signal.SIGCONT)
        stop.set()
        feeding.join(30)
    assert first.stop() == 0, first.read_log()
    assert second.stop() == 0, second.read_log()
    check_output(read_committed(scene.bootstrap, output), wanted)


def _feed(bootstrap: str, topic: str, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        produce(bootstrap, topic, ["a", "b", None] * 30)


def test_sigterm_in_full_flow(scene: Scene, running_service: StartService, new_topic: NewTopicFixture) -> None:
    """Stopped and started while records flow: what was under way is committed, nothing is lost or twice."""
    topic = new_topic(partitions=1)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    produce(scene.bootstrap, topic, ["a", "b", None] * 25_000)
    with CommittedReader(scene.bootstrap, output) as reader:
        service = running_service(scene.folder)
        await_records(reader, 1)
        produce(scene.bootstrap, topic, ["a"] * 1_000)
        assert service.stop() == 0, service.read_log()
        assert "given up" not in service.read_log()
        service = running_service(scene.folder)
        wanted = expect(read_committed(scene.bootstrap, topic))
        await_records(reader, len(wanted))
        assert service.stop() == 0
        check_output(reader.read(), wanted)
