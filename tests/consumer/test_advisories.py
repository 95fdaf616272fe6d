from __future__ import annotations

import json
from typing import Any

import pytest

from overlay.consumer.advisories import encode_advisory
from overlay.consumer.effects import Advise, Advisory, Sample


@pytest.mark.parametrize(
    ("event", "subject", "type", "fields"),
    [
        (
            Advise(Advisory.MAX_DELIVER, 7, 0, 3), "ADVISORY.CONSUMER.MAX_DELIVERIES", "advisory.v1.max_deliver",
            {"stream_seq": 7, "deliveries": 3},
        ),
        (
            Advise(Advisory.NAK, 7, 9, 1), "ADVISORY.CONSUMER.MSG_NAKED", "advisory.v1.nak",
            {"consumer_seq": 9, "stream_seq": 7, "deliveries": 1},
        ),
        (
            Advise(Advisory.TERMINATED, 7, 9, 1, "bad"), "ADVISORY.CONSUMER.MSG_TERMINATED", "advisory.v1.terminated",
            {"consumer_seq": 9, "stream_seq": 7, "deliveries": 1, "reason": "bad"},
        ),
        (
            Advise(Advisory.PAUSE, is_paused=True, until=10**18), "ADVISORY.CONSUMER.PAUSE", "advisory.v1.consumer_pause",
            {"paused": True, "pause_until": "2001-09-09T01:46:40Z"},
        ),
        (Advise(Advisory.DELETED), "ADVISORY.CONSUMER.DELETED", "advisory.v1.consumer_action", {"action": "delete"}),
        (
            Advise(Advisory.PINNED, group="g", pin="P"), "ADVISORY.CONSUMER.PINNED", "advisory.v1.consumer_group_pinned",
            {"group": "g", "pinned_id": "P"},
        ),
        (
            Sample(7, 9, 1, 55), "METRIC.CONSUMER.ACK", "metric.v1.consumer_ack",
            {"consumer_seq": 9, "stream_seq": 7, "ack_time": 55, "deliveries": 1},
        ),
    ],
)  # fmt: skip
def test_bodies(event: Advise | Sample, subject: str, type: str, fields: dict[str, Any]) -> None:
    where, body = encode_advisory(event, "S", "c", "ID", 10**18)
    assert where == f"$JS.EVENT.{subject}.S.c"
    head = {
        "type": f"io.nats.jetstream.{type}",
        "id": "ID",
        "timestamp": "2001-09-09T01:46:40Z",
        "stream": "S",
        "consumer": "c",
    }
    assert json.loads(body) == head | fields
