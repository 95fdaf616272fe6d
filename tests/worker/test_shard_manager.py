"""Which changes a running machine takes over, and which shard has what. The rest is tested with Kafka in tests/control."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from prometheus_client import generate_latest

from overlay.config import ConsumerConfig
from overlay.errors import StateKept
from overlay.kafka.own_topics import shard_of
from overlay.metrics import Metrics
from overlay.state.shard_state import ConsumerId, StateUnreadable
from overlay.worker.changes import LIGHT, is_light
from overlay.worker.metric_series import TURN, Series
from overlay.worker.rates import Rates
from overlay.worker.round.task import Counts
from overlay.worker.shard_manager import ShardManager
from tests.control.registries import make_config, make_files

ACKED = {"ack_policy": "explicit", "interest": "always"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ack_wait": "5s"}, True),
        ({"max_deliver": 3, "backoff": ("1s", "2s")}, True),
        ({"description": "x", "metadata": {"a": "b"}}, True),
        ({"pause_until": "2030-01-01T00:00:00Z"}, True),
        ({"filter_subject": "t.a"}, False),
        ({"filter": {"sql": "x > 1"}}, False),
        ({"deliver_subject": "other"}, False),
        ({"ack_wait": "5s", "dead_letter": "dead"}, False),
        ({"on_undeliverable": "dead_letter", "dead_letter": "dead"}, False),
    ],
)
def test_changes_of_a_machine(change: dict[str, Any], expected: bool) -> None:
    assert is_light(make_config(**ACKED), make_config(**ACKED | change)) is expected


def test_who_gets_a_machine_by_a_change_begins_anew() -> None:
    plain = make_config()
    assert not is_light(plain, make_config(pause_until="2030-01-01T00:00:00Z"))
    assert is_light(plain, make_config(description="x"))


def test_light_fields_are_fields() -> None:
    assert set(ConsumerConfig.model_fields) > LIGHT


class Group:
    """A membership of the group, with the shards that the group has assigned now."""

    is_moving = False
    generation = 3

    def __init__(self, *numbers: int) -> None:
        self.owned = frozenset(numbers)
        self.asked = 0
        """How often the coordinator was asked; it confirms nothing."""

    def is_assigned(self, numbers: frozenset[int]) -> bool:
        return numbers == self.owned

    async def confirm(self, shard: int) -> int | None:
        self.asked += 1
        return None


def make_manager(
    group: asyncio.TaskGroup, configs: Iterable[ConsumerConfig], membership: Group, metrics: Metrics | None = None
) -> ShardManager:
    """A manager of four shards."""
    nothing = cast("Any", None)
    files, known = make_files(*configs), cast("Any", membership)
    return ShardManager(files, 4, nothing, metrics or Metrics(), known, group, Rates())


async def serve(shard_manager: ShardManager, *numbers: int) -> None:
    """Have the group assign these shards, and the manager take them."""
    cast("Group", shard_manager.membership).owned = frozenset(numbers)
    assert await shard_manager.take(frozenset(numbers))


class Idle:
    """A shard that serves nothing."""

    session = None

    def __init__(self, loaded: object, number: int, mine: dict[tuple[str, str], ConsumerConfig], *_: object) -> None:
        self.loaded, self.mine = loaded, mine

    async def take_up(self, *_: object) -> bool:
        return False

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()


async def test_a_state_that_cannot_be_forgotten_keeps_no_shard_from_its_change(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    async def amend(service: object, admin: object, change: object, confirm: object) -> list[int]:
        tried.append(change)
        raise StateUnreadable("torn")

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    monkeypatch.setattr("overlay.worker.shard_manager.amend", amend)
    configs = [make_config(f"c{number}") for number in range(20)]
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, configs, Group())
        await serve(shard_manager, 0, 1, 2, 3)
        changed = make_files(*(make_config(f"c{number}", filter_subject="t.a") for number in range(2, 20)))
        with pytest.raises(StateKept, match="torn") as kept:
            await shard_manager.take_up(changed, [config.id for config in configs[:2]])
        assert kept.value.reasons == {config.id: "torn" for config in configs[:2]}
        served = {id: config for shard in shard_manager.shards.values() for id, config in shard.mine.items()}
        assert served == changed.consumers
        assert len(tried) == 2
        await shard_manager.release()


async def test_the_series_of_a_new_consumer_begin_before_its_first_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its running session may count it before the change is known to be committed."""
    opened: list[set[tuple[str, str]]] = []
    old, new = [config for number in range(20) if shard_of((config := make_config(f"c{number}")).id, 4) == 0][:2]

    class Running(Idle):
        async def take_up(self, *_: object) -> bool:
            opened.append(set(shard_manager.opened))
            return True

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Running)
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, [old], Group())
        await serve(shard_manager, 0)
        await shard_manager.take_up(make_files(old, new))
        assert opened == [{old.id, new.id}]
        await shard_manager.release()


