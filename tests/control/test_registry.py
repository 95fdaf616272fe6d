from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from overlay.config import ConsumerConfig, Loaded, LogEnds, StreamConfig
from overlay.config.consumer import AckPolicy, FilterConfig
from overlay.control.changes import judge_create
from overlay.control.records import (
    Definition,
    Origin,
    Pause,
    Subject,
    make_key,
    write_config,
    write_definition,
    write_drain,
    write_pause,
)
from overlay.control.registry import Registry, find_own_fault
from overlay.control.requests import RequestRefusal
from overlay.errors import ConfigError, FilePosition
from overlay.output.record import Record
from tests.control.registries import NOW, make_config, make_files, make_request, take


def served(registry: Registry) -> dict[str, str]:
    """Names and first filters of what is to be served."""
    return {name: (*config.filters, "")[0] for (_, name), config in registry.effective().consumers.items()}


def list_problems(registry: Registry) -> list[str]:
    return [str(problem) for problem in registry.effective().problems]


def break_file(files: Loaded, name: str) -> Loaded:
    """The folder with a file that cannot be read any more."""
    consumers = {id: config for id, config in files.consumers.items() if id[1] != name}
    return replace(
        files, consumers=consumers, problems=(ConfigError(FilePosition(f"consumers/{name}.yaml", 3), "is bad"),)
    )


def test_files_and_definitions_together() -> None:
    registry = Registry(make_files(make_config("a", filter_subject="t.a")))
    take(registry, write_definition(Definition(make_config("b", filter_subject="t.b"), NOW)))
    assert served(registry) == {"a": "t.a", "b": "t.b"}
    assert registry.effective().files["S", "b"] == FilePosition("overlay.control")
    take(registry, Record(make_key(Subject.CONSUMER, "S", "b"), None))
    assert served(registry) == {"a": "t.a"}


def test_a_file_wins() -> None:
    registry = Registry(make_files(make_config("a", filter_subject="t.file")))
    take(registry, write_definition(Definition(make_config("a", filter_subject="t.asked"), NOW)))
    assert served(registry) == {"a": "t.file"}
    assert list_problems(registry) == []


def test_a_file_is_written_down_once() -> None:
    registry = Registry(make_files(make_config("a")))
    (written,) = registry.find_unwritten(NOW)
    assert (written.config, written.created, written.origin) == (make_config("a"), NOW, Origin.FILE)
    take(registry, write_definition(written))
    assert list(registry.find_unwritten(NOW + 1)) == []
    # a change that is allowed is written, as of the same creation
    registry.reload(make_files(make_config("a", description="new")))
    assert [(d.config.description, d.created) for d in registry.find_unwritten(NOW + 1)] == [("new", NOW)]
    assert registry.effective().consumers["S", "a"].description == "new"


def test_where_logs_ended_at_a_creation_stays_with_the_consumer() -> None:
    ends = LogEnds({"source": ("id", (7,))})
    registry = Registry(make_files(make_config("a"), make_config("b")))
    take(registry, write_definition(Definition(make_config("a"), NOW, Origin.FILE, ends=ends)))
    take(registry, write_definition(Definition(make_config("c"), NOW, ends=ends)))
    assert registry.effective().ends == {("S", "a"): ends, ("S", "c"): ends}
    registry.reload(make_files(make_config("a", description="new"), make_config("b")))
    assert {d.id[1]: d.ends for d in registry.find_unwritten(NOW + 1)} == {"a": ends, "b": None}
    take(registry, Record(make_key(Subject.CONSUMER, "S", "c"), None))
    assert registry.effective().ends == {("S", "a"): ends}


def test_a_forbidden_change_of_a_file_leaves_it_as_it_was() -> None:
    registry = Registry(make_files(make_config("a", deliver_policy="new", filter_subject="t.new")))
    take(registry, write_definition(Definition(make_config("a", filter_subject="t.old"), NOW, Origin.FILE)))
    assert served(registry) == {"a": "t.old"}
    (problem,) = registry.effective().problems
    assert (problem.place, problem.field, problem.code) == (FilePosition("consumers/a.yaml"), "deliver_policy", 10012)
    assert "deliver policy can not be updated" in str(problem) and "It runs as it was" in str(problem)
    assert list(registry.find_unwritten(NOW)) == []


