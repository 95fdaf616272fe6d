"""Changes to the state by a process that does not own the shard."""

from __future__ import annotations

import asyncio
import uuid

from overlay.config import ServiceConfig
from overlay.config.service import KafkaProperties, TopicsConfig
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition
from overlay.state.amend import Change, amend, forget_consumer, read_states, reset_stream
from overlay.state.shard_state import ConsumerState, Delta, ShardState
from overlay.state.takeover import ensure_state_topic


def make_service(bootstrap: str) -> ServiceConfig:
    prefix = f"amend-{uuid.uuid4().hex[:8]}"
    kafka = KafkaProperties.model_validate({"bootstrap.servers": bootstrap})
    return ServiceConfig.model_validate({"kafka": kafka, "topics": TopicsConfig(prefix=prefix)})


async def read_all(service: ServiceConfig, admin: Admin) -> list[ShardState]:
    client = await open_client(service.kafka)
    try:
        return await read_states(client, admin, service.topics.prefix)
    finally:
        await client.close()


def add_consumer(name: str) -> Change:
    return lambda state: Delta(consumers={("S", name): ConsumerState(1)})


async def test_those_who_take_the_shard_from_each_other_all_come_through(bootstrap: str, admin: Admin) -> None:
    service = make_service(bootstrap)
    assert await amend(service, admin, add_consumer("early")) == []  # no service has run yet
    await ensure_state_topic(admin, service.topics.prefix, 1, 1)
    names = ["a", "b", "c"]
    assert await asyncio.gather(*(amend(service, admin, add_consumer(name)) for name in names)) == [[0]] * 3
    (state,) = await read_all(service, admin)
    assert sorted(state.consumers) == [("S", name) for name in names]
    assert state.generation == -1


async def test_only_the_shards_concerned_are_taken_over(bootstrap: str, admin: Admin) -> None:
    service = make_service(bootstrap)
    await ensure_state_topic(admin, service.topics.prefix, 3, 1)

    def forget(state: ShardState) -> Delta:
        return forget_consumer(state, ("S", "a"))

    assert await amend(service, admin, forget) == []
    assert await amend(service, admin, add_consumer("a")) == [0, 1, 2]
    assert await amend(service, admin, forget) == [0, 1, 2]
    assert await amend(service, admin, forget) == []


def test_nothing_to_reset_in_a_shard_without_the_stream() -> None:
    other = ShardState(consumers={("OTHER", "c"): ConsumerState(1)}, topics={("OTHER", "t"): "id"})
    assert not reset_stream(other, "S", {("t", 0): 0}, {})
    assert reset_stream(ShardState(topics={("S", "t"): "id"}), "S", {}, {})


def test_a_reset_leaves_the_consumers_of_jobs_alone() -> None:
    known = {("S", "c"): ConsumerState(7), ("S", "spark"): ConsumerState(8, job="J", claim="1")}
    delta = reset_stream(ShardState(consumers=known), "S", {("t", 0): 5}, {})
    assert delta.consumers == {("S", "c"): ConsumerState(7, {("t", 0): LogPosition(5)})}
