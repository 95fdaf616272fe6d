"""Fetch answers made worse than the broker gave them: errors that a real cluster gives for a moment, at will."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from overlay.kafka.fetcher import Fetcher
from overlay.kafka.partition_fetch import PartitionFetch

Refuse = Callable[[str, int], int]
"""Told topic and partition; the error code of Kafka's protocol to answer with, 0 to leave the answer as it is."""


def refuse_fetches(monkeypatch: pytest.MonkeyPatch, refuse: Refuse) -> None:
    """Have every fetcher see an error in place of a partition's part of an answer, as `refuse` says."""
    accept = Fetcher._accept

    def accept_worse(fetcher: Fetcher, partition_fetch: PartitionFetch, position: int, row: tuple[Any, ...]) -> bool:
        if code := refuse(partition_fetch.topic, partition_fetch.partition):
            row = (row[0], code, -1, -1, -1, None, *row[6:-1], b"")
        return accept(fetcher, partition_fetch, position, row)

    monkeypatch.setattr(Fetcher, "_accept", accept_worse)
