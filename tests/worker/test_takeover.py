"""Ownership (design 11.2, 11.3): what a new owner reads, who leaves, and a second worker beside the first."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from overlay.admin import Admin
from overlay.connection import open_client
from overlay.deliver.state import Delta, ShardState, encode
from overlay.deliver.transaction import Transactions
from overlay.errors import Fenced
from overlay.source.mark import Mark
from overlay.worker.takeover import ensure_state_topic, read_state, state_topic, take_over, transactional_id
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


def mark(position: int) -> Delta:
    return Delta({PLACE: Mark(position)})


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


async def test_takeover_during_an_open_transaction_reads_what_is_committed(scene: Scene) -> None:
    """The last stable offset lies before the open transaction; the new owner ends it and reads past it."""
    kafka = {"bootstrap.servers": scene.bootstrap}
    admin, client = Admin(kafka), await open_client(kafka)
    try:
        await ensure_state_topic(admin, scene.prefix, 1, 1)
        former, _ = await take_over(kafka, client, admin, scene.prefix, 0, own)
        for position in (10, 20):
            await commit(former, mark(position))
        await write_openly(former, mark(30))
        heir, state = await take_over(kafka, client, admin, scene.prefix, 0, own)
        assert (state.cursors, state.generation) == ({PLACE: Mark(20)}, 7)
        with pytest.raises(Fenced):
            await former.finish(encode(mark(40)))
        await commit(heir, mark(50))
        assert (await read_state(client, admin, state_topic(scene.prefix), 0))[0].cursors == {PLACE: Mark(50)}
        await former.close()
        await heir.close()
    finally:
        await client.close()


async def test_takeover_is_not_misled_by_somebody_else_s_open_transaction(scene: Scene) -> None:
    """Another shard's transaction, open over its own partition, hides nothing here."""
    kafka = {"bootstrap.servers": scene.bootstrap}
    admin, client = Admin(kafka), await open_client(kafka)
    try:
        await ensure_state_topic(admin, scene.prefix, 2, 1)
        other, _ = await take_over(kafka, client, admin, scene.prefix, 1, own)
        await write_openly(other, mark(1))
        mine, _ = await take_over(kafka, client, admin, scene.prefix, 0, own)
        await commit(mine, mark(5))
        heir, state = await take_over(kafka, client, admin, scene.prefix, 0, own)
        assert state.cursors == {PLACE: Mark(5)}
        for one in (other, mine, heir):
            await one.close()
    finally:
        await client.close()


async def test_a_late_worker_leaves_without_writing(scene: Scene) -> None:
    """It has fenced the owner by then, but the state is as it was, and the owner's successor goes on from it."""
    kafka = {"bootstrap.servers": scene.bootstrap}
    admin, client = Admin(kafka), await open_client(kafka)
    topic = state_topic(scene.prefix)
    try:
        await ensure_state_topic(admin, scene.prefix, 1, 1)
        owner, _ = await take_over(kafka, client, admin, scene.prefix, 0, own)
        await commit(owner, mark(10))
        before = (await admin.find_bounds([(topic, 0)]))[topic, 0]
        with pytest.raises(Fenced, match="not ours"):
            await take_over(kafka, client, admin, scene.prefix, 0, disown)
        assert (await admin.find_bounds([(topic, 0)]))[topic, 0] == before
        with pytest.raises(Fenced):
            await commit(owner, mark(20))
        heir, state = await take_over(kafka, client, admin, scene.prefix, 0, own)
        assert state.cursors == {PLACE: Mark(10)}
        await owner.close()
        await heir.close()
    finally:
        await client.close()


async def test_a_checkpoint_makes_what_lies_before_it_void(scene: Scene) -> None:
    kafka = {"bootstrap.servers": scene.bootstrap}
    admin, client = Admin(kafka), await open_client(kafka)
    topic = state_topic(scene.prefix)
    try:
        await ensure_state_topic(admin, scene.prefix, 1, 1)
        owner, _ = await take_over(kafka, client, admin, scene.prefix, 0, own)
        await commit(owner, Delta({("GONE", ("source", 0)): Mark(3)}))
        await owner.begin()
        offset = await owner.finish(encode(mark(4), checkpoint=True))
        await commit(owner, mark(9))
        assert (await read_state(client, admin, topic, 0))[0].cursors == {PLACE: Mark(9)}
        await admin.delete_records(topic, 0, offset)
        state, count = await read_state(client, admin, topic, 0)
        assert (state.cursors, count) == ({PLACE: Mark(9)}, 2)
        await owner.close()
    finally:
        await client.close()


def test_names_are_the_shard_s_own() -> None:
    assert len({transactional_id("overlay", shard) for shard in range(20)}) == 20


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
