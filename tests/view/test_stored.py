"""What a state and the ends of logs come to, without Kafka: both are values here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.clock import now_ms
from overlay.config import Loaded
from overlay.errors import SourceChanged
from overlay.kafka.admin import TopicFacts
from overlay.kafka.log_position import LogPosition
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_positions import InJob
from overlay.state.shard_state import ConsumerState, ShardState
from overlay.view.rewind import Where, plan_rewind
from overlay.view.stored import Memory, describe_memory, read_memory
from tests.config.folders import load_files

SOURCE = ("flights", 0)
LATE = ("FLIGHTS", "late")
CONSUMER = "stream: FLIGHTS\nack_policy: none\ndeliver_subject: {0}\ndurable_name: {0}\n"


def load(folder: Path) -> Loaded:
    files = {f"consumers/{name}.yaml": CONSUMER.format(name) for name in ("late", "fresh")}
    files["consumers/lasts.yaml"] = (
        CONSUMER.format("lasts") + "deliver_policy: last_per_subject\nfilter_subject: flights.>\n"
    )
    return load_files(folder, files)


def remember(identity: str = "id-1") -> Memory:
    """Late follows the cursor at 30, lasts is at 10, gone has no file; the log is 5 to 50."""
    state = ShardState(
        {("FLIGHTS", SOURCE): LogPosition(30)},
        {
            LATE: ConsumerState(12),
            ("FLIGHTS", "lasts"): ConsumerState(3, {SOURCE: LogPosition(10)}),
            ("FLIGHTS", "gone"): ConsumerState(7, {SOURCE: LogPosition(20)}),
        },
        {("FLIGHTS", "flights"): "id-1"},
    )
    return Memory([state], {"flights": TopicFacts("flights", identity, 1, {})}, {SOURCE: (5, 50)})


class Asked:
    """In place of an Admin: each question waits until logs are asked for as well."""

    def __init__(self, together: asyncio.Barrier) -> None:
        self.together = together

    async def __aenter__(self) -> Asked:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def find_topics(self, names: Iterable[str], *, with_config: bool = True) -> dict[str, TopicFacts]:
        assert not with_config, "the configurations are for nothing"
        await self.together.wait()
        return {name: TopicFacts(name, "id-1", 1, {}) for name in names}

    async def find_bounds(self, sources: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        return dict.fromkeys(sources, (5, 50))

    async def find_cluster(self) -> str:
        return "the cluster"


async def test_kafka_is_asked_for_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the streams, the states and the requested consumers; each answers once all were asked for."""
    together = asyncio.Barrier(3)
    loaded = load(tmp_path)

    async def reach(*_: object) -> None:
        pass

    async def close() -> None:
        pass

    async def open_client(_: object) -> Any:
        return SimpleNamespace(close=close)

    async def read_states(*_: object) -> list[ShardState]:
        await together.wait()
        return remember().states

    async def read_registry(*_: object, client: object) -> Any:
        await together.wait()
        return SimpleNamespace(effective=lambda: loaded)

    made = {"Admin": lambda _: Asked(together), "reach": reach, "open_client": open_client}
    for name, stub in {**made, "read_states": read_states, "read_registry": read_registry}.items():
        monkeypatch.setattr(f"overlay.view.stored.{name}", stub)
    async with asyncio.timeout(60):
        found = await read_memory(loaded)
    assert (found.cluster, dict(found.bounds)) == ("the cluster", {SOURCE: (5, 50)})
    assert found.states == remember().states


def test_positions_and_lag(tmp_path: Path) -> None:
    facts = describe_memory(load(tmp_path), remember())
    shown = {name: (c.state, c.consumer_sequence, c.lag_records) for (_, name), c in facts.consumers.items()}
    assert shown == {
        "fresh": ("new", None, None),
        "gone": ("removed", 7, 30),
        "lasts": ("waiting", 3, 40),
        "late": ("waiting", 12, 20),
    }
    assert "overlay consumer rm FLIGHTS gone" in facts.consumers["FLIGHTS", "gone"].reason
    stream = facts.streams["FLIGHTS"]
    assert (stream.state, stream.behind, stream.consumers) == ("waiting", 20, ("fresh", "lasts", "late"))


def test_a_topic_that_was_created_again(tmp_path: Path) -> None:
    facts = describe_memory(load(tmp_path), remember("id-2"))
    assert (facts.streams["FLIGHTS"].state, facts.streams["FLIGHTS"].behind) == ("stopped", None)
    late = facts.consumers[LATE]
    assert (late.state, late.lag_records) == ("stopped", None)
    assert "overlay stream reset FLIGHTS" in late.reason


def test_before_the_first_run(tmp_path: Path) -> None:
    memory = Memory([], remember().topics, {SOURCE: (5, 50)})
    facts = describe_memory(load(tmp_path), memory)
    assert {c.state for c in facts.consumers.values()} == {"new"}
    assert not plan_rewind(load(tmp_path), memory, "FLIGHTS", Where.START).is_needed(memory)


