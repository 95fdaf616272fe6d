"""The picture of one worker: what its status page shows."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any, cast

import pytest

from overlay.fleet.delta import KEYS
from overlay.fleet.findings import Expected, Picture, look
from overlay.fleet.memory import Memory
from overlay.fleet.picture import describe
from overlay.fleet.status import ShardStatus, WorkerStatus
from overlay.kafka.own_topics import shard_of
from overlay.worker import own_picture
from overlay.worker.own_picture import OwnPicture, describe_own, list_troubles
from overlay.worker.shard_manager import ShardManager

from .test_status import FakeCursor, FakeLoaded, FakeManager, FakeStream, Worker, make_manager, read_stream

READY: dict[str, Any] = {"ready": True, "reasons": []}


def make_own_status(**fields: Any) -> WorkerStatus:
    usual: dict[str, Any] = {
        "prefix": "p", "worker": "w", "boot": "b", "number": 0, "started": 1, "clock": 2, "version": "1.0", "digest": "d",
        "shard_count": 2, "shards": (ShardStatus(number=1),),
    }  # fmt: skip
    return WorkerStatus(**usual | fields)


REPORT: dict[str, Any] = {"delivered": 3, "rate": 1.5, "lag_records": 6, "lag_seconds": 0.5, "num_pending": 2}


def manage(count: int, *states: str) -> FakeManager:
    """A manager of shard 1 of 2, to which so many consumers belong, the first of them in these states."""
    ids = [("S", name) for name in (f"c{n:04}" for n in range(10 * count)) if shard_of(("S", name), 2) == 1]
    manager = make_manager()
    manager.loaded = FakeLoaded(dict.fromkeys(ids[:count]))
    manager.owned = frozenset({1})
    for id, state in zip(ids, itertools.chain(states, itertools.repeat("running")), strict=False):
        manager.reports[id] = {**REPORT, "state": state}
    return manager


async def describe_worker(manager: FakeManager) -> dict[str, Any]:
    return await describe_own(make_own_status(), READY, cast("ShardManager", manager))


async def test_a_worker_shows_its_own_shards_streams_and_consumers() -> None:
    manager = manage(4, "elsewhere", "spark", "stalled")
    names = [name for _, name in manager.loaded.served]
    found = await describe_worker(manager)
    assert KEYS.keys() <= found.keys()
    assert [(row["worker"], row["state"], row["consumers"]) for row in found["workers"]] == [("w", "running", 2)]
    assert [(row["shard"], row["state"], row["workers"]) for row in found["shards"]] == [(1, "running", ["w"])]
    rows = {row["name"]: (row["state"], row["lag"], row["pending"], row["worker"]) for row in found["consumers"]}
    assert rows == {names[2]: ("stalled", 6, 2, "w"), names[3]: ("running", 6, 2, "w")}
    assert [row["name"] for row in found["streams"]] == ["S"]
    assert found["findings"] == []


async def test_a_worker_shows_what_its_statuses_tell() -> None:
    """But for the times."""
    manager = manage(3)
    read_stream(manager)
    manager.loaded.streams |= {"T": FakeStream(("t",)), "U": FakeStream(("u",))}
    memory = Memory()
    for status in await Worker(manager).tell():
        memory.fold(status, status.clock)
    (known,) = memory.list_workers()
    told = describe(look(memory, known.seen, Expected()), [], {})
    found = await describe_worker(manager)
    for part in ("streams", "consumers"):
        assert found[part]
        assert [{**row, "seen": 0} for row in found[part]] == [{**row, "seen": 0} for row in told[part]]


async def test_a_worker_that_is_in_no_group_says_why() -> None:
    status = make_own_status(shard_count=0, shards=(), trouble="Kafka does not answer")
    readiness = {"ready": False, "reasons": ["Kafka does not answer", "shard 0: starting", "S/c: no such topic: t"]}
    found = await describe_own(status, readiness, None)
    assert [(row["state"], row["reason"]) for row in found["workers"]] == [("waiting", "Kafka does not answer")]
    assert found["shards"] == found["streams"] == found["consumers"] == []
    assert [(each["about"], each["text"]) for each in found["findings"]] == [
        ("", "Kafka does not answer"),
        ("shard 0", "starting"),
        ("S/c", "no such topic: t"),
    ]


def test_troubles_have_texts_without_control_characters() -> None:
    (found,) = list_troubles({"reasons": ["S/c\n: a\nb"]})
    assert found == {"kind": "trouble", "about": "S/c ", "text": "a b", "since": None}


async def test_a_consumer_that_goes_meanwhile_is_left_out() -> None:
    manager = manage(2)
    first, report = next(iter(manager.loaded.served)), manager.report_consumer
    cast(Any, manager).report_consumer = lambda id: {} if id == first else report(id)
    assert len((await describe_worker(manager))["consumers"]) == 1


async def test_a_stream_of_which_an_end_is_not_known_has_no_lag() -> None:
    manager = manage(1)
    read_stream(manager)
    (before,) = (await describe_worker(manager))["streams"]
    assert (before["lag"], before["index_lag"], before["owners"], before["partitions"]) == (7, 16, ["w"], 2)
    session = manager.shards[0].session
    assert session is not None
    session.cursors.found["S", ("v", 0)] = [FakeCursor(5, -1)]
    (after,) = (await describe_worker(manager))["streams"]
    assert after["lag"] is None


async def test_other_work_is_done_while_thousands_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_picture, "SLICE_S", 0.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    before = turns
    await describe_worker(manage(500))
    counting.cancel()
    assert turns - before >= 500


async def test_the_picture_of_thousands_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def note(picture: Picture, *more: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return describe(picture, *more)

    monkeypatch.setattr(own_picture, "describe", note)
    await describe_worker(manage(1))
    assert len(threads) == 1 and threads != [threading.get_ident()]


async def test_a_picture_is_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    async def make() -> dict[str, Any]:
        nonlocal made
        made += 1
        await asyncio.sleep(0)
        return {"time": made}

    own = OwnPicture(make)
    first, second = await asyncio.gather(own.look(), own.look())
    assert first is second and made == 1
    monkeypatch.setattr(own_picture, "KEEP_S", 0.0)
    monkeypatch.setattr(own_picture, "SHARE", 0)
    own = OwnPicture(make)
    assert [await own.look(), await own.look()] == [{"time": 2}, {"time": 3}]
    monkeypatch.setattr(own_picture, "SHARE", 1_000_000)
    assert await own.look() == await own.look(), "one that took long is kept for longer"
