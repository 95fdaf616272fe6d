"""A source record with a header whose name is not UTF-8, as readers of every kind get it from a service."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice

import pytest

import overlay
from overlay.client.subscribe.message import Delivered
from tests.oracle.batches import Header, Record
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture
from tests.support.raw import send_batch
from tests.worker.scenes import DEADLINE_S, Scene, serve
from tests.worker.scenes import scene as scene

pytestmark = pytest.mark.usefixtures("no_thread_of_a_subscription_is_left")

HEADERS: list[Header] = [(b"\xff\xfe", b"x"), (b"to", b"a"), (b"\xed\xa0\x80", None), (b"after", b"y")]
COUNT = 5


def test_readers_get_the_record_without_that_header(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic, now = new_topic(), int(time.time() * 1000)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "push", "t.a", ack_policy="explicit")
    scene.add_consumer("S", "pull", "t.a", deliver_subject="", ack_policy="explicit")
    batch = build([Record(number, now, b"k", b"%d" % number, HEADERS) for number in range(COUNT)])
    assert send_batch(scene.bootstrap, topic, batch) == 0
    found: dict[str, Sequence[Delivered]] = {}
    with serve(scene), overlay.open(scene.folder) as client:
        with client.subscribe("push") as messages:
            pushed = list(islice(messages, COUNT))
            for each in pushed:
                each.ack_sync()
        found["push"] = pushed
        found["pull"] = list(client.pull("pull").fetch(COUNT, timeout=DEADLINE_S))
        with client.ordered("S") as ordered:
            found["ordered"] = list(islice(ordered, COUNT))
            assert ordered.state.renewals == 0
    for messages_of in found.values():
        assert [message.data for message in messages_of] == [b"%d" % number for number in range(COUNT)]
        for message in messages_of:
            assert (message.subject, message.headers) == ("t.a", [("to", b"a"), ("after", b"y")])
            assert message.header("after") == b"y"
