"""overlay/client/control/control.py without Kafka; with a service it is tested in tests/control/test_serve.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.client.control.ack_tokens import BadAckToken, find_token
from overlay.client.control.consumer_info import FiltersDiffer, Position, check_filters, read_info
from overlay.client.control.control import Control, write_time
from overlay.control.decide import decide, describe
from overlay.control.records import Definition, write_definition
from overlay.control.registry import Registry
from overlay.kafka.own_topics import shard_of
from tests.control.registries import NOW, Worker, make_config, make_files, make_request, take


def make_answer(**report: Any) -> dict[str, Any]:
    book = Registry(make_files())
    take(book, write_definition(Definition(make_config(filter_subject="t.a"), NOW)))
    return describe(book, Worker({("S", "c"): report}), ("S", "c"), NOW)


def test_an_info_is_what_the_service_says() -> None:
    info = read_info(make_answer(consumer_sequence=4, positions={"s-0": 9}, state="running", reason=""))
    assert (info.stream, info.name, info.config) == ("S", "c", make_config(filter_subject="t.a"))
    assert (info.delivered, info.ack_floor) == (Position(4, 9), Position(4, 9))
    assert (info.state, info.push_bound, info.paused, info.num_pending) == ("running", False, False, None)
    assert info.raw["overlay"]["positions"] == {"s-0": 9}


@pytest.mark.parametrize(
    "wanted",
    [{"filter_subject": "t.a"}, {"filter_subjects": ["t.a"]}, {"filter_subject": "t.a", "filter": {"sql": None}}],
)
def test_the_same_filters(wanted: dict[str, Any]) -> None:
    check_filters(wanted, make_config(filter_subject="t.a"))


@pytest.mark.parametrize(
    "wanted", [{}, {"filter_subjects": ["t.a", "t.b"]}, {"filter_subject": "t.a", "filter": {"sql": "x > 1"}}]
)
def test_other_filters(wanted: dict[str, Any]) -> None:
    with pytest.raises(FiltersDiffer, match="S/c came back with other filter"):
        check_filters(wanted, make_config(filter_subject="t.a"))


@dataclass
class Service:
    """An inbox that workers answer, each with its shards. The first answers what is asked of none of them; some are silent."""

    registry: Registry
    workers: list[Worker]
    silent: frozenset[int] = frozenset()

    def ask(self, topic: str, key: bytes, value: bytes, *_: Any, **__: Any) -> Iterator[Any]:
        yield self._answer(self.workers[0], value)

    def ask_all(self, topic: str, questions: Mapping[str, tuple[bytes, bytes]], *_: Any) -> Iterator[tuple[str, Any]]:
        for id, (_key, value) in questions.items():
            shard = json.loads(value)["shard"]
            worker = next(each for each in self.workers if shard in each.owned)
            if shard not in self.silent:
                yield id, self._answer(worker, value)

    def _answer(self, worker: Worker, value: bytes) -> Any:
        body = json.loads(value)
        answer = decide(self.registry, worker, make_request(**body), NOW).response
        return SimpleNamespace(value=lambda: json.dumps(answer).encode())


def make_service(count: int, shards: int) -> tuple[Service, dict[str, int]]:
    """A service with so many consumers, of which each worker has one shard, and their shards by name."""
    names = {f"c{number:03}": shard_of(("S", f"c{number:03}"), shards) for number in range(count)}
    workers = [
        Worker(
            {
                ("S", name): {"state": "running" if at == shard else "elsewhere", "consumer_sequence": at + 1}
                for name, at in names.items()
            },
            owned=frozenset({shard}),
            count=shards,
        )
        for shard in range(shards)
    ]
    return Service(Registry(make_files(*map(make_config, names))), workers), names


def open_control(service: Service) -> Control:
    control = Control({"bootstrap.servers": "nowhere:1"}, timeout=1)
    control._inbox = service  # type: ignore[assignment]
    return control


def test_each_worker_tells_of_its_consumers() -> None:
    service, names = make_service(800, 3)
    found = open_control(service).consumers()
    assert [info.name for info in found] == sorted(names)
    assert {info.state for info in found} == {"running"}
    assert all(info.delivered.consumer_seq == names[info.name] + 1 for info in found)


def test_names_are_asked_of_one_worker_alone() -> None:
    service, names = make_service(800, 3)
    service.silent = frozenset(range(3))
    assert open_control(service).list_names() == [("S", name) for name in sorted(names)]


def test_a_worker_that_does_not_answer_is_named_by_its_shard() -> None:
    service, names = make_service(20, 3)
    service.silent = frozenset({2})
    for info in open_control(service).consumers("S"):
        if names[info.name] == 2:
            assert (info.state, info.reason) == ("elsewhere", "the worker of shard 2 did not answer within 1 s")
        else:
            assert (info.state, info.reason) == ("running", "")


def test_shards_without_all_of_their_pages_are_left_out() -> None:
    service, names = make_service(800, 2)
    counts = Counter(names.values())
    assert min(counts.values()) > 256
    found = open_control(service).list_shards("S", counts, 1)
    assert {shard: len(infos) for shard, infos in found.items()} == counts
    answer = service.ask_all

    def lose_last(*given: Any) -> Iterator[tuple[str, Any]]:
        yield from list(answer(*given))[:-1]

    service.ask_all = lose_last  # type: ignore[assignment, method-assign]
    assert open_control(service).list_shards("S", counts, 1).keys() == {next(iter(counts))}


def test_tokens() -> None:
    assert find_token("$JS.ACK.S.c.1.2.3.4.5").stream_seq == 2
    for text in ("", "$JS.ACK.S.c", "x"):
        with pytest.raises(BadAckToken, match="Tokens look like"):
            find_token(text)


def test_times() -> None:
    assert write_time("2026-01-31T12:00:00Z") == "2026-01-31T12:00:00Z"
    east = timezone(timedelta(hours=2))
    assert write_time(datetime(2026, 1, 31, 14, tzinfo=east)) == "2026-01-31T12:00:00Z"
    soon = datetime.fromisoformat(write_time(timedelta(minutes=5)))
    assert timedelta(minutes=4) < soon - datetime.now(UTC) <= timedelta(minutes=5)
