"""The relay of open requests, without Kafka."""

from __future__ import annotations

from typing import Any, cast

import pytest

from overlay.control.records import Misfit
from overlay.control.relay import Relay
from overlay.errors import SourceUnavailable
from overlay.kafka.passed_over import PassedOver
from overlay.replies.reply_address import ReplyRule


async def test_a_relay_rests_after_an_error_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    async def refuse(kafka: object) -> None:
        nonlocal tried
        tried += 1
        raise SourceUnavailable("no broker")

    monkeypatch.setattr("overlay.control.relay.open_client", refuse)
    rule = ReplyRule("overlay")
    relay = Relay({}, cast("Any", None), rule, lambda: None, lambda found: None)
    for _ in range(3):
        taken = await relay.take({})
        assert not taken.copies and not taken.answers
    assert tried == 1 and not relay.is_due


def test_requests_that_cannot_be_read_are_reported_by_reason() -> None:
    told: list[PassedOver] = []
    relay = Relay({}, cast("Any", None), ReplyRule("overlay"), lambda: None, told.append)
    relay._passed_over = [(7, "too large", Misfit.SIZE), (8, "no JSON", Misfit.JSON), (9, "too large", Misfit.SIZE)]
    relay._tell_passed_over()
    relay._tell_passed_over()
    assert told == [
        PassedOver("overlay.requests", 0, 7, "size", "too large", 2),
        PassedOver("overlay.requests", 0, 8, "json", "no JSON"),
    ]
