"""The relay of open requests, when Kafka cannot be reached."""

from __future__ import annotations

from typing import Any, cast

import pytest

from overlay.control.relay import Relay
from overlay.dispatch.reply_address import ReplyRule
from overlay.errors import SourceUnavailable


async def test_a_relay_rests_after_an_error_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    async def refuse(kafka: object) -> None:
        nonlocal tried
        tried += 1
        raise SourceUnavailable("no broker")

    monkeypatch.setattr("overlay.control.relay.open_client", refuse)
    rule = ReplyRule("overlay")
    relay = Relay({}, cast("Any", None), rule, lambda: None, lambda misfit, count: None)
    for _ in range(3):
        taken = await relay.take({})
        assert not taken.copies and not taken.answers
    assert tried == 1 and not relay.is_due
