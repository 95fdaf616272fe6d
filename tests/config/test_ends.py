"""From which offset on records are newer than a consumer."""

from __future__ import annotations

import pytest

from overlay.config import LogEnds

ENDS = LogEnds({"orders": ("id", (5, 7))})


@pytest.mark.parametrize(
    ("topic", "partition", "identity", "expected"),
    [
        ("orders", 0, "id", 5),
        ("orders", 1, "id", 7),
        ("orders", 2, "id", 0),  # was added later
        ("orders", 1, "other", 0),  # was created again
        ("later", 0, "id", 0),
    ],
)
def test_newer_records(topic: str, partition: int, identity: str, expected: int) -> None:
    assert ENDS.find(topic, partition, identity) == expected