def test_an_ack_policy_that_the_state_contradicts_is_not_taken_up() -> None:
    """The topic has lost what it said of the file before."""
    registry = Registry(make_files(make_config("a", ack_policy="explicit"), make_config("b")))
    assert not registry.keep_policies({})
    assert registry.keep_policies({("S", "a"): AckPolicy.NONE})
    assert not registry.keep_policies({("S", "a"): AckPolicy.NONE})
    (problem,) = registry.effective().problems
    assert (problem.place, problem.field) == (FilePosition("consumers/a.yaml"), "ack_policy")
    assert "delivered with none" in str(problem) and "overlay consumer rm S a" in str(problem)
    assert [d.id[1] for d in registry.find_unwritten(NOW)] == ["b"]


@pytest.mark.parametrize("is_known_early", [False, True])
def test_an_ack_policy_that_is_put_back_counts_though_another_was_taken_up(is_known_early: bool) -> None:
    """`is_known_early`: whether the worker hears what the state says before the file is put back."""
    registry = Registry(make_files(make_config("a", ack_policy="explicit")))
    (wrong,) = registry.find_unwritten(NOW)
    take(registry, write_definition(wrong))
    if is_known_early:
        assert registry.keep_policies({("S", "a"): AckPolicy.NONE})
    registry.reload(make_files(make_config("a")))
    if not is_known_early:
        assert "It runs as it was" in list_problems(registry)[0]
        assert registry.keep_policies({("S", "a"): AckPolicy.NONE})
    assert list_problems(registry) == []
    assert registry.effective().consumers["S", "a"].ack_policy is AckPolicy.NONE
    # the new session finds nothing that contradicts, and the topic still says the other policy
    assert not registry.keep_policies({})
    (right,) = registry.find_unwritten(NOW)
    take(registry, write_definition(right))
    assert registry.keep_policies({})
    assert list_problems(registry) == [] and list(registry.find_unwritten(NOW)) == []
    assert registry.effective().consumers["S", "a"].ack_policy is AckPolicy.NONE


def test_a_file_that_breaks_goes_on_and_one_that_goes_does_not() -> None:
    files = make_files(make_config("a"), make_config("b"))
    registry = Registry(files)
    registry.reload(break_file(files, "a"))
    assert served(registry) == {"a": "", "b": ""}
    assert "is bad" in list_problems(registry)[0]
    # and again: it is not lost by a second look
    registry.reload(break_file(files, "a"))
    assert served(registry) == {"a": "", "b": ""}
    registry.reload(make_files(make_config("b")))
    assert served(registry) == {"b": ""}


def test_the_definition_of_a_file_that_is_gone_is_not_served() -> None:
    registry = Registry(make_files())
    take(registry, write_definition(Definition(make_config("a"), NOW, Origin.FILE)))
    assert served(registry) == {}
    assert list_problems(registry) == []


def test_pauses() -> None:
    registry = Registry(make_files(make_config("a"), make_config("b", pause_until="2030-01-01T00:00:00Z")))
    take(registry, write_pause(("S", "a"), Pause(NOW)), write_pause(("S", "b"), Pause(None)))
    found = registry.effective().consumers
    assert (found["S", "a"].pause_until, found["S", "b"].pause_until) == (NOW, None)
    take(registry, Record(make_key(Subject.PAUSE, "S", "a"), None))
    assert registry.effective().consumers["S", "a"].pause_until is None


def test_deleted_consumers_are_not_served() -> None:
    registry = Registry(make_files(make_config("a")))
    for name in ("a", "b"):
        take(registry, write_definition(Definition(make_config(name), NOW, is_deleted=True)))
    assert served(registry) == {}
    assert sorted(registry.find_deleted()) == [("S", "a"), ("S", "b")]


def test_lapsed_consumers_come_back_with_the_next_start() -> None:
    registry = Registry(make_files(make_config("a")))
    registry.lapse(("S", "a"))
    assert served(registry) == {} and list(registry.find_unwritten(NOW)) == []


def test_definitions_that_do_not_fit_are_problems() -> None:
    registry = Registry(make_files())
    elsewhere = make_config("a", stream="T")
    take(registry, write_definition(Definition(elsewhere, NOW)))
    take(registry, write_definition(Definition(make_config("b", filter_subject="other"), NOW)))
    take(registry, write_definition(Definition(make_config("c", deliver_subject="source"), NOW)))
    take(registry, write_definition(Definition(make_config("d"), NOW)))
    assert served(registry) == {"d": ""}
    assert [problem.code for problem in registry.effective().problems] == [10093, 10081, 10059]


