"""Answers to requests, without Kafka: what fails is answered as well, and what is not served holds up no other answer."""

from __future__ import annotations

import asyncio

import pytest

from overlay.control import answering
from overlay.control.decide import Body, Host
from overlay.control.registry import Registry
from overlay.control.serve import RequestServer
from overlay.errors import SourceUnavailable
from overlay.waits import until
from tests.control.registries import take
from tests.control.request_servers import Log, Owner, ask_for, list_answers, read_back, take_turns
from tests.control.request_servers import host as host
from tests.control.request_servers import log as log
from tests.control.request_servers import request_server as request_server


async def test_creates_are_decided_and_answered_together(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"made-{number:02}" for number in range(75)]
    registry = request_server.registry
    ask_for(registry, names)
    await request_server._turn()
    assert log.commits == 1
    monkeypatch.setattr(answering, "describe", lambda registry, host, id, now: {"name": id[1]})
    host.reports |= {("S", name): {"state": "running"} for name in names}
    take(registry, *log.own)
    assert [id[1] for id in registry.definitions] == names
    await asyncio.gather(*request_server._answering.tasks.values())
    assert log.commits == 2
    assert {name: answer["name"] for name, answer in list_answers(log).items()} == {name: name for name in names}
    assert sorted(log.settled) == [f"request {name}" for name in names]
    await asyncio.sleep(0)
    assert not request_server._answering.tasks


async def test_a_state_that_cannot_be_dropped_delays_no_answer(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else of the change is in effect then (`Host.take_up`)."""
    monkeypatch.setattr(answering, "SERVED_S", 3_600.0)
    monkeypatch.setattr(answering, "describe", lambda registry, host, id, now: {"name": id[1]})
    read_back(monkeypatch, log)
    ask_for(request_server.registry, ["made"])
    await request_server._turn()
    host.reports["S", "made"] = {"state": "running"}
    host.fault = SourceUnavailable("the state cannot be read")
    with pytest.raises(SourceUnavailable):
        await request_server._turn()
    async with asyncio.timeout(20):
        await asyncio.gather(*request_server._answering.tasks.values())
    assert list_answers(log)["made"]["name"] == "made"


async def test_an_answer_that_cannot_be_described_takes_no_other_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(registry: Registry, host: Host, id: tuple[str, str], now: int) -> Body:
        if id[1] == "b":
            raise OverflowError("too much")
        return {"name": id[1]}

    ask_for(request_server.registry, ["a", "b", "c"])
    await request_server._turn()
    take(request_server.registry, *log.own)
    monkeypatch.setattr(answering, "describe", tell)
    monkeypatch.setattr(answering, "SERVED_S", 0.01)
    await take_turns(request_server, log)
    answers = list_answers(log)
    assert {name: "error" in answer for name, answer in answers.items()} == {"a": False, "b": True, "c": False}


async def test_a_consumer_that_is_not_served_holds_up_no_other_answer(
    request_server: RequestServer, host: Owner, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of its stream's partition may be away, for example."""
    monkeypatch.setattr(answering, "SERVED_S", 600.0)
    names = ["a", "b", "c"]
    registry = request_server.registry
    ask_for(registry, names)
    await request_server._turn()
    take(registry, *log.own)
    monkeypatch.setattr(answering, "describe", lambda registry, host, id, now: {"name": id[1]})
    host.reports |= {("S", name): {"state": "running"} for name in ("b", "c")}
    async with asyncio.timeout(60):
        await until(lambda: list_answers(log).keys() == {"b", "c"}, pause_s=0.01)
    host.reports["S", "a"] = {"state": "running"}
    await asyncio.gather(*request_server._answering.tasks.values())
    assert sorted(log.settled) == [f"request {name}" for name in names]