def test_a_rewind_to_the_start(tmp_path: Path) -> None:
    memory = remember("id-2")
    rewind = plan_rewind(load(tmp_path), memory, "FLIGHTS", Where.START)
    assert "deleted and created again" in rewind.reason
    assert rewind.positions == {SOURCE: 5}
    assert {name: at[SOURCE] for (_, name), at in rewind.consumers.items()} == {"gone": 20, "lasts": 10, "late": 30}
    assert rewind.is_needed(memory)

    (state,) = memory.states
    state.apply(rewind.change(state))
    assert (state.cursors, state.topics) == ({}, {})
    own = {SOURCE: LogPosition(5)}
    assert state.consumers == {
        LATE: ConsumerState(12, own),
        ("FLIGHTS", "lasts"): ConsumerState(3, own, {SOURCE: 50}),
        ("FLIGHTS", "gone"): ConsumerState(7, own),
    }


def test_a_rewind_knows_consumers_that_were_made_by_request(tmp_path: Path) -> None:
    """One that gets the last message of each subject gets no more than that, and new ones are named."""
    loaded = load(tmp_path)
    lasts = loaded.consumers["FLIGHTS", "lasts"]
    by_request = {("FLIGHTS", name): lasts.model_copy(update={"durable_name": name}) for name in ("gone", "asked")}
    everything = replace(loaded, consumers={**loaded.consumers, **by_request})
    rewind = plan_rewind(loaded, replace(remember(), loaded=everything), "FLIGHTS", Where.START)
    assert rewind.snapshots == {("FLIGHTS", name): {SOURCE: 50} for name in ("gone", "lasts")}
    assert rewind.list_effects()[-1] == "Consumers that have not begun yet start by their deliver_policy: asked, fresh."
    of_files = plan_rewind(loaded, remember(), "FLIGHTS", Where.START)
    assert set(of_files.snapshots) == {("FLIGHTS", "lasts")}
    assert of_files.fresh == ("fresh",)


def test_a_rewind_to_the_end(tmp_path: Path) -> None:
    rewind = plan_rewind(load(tmp_path), remember(), "FLIGHTS", Where.END)
    assert (rewind.reason, rewind.positions, rewind.snapshots) == ("", {SOURCE: 50}, {})


def test_no_rewind_without_the_topic(tmp_path: Path) -> None:
    memory = Memory(remember().states, {}, {})
    with pytest.raises(SourceChanged, match=r"topic flights does not exist\. Create it"):
        plan_rewind(load(tmp_path), memory, "FLIGHTS", Where.START)


def test_a_consumer_of_a_spark_job(tmp_path: Path) -> None:
    """Its position is in the job's plan: behind a batch that has ended, before one that has not."""
    loaded = load_files(tmp_path, {"consumers/late.yaml": CONSUMER.format("late") + "engine: spark\n"})
    late = ConsumerPlan("", 10, 14, 0, claim="C")
    begun = BatchPlan(3, 0, "FLIGHTS", "", {SOURCE: (30, 45)}, {"late": late}, {})

    def show(plan: BatchPlan | None, entry: ConsumerState | None) -> tuple[str, str, int | None, int | None]:
        state = ShardState(consumers={LATE: entry} if entry is not None else {})
        topics = {"flights": TopicFacts("flights", "id-1", 1, {})}
        memory = Memory([state], topics, {SOURCE: (5, 50)}, jobs={"J": plan} if plan is not None else {})
        found = describe_memory(loaded, memory).consumers[LATE]
        return found.state, found.reason, found.consumer_sequence, found.lag_records

    mine = ConsumerState(7, {SOURCE: LogPosition(20)}, job="J", claim="C")
    assert show(begun, mine) == ("spark", "Spark job 'J' delivers it", 10, 20)
    assert show(begun.complete(0), mine) == ("spark", "Spark job 'J' delivers it", 14, 5)
    # claimed again, and no plan written since: the entry has the position
    assert show(begun, replace(mine, claim="D")) == ("spark", "Spark job 'J' delivers it", 7, 30)
    # no service has run with this prefix
    assert show(begun.complete(0), None) == ("spark", "Spark job 'J' delivers it", 14, 5)
    assert show(None, None) == ("spark", "no Spark job has begun with it", None, None)
    # by the application and the rate of its last batch
    batch = replace(begun, now=now_ms(), owner="app-7", ended=now_ms()).complete(now_ms() + 1_000)
    assert show(batch, mine)[1] == "Spark job 'J' delivers it, as application app-7"
    topics = {"flights": TopicFacts("flights", "id-1", 1, {})}
    memory = Memory([ShardState(consumers={LATE: mine})], topics, {SOURCE: (5, 50)}, jobs={"J": batch})
    assert describe_memory(loaded, memory).consumers[LATE].rate == pytest.approx(4, rel=0.1)
    # the service still has it
    assert show(begun, ConsumerState(7, {SOURCE: LogPosition(20)}))[1:] == ("no Spark job has begun with it", 7, 30)


def test_a_consumer_that_has_left_a_job(tmp_path: Path) -> None:
    left = {"late": JobPosition({SOURCE: 40}, 9, "C")}
    plan = BatchPlan(3, 0, "FLIGHTS", "", {SOURCE: (30, 45)}, {}, {}, is_complete=True, left=left)
    memory = Memory([ShardState(consumers={LATE: ConsumerState(job="J", claim="C")})], {}, {}, jobs={"J": plan})
    assert memory.find_in_jobs(LATE) == InJob(LATE, "J", left["late"], None)
