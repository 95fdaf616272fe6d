"""A shard's life without Kafka: what ends a session, and how long the shard rests then."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.kafka.own_topics import index_topic
from overlay.metrics import Metrics
from overlay.worker import shard as shard_module
from overlay.worker.round.task import Counts
from overlay.worker.shard import Shard
from tests.control.registries import make_files


def make_shard() -> Shard:
    nothing = cast("Any", None)
    return Shard(make_files(), 0, {}, (), nothing, Metrics(), nothing, nothing)


async def test_a_stray_cancellation_ends_no_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, stop = make_shard(), asyncio.Event()
    sessions, is_second = list[str](), asyncio.Event()

    async def serve(self: Shard, stop: asyncio.Event) -> None:
        sessions.append(self.trouble)
        if len(sessions) == 1:
            raise asyncio.CancelledError  # as of a task of the session that was cancelled by accident
        is_second.set()
        await stop.wait()

    monkeypatch.setattr(Shard, "_serve", serve)
    running = asyncio.create_task(shard.run(stop))
    async with asyncio.timeout(60):
        await is_second.wait()
    assert sessions == ["", "CancelledError"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_session_that_served_for_a_while_shortens_the_next_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that had nothing to commit."""
    monkeypatch.setattr(shard_module, "STEADY_S", 0.0)
    shard = make_shard()
    for _ in range(3):
        shard._note(SourceUnavailable("away"))
    assert shard._failures == 3
    shard._served_since = 0.0
    shard._note(SourceUnavailable("away"))
    assert shard._failures == 1


def test_refusals_of_an_index_topic_count_only_until_it_takes_a_batch() -> None:
    files, nothing = make_files(), cast("Any", None)
    topic = index_topic(files.service.topics.prefix, "S")
    refusal = DeliveryFailed(topic, 0, "not enough replicas in sync", final=False)
    shard = Shard(files, 0, {}, ("S",), nothing, Metrics(), nothing, lambda counts: None)
    for counts in (Counts(index_topics={topic}), Counts(index_topics={"other"}, decoded={"S": 1})):
        assert shard._list_indexes() == {"S": ""}
        shard._note(refusal)
        shard._note_counts(counts)
    assert shard._list_indexes() == {"S": ""}
    shard._note(refusal)
    assert shard._list_indexes() == {"S": str(refusal)}