async def test_the_series_of_a_new_filter_begin_before_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a consumer comes with it or gets it."""
    metrics, found = Metrics(), list[set[str]]()
    evaluated = re.compile(r'overlay_records_evaluated_total\{consumer="(\w+)"')
    names = [name for number in range(20) if shard_of(("S", name := f"c{number}"), 4) == 0]
    old, new, other = (make_config(name) for name in names[:3])
    filtered = [make_config(each.durable_name, filter={"sql": "x > 1"}) for each in (old, new)]

    class Running(Idle):
        async def take_up(self, *_: object) -> bool:
            found.append(set(evaluated.findall(generate_latest(metrics.registry).decode())))
            return True

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Running)
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, [old, other], Group(), metrics)
        await serve(shard_manager, 0)
        await shard_manager.take_up(make_files(*filtered, other))
        assert found == [{old.durable_name, new.durable_name}]
        await shard_manager.release()


async def test_series_of_many_consumers_are_opened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """When shards come, and when a new session takes a change up: other tasks run in between."""
    opened: list[int] = []
    open_consumers = Series.open_consumers

    def count(series: Series, ids: Iterable[ConsumerId], filtered: Iterable[ConsumerId] = ()) -> None:
        before = len(series.opened)
        open_consumers(series, ids, filtered)
        opened.append(len(series.opened) - before)

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    monkeypatch.setattr(Series, "open_consumers", count)
    few, many = ([make_config(f"c{number}") for number in range(4 * each * TURN)] for each in (2, 4))
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, few, Group())
        await serve(shard_manager, 0, 1, 2, 3)
        await shard_manager.take_up(make_files(*many))
        assert sum(opened) == len(many)
        assert max(opened) <= TURN
        await shard_manager.release()


async def test_a_change_that_an_unforeseen_error_ends_is_completed_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, [make_config(f"c{number}") for number in range(20)], Group())
        await serve(shard_manager, 0, 1, 2, 3)
        changed = make_files(*(make_config(f"c{number}", filter_subject="t.a") for number in range(2, 20)))
        with monkeypatch.context() as patch:
            stopped: list[Iterable[int]] = []

            async def stop(manager: ShardManager, numbers: Iterable[int]) -> None:
                stopped.append(numbers)
                if len(stopped) == 3:
                    raise KeyError("zork")
                await kept(manager, numbers)

            kept = ShardManager._stop
            patch.setattr(ShardManager, "_stop", stop)
            with pytest.raises(KeyError, match="zork"):
                await shard_manager.take_up(changed)
        begun = dict(shard_manager.shards)
        await shard_manager.take_up(changed)
        served = {id: config for shard in shard_manager.shards.values() for id, config in shard.mine.items()}
        assert served == changed.consumers
        assert [shard_manager.shards[number] is begun[number] for number in range(4)] == [True, True, False, False]
        assert not {("S", "c0"), ("S", "c1")} & shard_manager.opened
        await shard_manager.release()


async def test_shards_that_start_after_an_unforeseen_error_serve_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a deleted consumer may be dropped already: with its former config it would begin anew."""

    async def amend(*_: object) -> list[int]:
        return []

    def fail(*_: object) -> None:
        raise KeyError("zork")

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    monkeypatch.setattr("overlay.worker.shard_manager.amend", amend)
    configs, metrics = [make_config(f"c{number}") for number in range(20)], Metrics()
    after = make_files(*configs[10:])
    tried = make_files(*configs[10:], make_config("other", stream="T"))

    def is_counted(stream: str) -> bool:
        return f'overlay_records_lost_total{{stream="{stream}"}}' in generate_latest(metrics.registry).decode()

    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, configs, Group(), metrics)
        await serve(shard_manager, 0, 1, 2, 3)
        with monkeypatch.context() as patch, pytest.raises(KeyError, match="zork"):
            patch.setattr(Series, "close_streams", fail)
            await shard_manager.take_up(tried, [config.id for config in configs[:10]])
        await serve(shard_manager, 0)
        await serve(shard_manager, 0, 1, 2, 3)
        served = {id for shard in shard_manager.shards.values() for id in shard.mine}
        assert served == tried.consumers.keys()
        assert is_counted("T")
        await shard_manager.take_up(after)
        assert not is_counted("T")
        assert shard_manager.opened == after.consumers.keys()
        await shard_manager.release()


