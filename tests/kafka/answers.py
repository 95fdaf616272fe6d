"""Fetch answers made worse than the broker gave them: errors that a real cluster gives for a moment, at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from overlay.kafka.fetcher import Feed, Lane

Refuse = Callable[[str, int], int]
"""Told topic and partition; the error code of Kafka's protocol to answer with, 0 to leave the answer as it is."""


def refuse_fetches(monkeypatch: pytest.MonkeyPatch, refuse: Refuse) -> None:
    """Have every feed see an error in place of a partition's part of an answer, as `refuse` says."""
    accept = Feed._accept

    def accept_worse(feed: Feed, lane: Lane, position: int, row: tuple[Any, ...]) -> bool:
        if code := refuse(lane.topic, lane.partition):
            row = (row[0], code, -1, -1, -1, None, *row[6:-1], b"")
        return accept(feed, lane, position, row)

    monkeypatch.setattr(Feed, "_accept", accept_worse)
