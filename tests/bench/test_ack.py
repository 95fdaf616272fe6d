"""The bench of acks on very little data: every side takes and acks all of it."""

from __future__ import annotations

import io

import pytest

from bench import ack
from bench.dataset import load
from bench.messages import SIZE, list_values
from bench.progress import Progress
from bench.settings import Settings


def test_messages_have_their_size_and_differ() -> None:
    values = list(list_values(3_000))
    assert {len(value) for value in values} == {SIZE}
    assert len(set(values)) == 3_000
    assert values == list(list_values(3_000))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_side_acks_everything(bootstrap: str) -> None:
    settings = Settings(scale=0.02, rounds=1)
    found = {case.name: case for case in ack.measure(load(bootstrap, 0.01), settings, Progress(io.StringIO()))}
    assert set(found) == {"explicit/200B", "redelivery", "pending-memory"}
    explicit = found["explicit/200B"]
    assert (set(explicit.peers), explicit.skipped) == ({"nats", "share", "share-implicit"}, {})
    assert set(explicit.judge()) == {"nats", "share"}
    assert found["pending-memory"].judge() == {"overlay": True}