async def test_states_are_left_to_the_owner_after_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is stopped meanwhile, and each question may take CONFIRM_S."""
    membership = Group()

    async def amend(service: object, admin: object, change: object, confirm: Callable[[object], Any]) -> list[int]:
        await confirm(None)
        raise AssertionError("it was told that the shard is not ours")

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    monkeypatch.setattr("overlay.worker.shard_manager.amend", amend)
    configs = [make_config(f"c{number}") for number in range(20)]
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, configs, membership)
        await serve(shard_manager, 0)
        gone = [config.id for config in configs if shard_of(config.id, 4) == 0]
        assert len(gone) > 1
        with pytest.raises(StateKept, match="not ours any more") as kept:
            await shard_manager.take_up(make_files(*(each for each in configs if each.id not in gone)), gone)
        assert kept.value.reasons.keys() == set(gone)
        assert membership.asked == 1
        await shard_manager.release()


async def test_shards_that_stay_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    configs = [make_config(f"c{number}") for number in range(20)]
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, configs, Group())
        await serve(shard_manager, 0, 1, 2)
        before = dict(shard_manager.shards)
        await serve(shard_manager, 1, 2, 3)
        after = shard_manager.shards
        assert after.keys() == {1, 2, 3}
        assert [after[number] is before.get(number) for number in (1, 2, 3)] == [True, True, False]
        await shard_manager.release()
        assert not shard_manager.shards


@pytest.mark.parametrize("now", [{1, 2, 3}, set[int]()])
async def test_an_assignment_that_ends_while_it_waits_stops_no_shard(
    now: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one, or the shards that stay through the rebalance, may have more than it."""
    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    membership = Group()
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, (make_config(f"c{number}") for number in range(20)), membership)
        await serve(shard_manager, 1, 2, 3)
        before = dict(shard_manager.shards)
        membership.owned = frozenset({1, 2})
        async with shard_manager._changing:
            taking = asyncio.create_task(shard_manager.take(membership.owned))
            await asyncio.sleep(0)
            membership.owned = frozenset(now)
        assert not await taking
        assert shard_manager.shards == before
        await shard_manager.release()


def test_deliveries_of_no_known_time_are_counted() -> None:
    """What was delivered may all be without an output: then nothing says how old it is."""
    nothing = cast("Any", None)
    shard_manager = ShardManager(nothing, 1, nothing, Metrics(), nothing, nothing, Rates())
    id = ("S", "c")
    shard_manager._note_commit(Counts(delivered=Counter({id: 3})))
    assert shard_manager.rates.delivered[id] == 3


@pytest.mark.parametrize(("by_consumer", "names"), [(False, {""}), (True, {"c", "d"})])
def test_latencies_are_kept_for_streams_or_for_consumers(by_consumer: bool, names: set[str]) -> None:
    nothing, metrics = cast("Any", None), Metrics()
    shard_manager = ShardManager(
        nothing, 1, nothing, metrics, nothing, nothing, Rates(), latency_by_consumer=by_consumer
    )
    delivered = {("S", name): 1 for name in ("c", "d")}
    shard_manager._note_commit(Counts(delivered=Counter(delivered), oldest=dict.fromkeys(delivered, 5)))
    (family,) = metrics.delivery_latency_seconds.collect()
    counts = {each.labels["consumer"]: each.value for each in family.samples if each.name.endswith("_count")}
    assert counts == dict.fromkeys(names, 2.0 / len(names))


