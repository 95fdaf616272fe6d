"""Filter values in a running service, consumers at the tail and consumers that catch up, against another client's reading."""

from __future__ import annotations

import pytest

from tests.oracle.filter_values import find_header, wants_value
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import Scene, await_caught_up, check_output, expect, read_committed, serve

pytestmark = pytest.mark.kafka

CONSUMERS: dict[str, tuple[list[str], bool]] = {
    "eu": (["eu"], False),
    "either": (["eu", "us"], False),
    "open": (["us"], True),
    "none": ([""], False),
}


def produce_regions(bootstrap: str, topic: str, count: int) -> None:
    producer = SureProducer(bootstrap, {"linger.ms": 5})
    for number in range(count):
        region = ("eu", "us", "", None)[number // 40 % 4]
        headers = [("to", "ab"[number % 2])] + ([] if region is None else [("region", region)])
        producer.produce(topic, str(number), headers=headers)
    assert producer.flush(30) == 0


def test_push_consumers_get_the_values_they_want(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_regions(scene.bootstrap, topic, 600)
    scene.add_stream("S", topic, filter_value={"header": "region"})
    scene.add_stream("BY_SUBJECT", topic)
    outputs = {
        name: scene.add_consumer("S", name, "t.a", filter={"values": values, "match_unfiltered": unfiltered})
        for name, (values, unfiltered) in CONSUMERS.items()
    }
    by_subject = scene.add_consumer("BY_SUBJECT", "b", filter={"values": ["t.b"]})
    with serve(scene) as served:
        await_caught_up(served, *CONSUMERS, "b")
        produce_regions(scene.bootstrap, topic, 200)
        await_caught_up(served, *CONSUMERS, "b")
    source = read_committed(scene.bootstrap, topic)
    for name, (values, unfiltered) in CONSUMERS.items():
        wanted = [
            record
            for record in expect(source, ["t.a"])
            if wants_value(values, unfiltered, find_header(record, b"region"))
        ]
        check_output(read_committed(scene.bootstrap, outputs[name]), wanted, consumer=name)
    found = read_committed(scene.bootstrap, by_subject)
    check_output(found, expect(source, ["t.b"]), stream="BY_SUBJECT", consumer="b")
