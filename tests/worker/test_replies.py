"""Reply topics that clients name: which are allowed, and what one that refuses does to others."""

from __future__ import annotations

from overlay.consumer.events import Pulled
from overlay.consumer.pulls import PullRequest
from overlay.kafka.header_names import CORRELATION, REPLY_TOPIC
from overlay.replies.reply_address import Address
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Headers, Scene, Served, await_records, produce, read_committed, serve
from tests.worker.test_acked import ACKED, await_acked, await_dispatch_loop, new_inbox, say

TOO_SMALL = {"max.message.bytes": "64"}


def read_metric(served: Served, name: str, **labels: str) -> float:
    return served.service.metrics.registry.get_sample_value(f"overlay_{name}_total", labels) or 0.0


def count_refused(served: Served) -> float:
    """How often a topic's refusal has ended a session. A broker that stands still may end one as well."""
    return read_metric(served, "shard_restarts", cause="DeliveryFailed")


def ask_for_answer(topic: str, correlation: str) -> Headers:
    return [(REPLY_TOPIC, topic), (CORRELATION, correlation)]


def test_refused_answers_abort_no_transaction(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Two reply topics refuse at once. The acks count, a third client gets its answer, and the shard goes on."""
    topic = new_topic()
    small, smaller = (new_inbox(scene, name, **TOO_SMALL) for name in ("small", "smaller"))
    good = new_inbox(scene, "good")
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | {"ack_wait": "60s"})
    produce(scene.bootstrap, topic, ["a"] * 3)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        found = await_records(reader, 3)
        for record, inbox in zip(found, (small, smaller, good), strict=True):
            say(scene, [record], more=ask_for_answer(inbox, "7"))
        with CommittedReader(scene.bootstrap, good) as replies:
            (answer,) = await_records(replies, 1)
        assert answer.header(CORRELATION.encode()) == b"7"
        await_acked(served, "c")
        wait_until(
            lambda: read_metric(served, "replies_refused", reason="refused") == 2, 30, "refused answers are counted"
        )
        assert count_refused(served) == 0
    assert not read_committed(scene.bootstrap, small)
    assert not read_committed(scene.bootstrap, smaller)


def test_an_ack_cannot_have_a_foreign_topic_written(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The ack counts all the same."""
    topic, foreign = new_topic(), new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | {"ack_wait": "60s"})
    produce(scene.bootstrap, topic, ["a"] * 2)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        first, second = await_records(reader, 2)
        say(scene, [first], more=ask_for_answer(foreign, "1"))
        inbox = make_topic(scene.bootstrap, f"{scene.prefix}.replies.b")
        say(scene, [second], more=ask_for_answer(inbox, "2"))
        await_acked(served, "c")
        with CommittedReader(scene.bootstrap, inbox) as replies:
            await_records(replies, 1)
        assert read_metric(served, "replies_refused", reason="name") == 1
    assert not read_committed(scene.bootstrap, foreign)


def test_pulls_to_topics_that_refuse_end(scene: Scene, new_topic: NewTopicFixture) -> None:
    """They abort nothing, and what they were given comes again for a client that can be reached."""
    topic = new_topic()
    inboxes = [new_inbox(scene, name, **TOO_SMALL) for name in ("small", "smaller")]
    good = new_inbox(scene, "good")
    scene.add_stream("S", topic)
    for name in ("c", "d"):
        scene.add_consumer("S", name, deliver_subject="", ack_policy="explicit", ack_wait="1s")
    with serve(scene) as served, CommittedReader(scene.bootstrap, good) as reader:
        dispatch_loop = await_dispatch_loop(served)

        def pull(name: str, inbox: str) -> None:
            event = Pulled(PullRequest(batch=10, expires=60 * 10**9), str(Address(inbox, b"7")))
            served._loop.call_soon_threadsafe(dispatch_loop.order, ("S", name), event)

        for name, inbox in zip(("c", "d"), inboxes, strict=True):
            pull(name, inbox)
        produce(scene.bootstrap, topic, ["a"])
        wait_until(lambda: read_metric(served, "replies_refused", reason="refused") == 2, 30, "both topics refuse")
        wait_until(
            lambda: not any(len(slot.machine.state.waiting) for slot in dispatch_loop.dispatcher.slots.values()),
            30,
            "both pulls end",
        )
        pull("c", good)
        (record,) = await_records(reader, 1)
        assert record.token.deliveries == 2
        assert count_refused(served) == 0