def test_definitions_are_judged_when_they_or_the_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def find(config: ConsumerConfig, loaded: Loaded) -> RequestRefusal | None:
        judged.append(config.id[1])
        return find_own_fault(config, loaded)

    monkeypatch.setattr("overlay.control.registry.find_own_fault", find)
    registry = Registry(make_files())
    take(registry, *(write_definition(Definition(make_config(name), NOW)) for name in ("a", "b", "c")))
    assert set(served(registry)) == {"a", "b", "c"}
    assert sorted(judged) == ["a", "b", "c"]
    judged.clear()
    take(registry, write_definition(Definition(make_config("b", filter_subject="other"), NOW)))
    assert set(served(registry)) == {"a", "c"}
    assert judged == ["b"]
    judged.clear()
    # another folder may have another stream
    registry.reload(make_files())
    assert set(served(registry)) == {"a", "c"}
    assert sorted(judged) == ["a", "b", "c"]


def test_a_change_of_one_compares_no_other_file_with_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    compare = ConsumerConfig.__eq__

    def count(config: ConsumerConfig, other: object) -> bool:
        compared.append(config.id[1])
        return compare(config, other)

    registry = Registry(make_files(*(make_config(name) for name in ("a", "b", "c"))))
    take(registry, *map(write_definition, list(registry.find_unwritten(NOW))))
    assert list(registry.find_unwritten(NOW)) == [] and set(served(registry)) == {"a", "b", "c"}
    assert all(known.config is registry.files.consumers[id] for id, known in registry.definitions.items())
    monkeypatch.setattr(ConsumerConfig, "__eq__", count)
    take(registry, write_definition(Definition(make_config("b"), NOW, Origin.FILE)))
    assert list(registry.find_unwritten(NOW)) == [] and set(served(registry)) == {"a", "b", "c"}
    assert set(compared) == {"b"}
    # the file says something else now, and so may the others
    registry.reload(make_files(make_config("a", description="x"), make_config("b"), make_config("c")))
    assert [definition.id[1] for definition in registry.find_unwritten(NOW)] == ["a"]


def test_a_definition_is_judged_beside_those_that_come_before_it() -> None:
    """The way back may come with another consumer, long after the definition was judged by itself."""
    files = make_files()
    beside = StreamConfig.model_validate({"name": "T", "topics": ("between",), "subjects": ("u.>",)})
    registry = Registry(replace(files, streams={**files.streams, "T": beside}))
    forth = make_config("forth", deliver_subject="between")
    take(registry, write_definition(Definition(forth, NOW + 1)))
    assert set(served(registry)) == {"forth"}
    back = make_config("back", stream="T", deliver_subject="source")
    take(registry, write_definition(Definition(back, NOW)))
    assert set(served(registry)) == {"back"}
    assert [problem.code for problem in registry.effective().problems] == [10081]


def test_garbage_is_counted() -> None:
    registry = Registry(make_files())
    take(registry, Record(b"zork", b"1"), Record(b"consumer S a", b"{"), Record(None, None))
    assert (registry.foreign, served(registry), registry.requests) == (3, {}, {})


def test_drained_workers_are_known_until_they_are_not() -> None:
    registry = Registry(make_files())
    take(registry, write_drain("a", "boot1"), write_drain("b", "boot2"), write_drain("a", "boot3"))
    assert registry.drained == {"a": "boot3", "b": "boot2"}
    take(registry, Record(make_key(Subject.WORKER, "b"), None), Record(make_key(Subject.WORKER, "c"), b'{"v":1}'))
    assert (registry.drained, registry.foreign) == ({"a": "boot3"}, 1)
    registry.clear()
    assert registry.drained == {}


def test_requests_wait_until_they_are_settled() -> None:
    registry = Registry(make_files())
    for id in ("1", "2"):
        take(registry, Record(make_key(Subject.REQUEST, id), b'{"op":"consumer.list"}'))
    assert list(registry.requests) == ["1", "2"]
    take(registry, Record(make_key(Subject.REQUEST, "1"), None))
    assert list(registry.requests) == ["2"]


@pytest.mark.parametrize(
    "fields",
    [{"ack_policy": "explicit", "sample_freq": "150%"}, {"filter": {"sql": "flag = TRUE"}}],
    ids=["sampling", "filter"],
)
def test_a_definition_of_an_earlier_version_that_is_refused_now_can_be_replaced(fields: dict[str, Any]) -> None:
    """The consumer is told of and not served; its definition, and with it its state, stays."""
    registry = Registry(make_files())
    config = make_config(**fields)
    take(registry, write_definition(Definition(config, NOW - 5)))
    found = registry.effective()
    assert (found.consumers, len(found.problems)) == ({}, 1)
    assert "consumer S/c is not served" in str(found.problems[0])
    good = config.model_copy(update={"sample_freq": "50%" if config.sample_freq else "", "filter": FilterConfig()})
    request = make_request("consumer.create", stream="S", config=write_config(good))
    assert judge_create(registry, request, NOW, is_bound=False) == Definition(good, NOW - 5)
