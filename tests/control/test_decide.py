"""What requests come to, against docs/jetstream.md#updates: the same codes, and nothing changes where one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.config import LogEnds
from overlay.consumer.effects import Advisory
from overlay.consumer.info import ConsumerInfo, Gate
from overlay.consumer.pulls import PullRequest, StatusText
from overlay.consumer.table import Phase
from overlay.consumer.window import Pair
from overlay.control.decide import Decision, decide
from overlay.control.records import Definition, Origin, read_definition, write_definition, write_drain
from overlay.control.registry import Registry
from overlay.kafka.own_topics import shard_of
from tests.control.registries import NOW, Worker, make_config, make_files, make_request, read_error, take

CONFIG = {"durable_name": "c", "deliver_subject": "out-c", "ack_policy": "none"}
INFO = ConsumerInfo(Phase.AWAKE, Gate.FULL, Pair(9, 7), NOW, Pair(3, 2), 0, 4, 1, 0, 12, 2, True, True, 5)


def ask(registry: Registry, op: str, worker: Worker | None = None, **body: Any) -> Decision:
    return decide(registry, worker or Worker(), make_request(op, **body), NOW)


def create(registry: Registry, action: str = "", worker: Worker | None = None, **fields: Any) -> Decision:
    return ask(registry, "consumer.create", worker, stream="S", action=action, config=CONFIG | fields)


@pytest.fixture
def registry() -> Registry:
    """Consumer `file` of a file, and `c` by request."""
    found = Registry(make_files(make_config("file")))
    take(found, write_definition(Definition(make_config("c"), NOW - 5)))
    return found


def read_only(decision: Decision) -> Definition:
    (record,) = decision.records
    assert decision.response is None
    return read_definition(("S", "c"), record.value or b"")


def test_a_new_consumer() -> None:
    decision = create(Registry(make_files()), filter_subjects=["t.a", "t.b"], ack_policy="none")
    assert decision.advisory is Advisory.CREATED
    found = read_only(decision)
    assert (found.origin, found.created, found.config.filters) == (Origin.REQUEST, NOW, ("t.a", "t.b"))
    assert found.config.max_deliver == -1  # what the server fills in


@pytest.mark.parametrize("action", ["", "create", "update"])
def test_what_is_there_is_granted(registry: Registry, action: str) -> None:
    assert create(registry, action) == Decision()


def test_an_upsert_replaces_the_whole_config(registry: Registry) -> None:
    take(registry, write_definition(Definition(make_config("c", description="old", metadata={"a": "b"}), NOW - 5)))
    decision = create(registry, filter_subject="t.x")
    found = read_only(decision)
    assert (found.config.filters, found.config.description, found.config.metadata) == (("t.x",), "", {})
    assert (found.created, decision.advisory) == (NOW - 5, None)


@pytest.mark.parametrize(
    ("action", "fields", "code"),
    [
        ("create", {"description": "x"}, (400, 10148, "consumer already exists")),
        ("update", {"durable_name": "new"}, (400, 10149, "consumer does not exist")),
        ("update", {"deliver_policy": "new"}, (500, 10012, "deliver policy can not be updated")),
        ("", {"filter_subjects": ["t.*", "t.a"]}, (400, 10138, "consumer subject filters cannot overlap")),
        ("", {"filter_subject": "x.y"}, (400, 10093, "not a valid subset")),
        ("", {"durable_name": "a.b"}, (500, 10052, "consumer durable name can not contain")),
        ("", {"zork": 1}, (400, 10025, "invalid JSON: zork: is not a known field")),
        ("", {"ack_policy": "zork"}, (400, 10025, 'invalid JSON: ack_policy: found "zork"')),
        ("zork", {}, (400, 10025, "invalid JSON: action: found 'zork'")),
        ("", {"deliver_subject": "source"}, (400, 10081, "consumer deliver subject forms a cycle")),
        ("", {"deliver_subject": "overlay.x"}, (500, 10012, "begins like the overlay's own topics")),
        ("", {"filter": {"sql": "a >"}}, (500, 10012, "filter.sql")),
        ("create", {"durable_name": "file", "description": "x"}, (400, 10148, "consumer already exists")),
        ("", {"durable_name": "file", "description": "x"}, (500, 10012, "consumer has a file")),
    ],
)
def test_refused(registry: Registry, action: str, fields: dict[str, Any], code: tuple[int, int, str]) -> None:
    decision = create(registry, action, **fields)
    found = read_error(decision)
    assert found[:2] == code[:2] and code[2] in found[2]
    assert decision.records == () and decision.advisory is None


def test_what_is_left_of_a_file_can_be_taken_up() -> None:
    """Its state is there, so the update rules hold; but there is no consumer to update."""
    registry = Registry(make_files())
    take(registry, write_definition(Definition(make_config("c"), NOW - 5, Origin.FILE)))
    assert read_error(create(registry, "update"))[1] == 10149
    assert read_error(create(registry, deliver_policy="new"))[1] == 10012
    found = read_only(create(registry, "create"))
    assert (found.origin, found.created) == (Origin.REQUEST, NOW - 5)


def test_a_read_output_cannot_be_changed(registry: Registry) -> None:
    worker = Worker(infos={("S", "c"): INFO})
    assert read_error(create(registry, worker=worker, deliver_subject="other"))[1] == 10013
    assert read_only(create(registry, deliver_subject="other")).config.deliver_subject == "other"


def test_the_name_of_the_request_and_of_its_config(registry: Registry) -> None:
    decision = ask(registry, "consumer.create", stream="S", consumer="d", config=CONFIG)
    assert read_error(decision)[:2] == (400, 10017)


def test_unknown_streams_and_consumers(registry: Registry) -> None:
    for op in ("info", "delete", "pause", "resume", "next"):
        assert read_error(ask(registry, f"consumer.{op}", stream="S", consumer="x"))[:2] == (404, 10014)
    for op in ("consumer.info", "stream.info", "consumer.create", "consumer.list"):
        assert read_error(ask(registry, op, stream="T", consumer="c", config=CONFIG))[:2] == (404, 10059)


def test_deletion_is_marked_first_and_answered_later(registry: Registry) -> None:
    decision = ask(registry, "consumer.delete", stream="S", consumer="c")
    assert read_only(decision).is_deleted
    take(registry, *decision.records)
    # asked once more meanwhile: nothing to write, and the answer comes with the first
    assert ask(registry, "consumer.delete", stream="S", consumer="c") == Decision()
    assert read_error(create(registry))[:2] == (500, 10012)
    assert read_error(ask(registry, "consumer.delete", stream="S", consumer="file"))[1:] == (
        10012,
        "consumer has a file",
    )


@pytest.mark.parametrize("name", ["c", "file"])
def test_pause_and_resume(registry: Registry, name: str) -> None:
    decision = ask(registry, "consumer.pause", stream="S", consumer=name, pause_until="2030-01-01T00:00:00Z")
    assert decision.response is not None and decision.response["paused"] is True
    take(registry, *decision.records)
    assert registry.effective().consumers["S", name].pause_until == 1893456000 * 10**9
    # asked twice, written once
    assert ask(registry, "consumer.pause", stream="S", consumer=name, pause_until="2030-01-01T00:00:00Z").records == ()
    decision = ask(registry, "consumer.resume", stream="S", consumer=name)
    assert decision.response is not None and decision.response["paused"] is False
    take(registry, *decision.records)
    assert registry.effective().consumers["S", name].pause_until is None
    over = ask(registry, "consumer.pause", stream="S", consumer=name, pause_until="2020-01-01T00:00:00Z")
    assert over.response is not None and over.response["paused"] is False


def test_an_update_keeps_the_pause(registry: Registry) -> None:
    take(
        registry, *ask(registry, "consumer.pause", stream="S", consumer="c", pause_until="2030-01-01T00:00:00Z").records
    )
    take(registry, *create(registry, description="x").records)
    found = registry.effective().consumers["S", "c"]
    assert (found.description, found.pause_until is None) == ("x", False)


def test_info(registry: Registry) -> None:
    worker = Worker(reports={("S", "c"): {"consumer_sequence": 8, "positions": {"s-0": 20}, "state": "running"}})
    plain = ask(registry, "consumer.info", worker, stream="S", consumer="c").response
    assert plain is not None
    assert plain["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
    assert plain["delivered"] == plain["ack_floor"] == {"consumer_seq": 8, "stream_seq": 20}
    assert plain["overlay"] == {"origin": "request", "state": "running", "positions": {"s-0": 20}}
    assert "num_pending" not in plain and "push_bound" not in plain

    worker.infos["S", "c"] = INFO
    starting = ask(registry, "consumer.info", worker, stream="S", consumer="c").response
    assert starting is not None and "num_pending" not in starting
    pending = {"num_pending": 12, "num_pending_is": "at least"}
    worker.reports["S", "c"] = {**worker.reports["S", "c"], **pending}
    found = ask(registry, "consumer.info", worker, stream="S", consumer="c").response
    assert found is not None
    assert found["delivered"] == {"consumer_seq": 9, "stream_seq": 7, "last_active": found["ts"]}
    assert found["ack_floor"] == {"consumer_seq": 3, "stream_seq": 2}
    names = (
        "num_ack_pending",
        "num_redelivered",
        "num_waiting",
        "num_pending",
        "push_bound",
        "paused",
        "pause_remaining",
    )
    assert [found[name] for name in names] == [4, 1, 0, 12, True, True, 5]
    assert found["overlay"] == {
        "origin": "request",
        "state": "running",
        "positions": {"s-0": 20},
        "num_pending_is": "at least",
        "gate": "max_ack_pending",
        "num_delayed": 2,
    }


def test_lists(registry: Registry) -> None:
    found = ask(registry, "consumer.list", stream="S").response
    assert found is not None and isinstance(found["consumers"], list)
    assert [(info["name"], info["overlay"]["origin"]) for info in found["consumers"]] == [
        ("c", "request"),
        ("file", "file"),
    ]
    assert (found["total"], found["offset"]) == (2, 0)
    rest = ask(registry, "consumer.list", offset=1).response
    assert rest is not None and [info["name"] for info in rest["consumers"]] == ["file"]  # type: ignore[attr-defined]
    assert read_error(ask(registry, "consumer.list", offset="x"))[1] == 10025
    streams = ask(registry, "stream.list").response
    assert streams is not None and streams["total"] == 1
    info = ask(registry, "stream.info", stream="S").response
    assert info is not None and info["config"] == {"name": "S", "topics": ["source"], "subjects": ["t.>"]}


def test_a_list_says_for_which_shards_its_worker_knows_more(registry: Registry) -> None:
    worker = Worker(owned=frozenset({0, 2}), count=3)
    found = ask(registry, "consumer.list", worker).response
    assert found is not None and found["overlay"] == {"shards": [0, 2], "shard_count": 3}


def test_a_list_of_one_shard(registry: Registry) -> None:
    shards = {name: shard_of(("S", name), 3) for name in ("c", "file")}
    for shard in range(3):
        request = make_request("consumer.list", shard=shard)
        assert request.about == ("", str(shard))
        found = decide(registry, Worker(count=3), request, NOW).response
        assert found is not None and isinstance(found["consumers"], list)
        names = [name for name in sorted(shards) if shards[name] == shard]
        assert [info["name"] for info in found["consumers"]] == names and found["total"] == len(names)
    assert "shard: found 3, there are 3" in read_error(ask(registry, "consumer.list", Worker(count=3), shard=3))[2]
    for wrong in (-1, True, "1", None, 10**9):
        assert "wants the number of a shard" in read_error(ask(registry, "consumer.list", shard=wrong))[2]


def test_pulls(registry: Registry) -> None:
    take(registry, write_definition(Definition(make_config("pull", deliver_subject="", ack_policy="explicit"), NOW)))
    worker = Worker(takes_pulls=True)
    words = {"stream": "S", "consumer": "pull"}
    decision = ask(registry, "consumer.next", worker, batch=5, expires="2s", no_wait=True, **words)
    assert decision == Decision(is_settled=True)
    ask(registry, "consumer.next", worker, expires="soon", **words)
    (first, second) = worker.pulled
    assert first == (("S", "pull"), PullRequest(5, 2 * 10**9, True), "inbox//r")
    assert isinstance(second[1], StatusText) and second[1].code == 400
    # no owner yet: it waits in the topic
    assert ask(registry, "consumer.next", Worker(), **words) == Decision()
    assert read_error(ask(registry, "consumer.next", worker, stream="S", consumer="c")) == (
        500,
        10012,
        "consumer is push based",
    )


def ask_about_worker(registry: Registry, op: str, **body: Any) -> Decision:
    return decide(registry, Worker(), make_request(op, **body), NOW)


def test_a_worker_is_drained_and_no_more(registry: Registry) -> None:
    decision = ask_about_worker(registry, "worker.drain", worker="east-1:8222", boot="b1")
    assert decision.records == (write_drain("east-1:8222", "b1"),)
    assert decision.response is not None and decision.response["drained"] is True
    take(registry, *decision.records)
    assert ask_about_worker(registry, "worker.drain", worker="east-1:8222", boot="b1").records == (), (
        "it is written down already"
    )
    assert ask_about_worker(registry, "worker.drain", worker="east-1:8222", boot="b2").records, (
        "another start of the process"
    )
    undone = ask_about_worker(registry, "worker.undrain", worker="east-1:8222")
    assert [(record.key, record.value) for record in undone.records] == [(b"worker east-1:8222", None)]
    assert undone.response is not None and undone.response["drained"] is False
    take(registry, *undone.records)
    assert ask_about_worker(registry, "worker.undrain", worker="east-1:8222").records == ()


@pytest.mark.parametrize(
    "body",
    [{}, {"worker": "a"}, {"worker": "a b", "boot": "b"}, {"worker": 3, "boot": "b"}, {"worker": "a", "boot": ""}],
)
def test_workers_that_cannot_be_named(registry: Registry, body: dict[str, object]) -> None:
    decision = ask_about_worker(registry, "worker.drain", **body)
    assert read_error(decision)[:2] == (400, 10025) and decision.records == ()


def test_nonsense(registry: Registry) -> None:
    assert read_error(ask(registry, "zork"))[:2] == (400, 10025)


def test_a_new_consumer_takes_down_where_the_logs_end_if_its_start_depends_on_it() -> None:
    ends = LogEnds({"source": ("id", (7,))})
    for policy, expected in (("new", ends), ("all", None)):
        request = make_request("consumer.create", stream="S", config={**CONFIG, "deliver_policy": policy})
        assert read_only(decide(Registry(make_files()), Worker(), request, NOW, ends)).ends == expected
