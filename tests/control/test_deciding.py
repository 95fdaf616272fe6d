"""Deciding requests, without Kafka: one that goes wrong is answered and settled, and holds up none behind it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from overlay.clock import now_ns
from overlay.control import answering
from overlay.control.decide import Body, Decision
from overlay.control.requests import Request, respond
from overlay.control.serve import RequestServer
from overlay.output.record import Record
from tests.control.registries import PREFIX
from tests.control.request_servers import ONE, TWO, Log, ask_for, decide_by, list_answers, take_turns
from tests.control.request_servers import log as log
from tests.control.request_servers import request_server as request_server


@pytest.mark.parametrize("at", ["decide", "describe"])
async def test_a_request_that_cannot_be_handled_is_answered(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Also where its answer comes later."""

    def fail(*_: object) -> Body:
        raise OverflowError("too much")

    def decide(request: Request) -> Decision:
        if request.id == "one":
            return Decision(fail()) if at == "decide" else Decision()
        return Decision(respond(request, {"total": 0}))

    decide_by(monkeypatch, decide)
    monkeypatch.setattr(answering, "describe", fail)
    monkeypatch.setattr(answering, "SERVED_S", 0.01)
    await take_turns(request_server, log)
    assert sorted(log.settled) == ["request one", "request two"]
    error: Body = log.answers[ONE]["error"]
    assert (error["err_code"], error["description"]) == (10012, "internal error")
    assert log.answers[TWO]["total"] == 0


async def test_a_definition_that_the_topic_does_not_take_is_refused(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(request: Request) -> Decision:
        large = Record(b"consumer S c", b"{}" if request.id == "two" else bytes(2_000))
        return Decision(respond(request, {"total": 0}), (large,))

    decide_by(monkeypatch, decide)
    log.largest = 1_000
    await take_turns(request_server, log)
    assert "error" in log.answers[ONE]
    assert log.answers[TWO]["total"] == 0


async def test_the_last_free_places_are_given_out_one_by_one(request_server: RequestServer) -> None:
    """Decided together, all would see the same free places."""
    registry, names = request_server.registry, ["a", "b", "c"]
    limits = registry.files.service.requests.model_copy(update={"consumers": 2})
    registry.reload(replace(registry.files, service=registry.files.service.model_copy(update={"requests": limits})))
    registry.requests.clear()
    ask_for(registry, names)

    def list_groups() -> list[list[str]]:
        return [[request.id for request in requests] for _, requests in request_server._decider._group_requests()]

    assert list_groups() == [[name] for name in names]
    # what takes no place does not count
    registry.requests.pop("c")
    registry.take(b"request info", b'{"op":"consumer.info","stream":"S","consumer":"a"}', dict[str, bytes]().get, 1)
    assert list_groups() == [["a", "b"], ["info"]]


async def test_a_create_that_fails_takes_no_other_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are decided anew, one by one, and before those behind them."""
    names = ["a", "b", "c"]
    ask_for(request_server.registry, names)
    later = json.dumps({"op": "consumer.delete", "stream": "S", "consumer": "a"}).encode()
    request_server.registry.take(b"request later", later, dict[str, bytes]().get, now_ns() // 10**6)

    def decide(request: Request) -> Decision:
        large = Record(b"consumer S x", bytes(2_000) if request.id == "b" else b"{}")
        return Decision(respond(request, {"name": request.id}), (large,))

    decide_by(monkeypatch, decide)
    log.largest = 1_000
    await take_turns(request_server, log)
    assert log.settled == [f"request {name}" for name in [*names, "later"]]
    answers = list_answers(log)
    assert {name for name, answer in answers.items() if "error" in answer} == {"b"}
    assert (answers["a"]["name"], answers["c"]["name"]) == ("a", "c")
    await request_server._turn()
    assert not request_server._decider._alone


@pytest.mark.parametrize("at", ["decide", "answer"])
async def test_a_large_audit_takes_no_audit_of_another_request_along(
    request_server: RequestServer, log: Log, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Of requests that are decided together, refused at once or answered once the consumers are served."""
    names = ["a", "b", "c"]
    ask_for(request_server.registry, names)
    large = replace(request_server.registry.requests["b"], text="x" * 5_000)
    request_server.registry.requests["b"] = large

    def decide(request: Request) -> Decision:
        return Decision(respond(request, {"name": request.id}) if at == "decide" else None)

    decide_by(monkeypatch, decide)
    monkeypatch.setattr(answering, "SERVED_S", 0.01)
    log.largest_event = 4_000
    await take_turns(request_server, log)
    assert sorted(log.settled) == [f"request {name}" for name in names]
    assert list_answers(log).keys() == set(names)
    audits = [entry.record.value or b"" for entry in log.entries if entry.topic == f"{PREFIX}.events"]
    assert [name for name in names if any(f"out-{name}" in audit.decode() for audit in audits)] == ["a", "c"]


async def test_an_output_that_a_stream_reads_is_decided_alone(request_server: RequestServer, log: Log) -> None:
    ask_for(request_server.registry, ["a", "b"], deliver_subject="source")
    await take_turns(request_server, log)
    assert {answer["error"]["err_code"] for answer in list_answers(log).values()} == {10081}
    assert log.commits == 2
