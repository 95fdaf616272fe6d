"""Three brokers, one of which stands still or begins again: questions to the others are answered as ever."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlay.errors import SourceUnavailable
from overlay.kafka.admin import Admin
from tests.kafka.test_admin import commit
from tests.support.cluster import Cluster, run_cluster
from tests.support.kafka import DEADLINE_S, make_topic

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BETWEEN_S = 0.05


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextmanager
def suspend(cluster: Cluster, node: int) -> Iterator[None]:
    pid = cluster.brokers[node].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_suspended_broker_holds_up_its_own_questions_alone(cluster: Cluster) -> None:
    """Its connections stay open, and new ones are accepted: only answers do not come."""
    ours = {node: make_topic(cluster.bootstrap, f"alone-{node}", nodes=(node,)) for node in cluster.brokers}
    group = "alone-group"
    commit(cluster.bootstrap, group, {(ours[1], 0): 3})
    coordinator = cluster.find_leader("__consumer_offsets")
    stopped = next(node for node in cluster.brokers if node != coordinator)
    others = [topic for node, topic in ours.items() if node != stopped]
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        for topic in ours.values():
            await admin.find_bounds([(topic, 0)])
        with suspend(cluster, stopped):
            hung = [asyncio.create_task(admin.find_bounds([(ours[stopped], 0)])) for _ in range(20)]
            slowest = 0.0
            for _ in range(20):
                began = time.monotonic()
                await asyncio.gather(
                    admin.find_bounds([(topic, 0) for topic in others]),
                    admin.find_committed([group]),
                    admin.count_members_of([group, "absent"]),
                    admin.find_topics(ours.values()),
                )
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(BETWEEN_S)
            assert slowest < 4, "one change of brokers, no deadline"
        found = await asyncio.gather(*hung, return_exceptions=True)
    assert all(isinstance(one, SourceUnavailable) or one == {(ours[stopped], 0): (0, 0)} for one in found)


async def test_groups_while_their_coordinator_is_killed_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    """Every question is answered, by the new coordinator, or ends as unavailable; none waits longer than its deadline."""
    topic = make_topic(cluster.bootstrap, "moving", nodes=(1, 2, 3))
    commit(cluster.bootstrap, "moving", {(topic, 0): 3})
    cluster.await_in_sync(topic, "__consumer_offsets")
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        assert await admin.find_committed(["moving"]) == {"moving": {topic: {0: 3}}}
        for _ in range(2):
            lost = cluster.find_leader("__consumer_offsets")
            asking = asyncio.create_task(_ask(admin, "moving"))
            await asyncio.to_thread(cluster.brokers[lost].kill)
            await asyncio.to_thread(cluster.await_leader, "__consumer_offsets", other_than=lost)
            await _await_committed(admin, "moving", {topic: {0: 3}})
            assert await admin.count_members("moving") == 0
            await asyncio.to_thread(cluster.brokers[lost].restart)
            await asyncio.to_thread(cluster.await_in_sync, topic, "__consumer_offsets")
            asking.cancel()
            (ended,) = await asyncio.gather(asking, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), "no other error came"
            assert await admin.find_bounds([(topic, 0)]) == {(topic, 0): (0, 0)}


async def _await_committed(admin: Admin, group: str, expected: dict[str, dict[int, int]]) -> None:
    """A coordinator that was elected right after a commit answers for a moment as before it: its high watermark lags."""
    seen: list[object] = []
    async with asyncio.timeout(DEADLINE_S):
        while seen[-1:] != [expected]:
            seen.append((await admin.find_committed([group]))[group])
            await asyncio.sleep(BETWEEN_S)
    assert all(answer in ({}, expected) for answer in seen)


async def _ask(admin: Admin, group: str) -> None:
    """Ask without an end, as the service does."""
    while True:
        try:
            await admin.find_committed([group])
            await admin.count_members_of([group])
        except SourceUnavailable:
            pass
        await asyncio.sleep(BETWEEN_S)
