"""The picture of one worker: what its status page shows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from overlay.fleet.delta import KEYS
from overlay.fleet.status import ShardStatus, WorkerStatus
from overlay.kafka.own_topics import shard_of
from overlay.state.shard_state import ConsumerId
from overlay.worker import own_picture, status
from overlay.worker.own_picture import OwnPicture, describe_own, describe_own_stream, list_troubles
from overlay.worker.shard_manager import ShardManager

READY: dict[str, Any] = {"ready": True, "reasons": []}
STREAM: dict[str, Any] = {
    "name": "S", "state": "running", "reason": "", "topics": ["t", "u"], "rate": 2.0,
    "partitions": {"t-0": {"end": 10, "position": 4}, "u-0": {"end": 7, "position": 8}},
}  # fmt: skip


@dataclass
class SomeFiles:
    consumers: list[ConsumerId]
    streams: list[str] = field(default_factory=lambda: ["S"])


@dataclass
class ReportingManager:
    """Tells of its consumers and streams as a shard manager does. `states`: those that are not `running`, by name."""

    loaded: SomeFiles
    states: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def report_consumer(self, id: ConsumerId) -> dict[str, Any]:
        if id[1] in self.gone:
            return {}
        state = self.states.get(id[1], "running")
        usual = {"stream": id[0], "name": id[1], "state": state, "reason": "", "delivered": 3, "rate": 1.5}
        return usual | {"lag_records": 6, "lag_seconds": 0.5, "positions": {"t-0": 4}, "num_pending": 2}

    def report_stream(self, name: str) -> dict[str, Any]:
        return STREAM


def make_own_status(**fields: Any) -> WorkerStatus:
    usual: dict[str, Any] = {
        "prefix": "p", "worker": "w", "boot": "b", "number": 0, "started": 1, "clock": 2, "version": "1.0", "digest": "d",
        "shard_count": 2, "shards": (ShardStatus(number=1),),
    }  # fmt: skip
    return WorkerStatus(**usual | fields)


def manage(count: int, **fields: Any) -> ShardManager:
    """A manager of consumers c0, c1 and so on, all of shard 1 of 2."""
    ids = [("S", name) for name in (f"c{n}" for n in range(10 * count)) if shard_of(("S", name), 2) == 1]
    return cast("ShardManager", ReportingManager(SomeFiles(ids[:count]), **fields))


async def test_a_worker_shows_its_own_shards_streams_and_consumers() -> None:
    manager = manage(4)
    names = [name for _, name in cast(Any, manager).loaded.consumers]
    cast(Any, manager).states = {names[0]: "elsewhere", names[1]: "spark", names[2]: "stalled"}
    found = await describe_own(make_own_status(), READY, manager)
    assert KEYS.keys() <= found.keys()
    assert [(row["worker"], row["state"], row["consumers"]) for row in found["workers"]] == [("w", "running", 2)]
    assert [(row["shard"], row["state"], row["workers"]) for row in found["shards"]] == [(1, "running", ["w"])]
    rows = {row["name"]: (row["state"], row["lag"], row["pending"], row["worker"]) for row in found["consumers"]}
    assert rows == {names[2]: ("stalled", 6, 2, "w"), names[3]: ("running", 6, 2, "w")}
    assert [row["name"] for row in found["streams"]] == ["S"]
    assert found["findings"] == []


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
    cast(Any, manager).gone = {cast(Any, manager).loaded.consumers[0][1]}
    assert len((await describe_own(make_own_status(), READY, manager))["consumers"]) == 1


def test_a_stream_has_the_lag_of_its_partitions() -> None:
    assert describe_own_stream(STREAM, "w") == {
        "name": "S", "state": "running", "reason": "", "topic": "t, u", "partitions": 2, "rate": 2.0, "lag": 6,
        "owners": ["w"],
    }  # fmt: skip
    idle = describe_own_stream({**STREAM, "partitions": {}, "state": "idle"}, "w")
    assert (idle["lag"], idle["owners"], idle["partitions"]) == (None, [], 0)


async def test_other_work_is_done_while_thousands_are_described() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await asyncio.sleep(0)
    await describe_own(make_own_status(), READY, manage(500))
    counting.cancel()
    assert turns >= 500 // status.TURN


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
