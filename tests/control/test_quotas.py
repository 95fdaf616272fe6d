"""Limits for consumers that are made by request, and for requests; and which temporary topics are the overlay's to delete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overlay.control.changes import find_temporary
from overlay.control.creation import is_missing
from overlay.control.decide import Decision, decide, delete
from overlay.control.records import Definition, Origin, read_definition, write_definition
from overlay.control.registry import PENDING_BYTES, Registry
from overlay.control.requests import MOST_NAME
from overlay.errors import SourceUnavailable
from tests.control.registries import NOW, Worker, make_config, make_files, make_request, read_error, take

TEMPORARY = {"temporary": True}


def create(registry: Registry, name: str, *, lacks_output: bool = False, **fields: Any) -> Decision:
    config = {"durable_name": name, "deliver_subject": f"out-{name}", "ack_policy": "none", **fields}
    stream = fields.pop("stream", "S")
    request = make_request("consumer.create", name, stream=stream, config=config)
    return decide(registry, Worker(), request, NOW, lacks_output=lacks_output)


def add(registry: Registry, name: str, **fields: Any) -> Definition:
    """Carry a request out that is granted, and return the definition that it has led to."""
    decision = create(registry, name, **fields)
    assert decision.response is None, decision.response
    take(registry, *decision.records)
    return next(each for each in registry.definitions.values() if each.id[1] == name)


def read_hint(decision: Decision) -> str:
    assert decision.response is not None
    error = decision.response["error"]
    assert isinstance(error, dict)
    return str(error["hint"])


def test_consumers_by_request_have_a_limit_and_files_have_none() -> None:
    registry = Registry(make_files(make_config("f"), make_config("g"), make_config("h"), consumers=2))
    take(registry, write_definition(Definition(make_config("f"), NOW, Origin.FILE)))
    for name in ("a", "b"):
        add(registry, name)
    refused = create(registry, "c")
    assert read_error(refused) == (400, 10026, "maximum consumers limit reached")
    assert (
        read_hint(refused)
        == "there are 2 by request. Delete some, write a file, or raise requests.consumers in overlay.yaml"
    )
    # what is there may be asked for again, and changed
    assert create(registry, "a") == Decision()
    assert add(registry, "a", description="new").config.description == "new"
    # one that is being deleted does not count
    take(registry, delete(registry.definitions["S", "b"]))
    add(registry, "c")


def test_streams_have_a_limit_of_their_own() -> None:
    registry = Registry(make_files(make_config("f", stream="T"), consumers_per_stream=1))
    add(registry, "a")
    refused = create(registry, "b")
    assert read_error(refused)[1] == 10026
    assert "requests.consumers_per_stream" in read_hint(refused)
    add(registry, "b", stream="T")


def test_no_consumers_by_request_at_all() -> None:
    assert read_error(create(Registry(make_files(consumers=0)), "a"))[1] == 10026


def test_what_is_left_of_a_file_counts_when_a_request_takes_it_up() -> None:
    registry = Registry(make_files(consumers=1))
    take(registry, write_definition(Definition(make_config("left"), NOW, Origin.FILE)))
    add(registry, "a")
    assert read_error(create(registry, "left"))[1] == 10026


def test_partitions_of_outputs_have_a_limit() -> None:
    registry = Registry(make_files(output_partitions=4))
    add(registry, "a", output={"partitions": 4})
    refused = create(registry, "b", output={"partitions": 5})
    assert read_error(refused) == (500, 10012, "output.partitions is 5, over the limit of 4")
    assert "raise requests.output_partitions" in read_hint(refused)
    assert read_error(create(registry, "a", output={"partitions": 5}))[1] == 10012
    # one from before the limit goes on, and may be changed
    take(registry, write_definition(Definition(make_config("old", output={"partitions": 9}), NOW)))
    add(registry, "old", description="new", output={"partitions": 9})


def test_pull_requests_that_wait_have_a_limit() -> None:
    registry = Registry(make_files(max_waiting=600))
    pull: dict[str, Any] = {"deliver_subject": "", "ack_policy": "explicit"}
    add(registry, "a", **pull)
    add(registry, "b", max_waiting=600, **pull)
    refused = create(registry, "c", max_waiting=601, **pull)
    assert read_error(refused) == (500, 10012, "max_waiting is 601, over the limit of 600")
    assert "raise requests.max_waiting" in read_hint(refused)


def test_requests_that_wait_have_a_limit() -> None:
    """Of each beyond it only what a refusal needs is kept; an answer makes room."""
    registry = Registry(make_files(pending=2))

    def put(id: str, value: bytes | None) -> None:
        registry.take(f"request {id}".encode(), value, dict[str, bytes]().get, NOW // 10**6)

    wanted = b'{"op":"consumer.info","stream":"S","consumer":"%s"}' % (b"c" * 100_000)
    for id in ("one", "two", "three"):
        put(id, wanted)
    kept = registry.requests
    assert [len(each.text) == len(wanted) for each in kept.values()] == [True, True, False]
    assert (kept["three"].body, len(kept["three"].consumer), kept["three"].is_excess) == ({}, MOST_NAME, True)
    refused = decide(registry, Worker(), kept["three"], NOW)
    assert read_error(refused) == (503, 10023, "insufficient resources")
    assert read_hint(refused) == "2 requests wait, or 8 MiB of them. Ask again later, or raise requests.pending"
    put("one", None)
    put("three", None)
    put("four", wanted)
    assert not registry.requests["four"].is_excess


def test_requests_that_wait_have_a_limit_in_bytes() -> None:
    registry = Registry(make_files())
    large = b'{"op":"consumer.info","stream":"S","consumer":"c","x":"%s"}' % (b"c" * (1_000_000))

    def put(id: int, value: bytes | None) -> None:
        registry.take(f"request {id}".encode(), value, dict[str, bytes]().get, NOW // 10**6)

    most = PENDING_BYTES // len(large)
    for _ in range(2):
        for number in range(most + 2):
            put(number, large)
        assert [each.is_excess for each in registry.requests.values()] == [False] * most + [True] * 2
        # the same key again, and tombstones, leave nothing behind
        for number in range(most + 2):
            put(number, None)
    put(1, large)
    registry.clear()
    for number in range(most + 1):
        put(number, large)
    assert sum(each.is_excess for each in registry.requests.values()) == 1


def test_refused_requests_take_no_room() -> None:
    """Otherwise all that come after a flood would be refused, until the last refusal is written."""
    registry = Registry(make_files(pending=2))

    def put(id: int, value: bytes | None) -> None:
        registry.take(b"request %d" % id, value, dict[str, bytes]().get, NOW // 10**6)

    wanted = b'{"op":"consumer.info","stream":"S","consumer":"c"}'
    for id in range(9):
        put(id, wanted)
    found = [registry.is_half_full]
    put(0, None)
    put(9, wanted)
    assert [id for id, each in registry.requests.items() if not each.is_excess] == ["1", "9"]
    put(1, None)
    put(9, None)
    assert [*found, registry.is_half_full] == [True, False]
    put(2, wanted)
    registry.clear()
    put(1, wanted)
    put(2, wanted)
    assert not any(each.is_excess for each in registry.requests.values())


@pytest.mark.parametrize("op", ["consumer.create", "consumer.update", "consumer.info"])
def test_kafka_is_asked_only_for_topics_that_may_be_made(op: str) -> None:
    def find(topic: str, *, temporary: bool = True) -> str:
        config = {"deliver_subject": topic, "output": {"temporary": temporary}}
        return find_temporary(make_request(op, "c", stream="S", config=config), "overlay")

    assert find("out") == ("" if op == "consumer.info" else "out")
    assert find("out", temporary=False) == find("x" * 250) == find("overlay-ordered-0123456789ab") == ""


def test_a_temporary_topic_that_was_there_is_not_the_overlays() -> None:
    registry = Registry(make_files())
    assert not add(registry, "a", output=TEMPORARY).makes_output
    assert add(registry, "b", output=TEMPORARY, lacks_output=True).makes_output
    # it goes on being so, when the config changes
    assert add(registry, "b", output=TEMPORARY, description="new").makes_output
    assert not add(registry, "b", output=TEMPORARY, deliver_subject="other").makes_output
    # a topic that another consumer has had made
    assert add(registry, "c", output=TEMPORARY, deliver_subject="shared", lacks_output=True).makes_output
    assert add(registry, "d", output=TEMPORARY, deliver_subject="shared").makes_output
    assert not add(registry, "e", lacks_output=True).makes_output


def test_an_ordered_client_goes_on_with_its_topic() -> None:
    """Its next consumer comes after the last one is gone."""
    registry = Registry(make_files())
    assert add(registry, "a", output=TEMPORARY, deliver_subject="overlay-ordered-0123456789ab").makes_output
    for topic in ("overlay-ordered-0123456789abc", "overlay-ordered-", "other-ordered-0123456789ab"):
        assert not add(registry, "b", output=TEMPORARY, deliver_subject=topic).makes_output


def test_it_is_written_down_with_the_definition() -> None:
    definition = Definition(make_config("c", output=TEMPORARY), NOW, makes_output=True)
    assert read_definition(("S", "c"), write_definition(definition).value or b"") == definition
    plain = Definition(make_config("c"), NOW)
    assert b"makes_output" not in (write_definition(plain).value or b"")


def test_a_deletion_still_knows_whose_the_topic_is() -> None:
    """The topic goes after the consumer, when the definition that is marked as deleted is the last one."""
    for is_made in (True, False):
        registry = Registry(make_files())
        take(registry, delete(Definition(make_config("c", output=TEMPORARY), NOW, makes_output=is_made)))
        found = registry.definitions["S", "c"]
        assert (found.is_deleted, found.makes_output) == (True, is_made)


def test_a_file_keeps_its_topic_and_not_another() -> None:
    before = make_config("c", output=TEMPORARY)
    for after, is_made in (
        (make_config("c", output=TEMPORARY, description="new"), True),
        (make_config("c", output=TEMPORARY, deliver_subject="other"), False),
    ):
        registry = Registry(make_files(after))
        take(registry, write_definition(Definition(before, NOW, Origin.FILE, makes_output=True)))
        (found,) = registry.find_unwritten(NOW)
        assert (found.config.id, found.makes_output) == (before.id, is_made)


@pytest.mark.parametrize(
    ("topic", "counts_made", "missing"),
    [
        ("none", False, True),
        ("there", False, False),
        ("there", True, False),
        ("made", False, False),
        ("made", True, True),
        ("made anew", True, False),
        ("denied", True, False),
        ("away", True, False),
    ],
)
async def test_what_counts_as_missing(topic: str, counts_made: bool, missing: bool) -> None:
    class Kafka:
        def __init__(self) -> None:
            self.made = {"made": "id-1", "made anew": "id-1"}

        async def find_topics(
            self, names: list[str], *, with_config: bool, denied: dict[str, str]
        ) -> dict[str, object]:
            assert not with_config
            if names == ["away"]:
                raise SourceUnavailable("away")
            if names == ["denied"]:
                denied["denied"] = "may not be described"
            ids = {"there": "id-0", "made": "id-1", "made anew": "id-2"}
            return {name: SimpleNamespace(identity=ids[name]) for name in names if name in ids}

    assert await is_missing(Kafka(), topic, counts_made=counts_made) is missing  # type: ignore[arg-type]
