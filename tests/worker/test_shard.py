"""A shard's life without Kafka: what ends a session, and how long the shard rests then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.errors import DeliveryFailed, SourceUnavailable
from overlay.kafka.own_topics import index_topic
from overlay.metrics import Metrics
from overlay.worker import change_queue
from overlay.worker import shard as shard_module
from overlay.worker.change_queue import ChangeQueue
from overlay.worker.changes import Change, Step, find_step
from overlay.worker.round.task import Counts
from overlay.worker.shard import Shard
from tests.control.registries import make_config, make_files


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


async def test_a_change_of_consumers_that_the_shard_does_not_know_takes_a_new_session() -> None:
    """An earlier change may have been taken up in part."""
    before, after = make_config(), make_config(filter_subject="t.a")
    step = find_step({before.id: before}, {after.id: after}, [])
    assert step is not None
    shard = make_shard()
    assert not await shard.take_up(make_files(after), {after.id: after}, step)
    assert shard.mine == {after.id: after}


@pytest.mark.parametrize(("failure", "counted"), [(KeyError("zork"), 1), (SourceUnavailable("away"), 0)])
async def test_an_unforeseen_error_of_a_change_is_counted(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, counted: int
) -> None:
    """An alert tells of it, though a new session takes the change up."""

    async def prepare(*_: object) -> Change:
        raise failure

    before, after = make_config(), make_config(filter_subject="t.a")
    step = find_step({before.id: before}, {after.id: after}, [])
    assert step is not None
    shard = make_shard()
    monkeypatch.setattr(shard_module, "prepare", prepare)
    shard._session = cast("Any", SimpleNamespace(is_over=False))
    assert not await shard.take_up(make_files(after), {after.id: after}, step)
    found = shard.metrics.registry.get_sample_value("overlay_unforeseen_errors_total", {"task": "shard"})
    assert (found or 0) == counted


async def test_a_session_that_is_to_end_takes_up_no_change_and_says_so_at_once() -> None:
    """The shard manager holds up all other changes until it has an answer."""
    change, nothing = Change(Step({}, {}, {}, {}, {}, ())), cast("Any", None)
    changes = ChangeQueue(*[nothing] * 5)
    waiting = asyncio.create_task(changes.put(change))
    await asyncio.sleep(0)
    assert not waiting.done()
    changes.close()
    async with asyncio.timeout(20):
        assert not await waiting
        assert not await changes.put(change)


async def test_a_change_that_waits_for_a_step_is_refused_when_the_session_is_to_end() -> None:
    """The step may take long. It goes on, and none waits for what the change would have held."""
    config = make_config(ack_policy="explicit")
    change, nothing = Change(Step({}, {}, {config.id: config}, {}, {}, ())), cast("Any", None)
    lock = asyncio.Lock()
    changes = ChangeQueue(*[nothing] * 5)
    changes.dispatch_loop = cast("Any", SimpleNamespace(between_steps=lock))
    async with lock:
        given_up, waiting = (asyncio.create_task(changes.put(change)) for _ in range(2))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        changes.close()
        async with asyncio.timeout(20):
            assert not await waiting
        assert given_up.cancelled()
        assert lock.locked()
    async with asyncio.timeout(20), lock:
        pass


async def test_a_change_that_is_put_after_the_end_waits_for_no_step() -> None:
    config = make_config(ack_policy="explicit")
    change, nothing = Change(Step({}, {}, {config.id: config}, {}, {}, ())), cast("Any", None)
    changes, lock = ChangeQueue(*[nothing] * 5), asyncio.Lock()
    changes.dispatch_loop = cast("Any", SimpleNamespace(between_steps=lock))
    changes.close()
    async with lock, asyncio.timeout(20):
        assert not await changes.put(change)


async def test_a_change_that_fails_is_left_to_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error ends the session, and the one who waits is told before that."""

    def fail(*_: Any) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(change_queue, "can_take_up", lambda *_: True)
    monkeypatch.setattr(ChangeQueue, "_change", fail)
    nothing = cast("Any", None)
    changes = ChangeQueue(nothing, nothing, cast("Any", SimpleNamespace(state=None)), nothing, nothing)
    waiting = asyncio.create_task(changes.put(Change(Step({}, {}, {}, {}, {}, ()))))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="unforeseen"):
        await changes.take_up(nothing)
    async with asyncio.timeout(20):
        assert not await waiting


async def test_what_a_consumer_was_given_before_it_moves_says_nothing_about_its_new_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds from before the change are committed while its session takes it up."""
    before, after = make_config(deliver_subject="old"), make_config(deliver_subject="new")
    shard = make_shard()
    shard.mine, shard.on_commit = {before.id: before}, lambda counts: None
    refusal = DeliveryFailed("new", 0, "not enough replicas in sync", final=False)
    step = find_step(shard.mine, {after.id: after}, [])
    assert step is not None

    class Slow:
        """Changes of a session that commits an earlier round first."""

        async def put(self, change: Change) -> bool:
            shard._note_counts(Counts(delivered={after.id: 1}))
            return True

    async def prepare(*arguments: Any) -> Change:
        assert isinstance(arguments[-1], Step)
        return Change(arguments[-1])

    monkeypatch.setattr(shard_module, "prepare", prepare)
    shard._session = cast("Any", SimpleNamespace(is_over=False, changes=Slow()))
    shard._note(refusal)
    assert await shard.take_up(make_files(after), {after.id: after}, step)
    assert not shard._stalled
    shard._note(refusal)
    assert shard._stalled.keys() == {after.id}
    # from now on it counts again
    shard._note_counts(Counts(delivered={after.id: 1}))
    assert not shard._refusals