async def test_series_end_with_a_shard_that_moves_and_with_a_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    configs, metrics = [make_config(f"c{number}") for number in range(20)], Metrics()
    kept = shard_of(("S",), 4)
    other = (kept + 1) % 4

    def list_consumers() -> set[str]:
        samples = (sample for family in metrics.registry.collect() for sample in family.samples)
        return {sample.labels["consumer"] for sample in samples if "consumer" in sample.labels}

    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, configs, Group(), metrics)
        await serve(shard_manager, 0, 1, 2, 3)
        for config in configs:
            metrics.consumer_lag_seconds.labels(*config.id).set(1)
        metrics.index_lag_records.labels("S").set(1)
        assert list_consumers() == {config.id[1] for config in configs}
        await shard_manager.release()
        await serve(shard_manager, other)
        here = {config.id[1] for config in configs if shard_of(config.id, 4) == other}
        assert 1 < len(here) < 20
        assert list_consumers() == here
        assert "overlay_index_lag_records{" not in generate_latest(metrics.registry).decode()
        gone = min(here)
        await shard_manager.take_up(make_files(*(config for config in configs if config.id[1] != gone)))
        assert list_consumers() == here - {gone}
        await shard_manager.release()


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_counts_and_series_go_with_their_consumer(monkeypatch: pytest.MonkeyPatch, is_made_again: bool) -> None:
    """Also if one is made again under the name before the deletion is taken up."""

    async def amend(*_: object) -> list[int]:
        return []

    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    monkeypatch.setattr("overlay.worker.shard_manager.amend", amend)
    one, other, metrics = make_config("c"), make_config("d"), Metrics()
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, [one, other], Group(), metrics)
        await serve(shard_manager, 0, 1, 2, 3)
        for _ in range(2):
            shard_manager._note_commit(Counts(delivered=Counter({one.id: 3, other.id: 1}), newest={one.id: 5}))
        assert _read_delivered(metrics) == {one.id: 6, other.id: 2}
        await shard_manager.take_up(make_files(other, *([one] if is_made_again else [])), [one.id])
        assert _read_delivered(metrics) == {other.id: 2} | ({one.id: 0} if is_made_again else {})
        assert shard_manager.rates.delivered == {other.id: 2}
        assert not shard_manager.rates.newest
        await shard_manager.release()


async def test_shards_have_the_generation_in_which_they_were_assigned() -> None:
    membership = Group()
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, (), membership)
        assert shard_manager.generation == -1
        await serve(shard_manager, 1)
        membership.generation = 4
        assert shard_manager.generation == 3, "the new assignment is not taken yet"
        await serve(shard_manager, 1)
        assert shard_manager.generation == 4
        await shard_manager.release()
        assert shard_manager.generation == -1


async def test_counts_of_consumers_that_were_deleted_between_two_memberships_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlay.worker.shard_manager.Shard", Idle)
    kept, metrics = make_config("d"), Metrics()
    async with asyncio.TaskGroup() as group:
        shard_manager = make_manager(group, [kept], Group(), metrics)
        shard_manager.series.open_consumers([("S", "gone")])
        shard_manager._note_commit(Counts(delivered=Counter({("S", "gone"): 3, kept.id: 1})))
        await serve(shard_manager, 0, 1, 2, 3)
        assert _read_delivered(metrics) == {kept.id: 1} == shard_manager.rates.delivered
        await shard_manager.release()


def _read_delivered(metrics: Metrics) -> dict[tuple[str, str], float]:
    (family,) = metrics.records_delivered.collect()
    return {
        (each.labels["stream"], each.labels["consumer"]): each.value
        for each in family.samples
        if each.name.endswith("_total")
    }
