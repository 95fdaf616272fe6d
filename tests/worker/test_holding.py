"""Which changes a running machine takes over, and which shard has what. The rest is tested with Kafka in tests/control."""

from __future__ import annotations

from typing import Any

import pytest

from overlay.config import ConsumerConfig
from overlay.worker.holding import LIGHT, is_light, shard_of
from tests.control.books import make_config

ACKED = {"ack_policy": "explicit", "interest": "always"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ack_wait": "5s"}, True),
        ({"max_deliver": 3, "backoff": ("1s", "2s")}, True),
        ({"description": "x", "metadata": {"a": "b"}}, True),
        ({"pause_until": "2030-01-01T00:00:00Z"}, True),
        ({"filter_subject": "t.a"}, False),
        ({"filter": {"sql": "x > 1"}}, False),
        ({"deliver_subject": "other"}, False),
        ({"ack_wait": "5s", "dead_letter": "dead"}, False),
        ({"on_undeliverable": "dead_letter", "dead_letter": "dead"}, False),
    ],
)
def test_changes_of_a_machine(change: dict[str, Any], expected: bool) -> None:
    assert is_light(make_config(**ACKED), make_config(**ACKED | change)) is expected


def test_who_gets_a_machine_by_a_change_begins_anew() -> None:
    plain = make_config()
    assert not is_light(plain, make_config(pause_until="2030-01-01T00:00:00Z"))
    assert is_light(plain, make_config(description="x"))


def test_light_fields_are_fields() -> None:
    assert set(ConsumerConfig.model_fields) > LIGHT


def test_shards_share_what_there_is() -> None:
    found = {shard_of(("S", f"c{number}"), 4) for number in range(100)}
    assert found == {0, 1, 2, 3}
    assert shard_of(("S", "c"), 1) == 0
