from __future__ import annotations

import json

from overlay.consumer.effects import Advise, Advisory, Answer, ArmTimer, Effect, Sample
from overlay.kafka.own_topics import events_topic
from overlay.kafka.passed_over import PassedOver
from overlay.replies.event_topic import AUDIT, MOST_TEXT, encode_audit, encode_notices, encode_unreadable

NOW = 10**18


def test_events_of_a_step_in_order() -> None:
    effects: list[Effect] = [
        Advise(Advisory.NAK, 7, 9, 1),
        Answer("r//1"),
        Sample(8, 10, 1, 55),
        ArmTimer(5),
        Advise(Advisory.NAK, 7, 9, 1),
    ]
    found = encode_notices(effects, "S", "c", NOW, "overlay")
    assert [entry.topic for entry in found] == ["overlay.events"] * 3
    assert [entry.record.key for entry in found] == [
        b"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.c",
        b"$JS.EVENT.METRIC.CONSUMER.ACK.S.c",
        b"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.c",
    ]
    bodies = [json.loads(entry.record.value or b"") for entry in found]
    assert [body["type"].rsplit(".", 1)[1] for body in bodies] == ["nak", "consumer_ack", "nak"]
    assert (bodies[1]["ack_time"], bodies[1]["timestamp"]) == (55, "2001-09-09T01:46:40Z")
    assert len({body["id"] for body in bodies}) == 3


def test_ids_differ_between_consumers_and_steps() -> None:
    effects = [Advise(Advisory.NAK, 7, 9, 1)]
    steps = [("S", "c", NOW), ("S", "d", NOW), ("T", "c", NOW), ("S", "c", NOW + 1)]
    found = [encode_notices(effects, *step, "overlay")[0] for step in steps]
    assert len({json.loads(entry.record.value or b"")["id"] for entry in found}) == len(steps)


def test_an_audit() -> None:
    topic, record, partition = encode_audit(
        "worker-1", "$JS.API.CONSUMER.INFO.S.c", '{"op":"x"}', {"type": "t", "error": {"code": 404}}, NOW, "p", "me"
    )
    assert (topic, partition, record.key) == (events_topic("p"), 0, AUDIT.encode())
    body = json.loads(record.value or b"")
    assert body["type"] == "io.nats.jetstream.advisory.v1.api_audit"
    assert (body["server"], body["client"], body["timestamp"]) == ("worker-1", {"name": "me"}, "2001-09-09T01:46:40Z")
    assert (body["subject"], body["request"]) == ("$JS.API.CONSUMER.INFO.S.c", '{"op":"x"}')
    assert json.loads(body["response"]) == {"type": "t", "error": {"code": 404}}


def test_records_that_cannot_be_read() -> None:
    found = PassedOver("p.S.acks", 2, 17, "payload", "x" * 1_000, 5)
    topic, record, partition = encode_unreadable("w:8222", found, NOW, "p")
    assert (topic, partition, record.key) == (events_topic("p"), 0, b"$OVERLAY.EVENT.UNREADABLE.p.S.acks")
    body = json.loads(record.value or b"")
    assert body.pop("id")
    assert body == {
        "type": "overlay.unreadable.v1.records",
        "timestamp": "2001-09-09T01:46:40Z",
        "server": "w:8222",
        "topic": "p.S.acks",
        "partition": 2,
        "offset": 17,
        "reason": "payload",
        "text": "x" * MOST_TEXT,
        "count": 5,
    }
