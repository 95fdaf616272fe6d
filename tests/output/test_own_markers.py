"""Watches for the markers of a producer's own transaction: what they do when a question fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import TopicPartition

from overlay.clock import monotonic
from overlay.output import own_markers
from overlay.output.lost_markers import OpenPartitions
from overlay.output.own_markers import OwnMarkers

PLACE = TopicPartition("out", 0)
DEADLINE_S = 30.0


@pytest.mark.parametrize("error", [KafkaConnectionError("away"), OSError("away"), KeyError("none of ours")])
async def test_a_question_that_fails_is_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka raises other errors as well when a connection is closed while a request waits for it."""
    errors = [error]

    async def find_open(client: object, producer: int, found: OpenPartitions) -> None:
        if errors:
            raise errors.pop()
        found.unknown.clear()

    monkeypatch.setattr(own_markers, "find_open", find_open)
    monkeypatch.setattr(own_markers, "LOOK_S", (0.001, 0.01))
    client: Any = SimpleNamespace(cluster=SimpleNamespace(leader_for_partition=lambda tp: 1))
    markers = OwnMarkers(client, lambda: (7, 0))
    markers.note([PLACE])
    assert await markers.await_told({PLACE}, monotonic() + DEADLINE_S) == {}
    assert not markers.unseen and not errors
    await markers.close()
