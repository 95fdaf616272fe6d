"""Consumers with acks on a real broker: delivered once while acked, again after ack_wait when not, through restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from overlay.consumer.events import Pulled
from overlay.consumer.pulls import PullRequest
from overlay.kafka.own_topics import acks_topic
from overlay.replies.reply_address import Address
from overlay.worker.dispatch_loop import DispatchLoop
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    AckClock,
    CommittedReader,
    Headers,
    Scene,
    Seen,
    Served,
    await_caught_up,
    await_records,
    await_state,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)


def say(scene: Scene, records: Iterable[Seen], body: bytes = b"+ACK", more: Headers | None = None) -> None:
    """Say something of deliveries, as any Kafka producer can."""
    producer = SureProducer(scene.bootstrap, {"linger.ms": 2})
    for record in records:
        headers: Headers = [("Nats-Reply-To", record.header(b"Nats-Reply-To")), *(more or ())]
        producer.produce(acks_topic(scene.prefix, "S"), body, headers=headers)
    assert producer.flush(30) == 0


def count(records: Iterable[Seen]) -> Counter[int]:
    """Deliveries by stream sequence."""
    return Counter(record.token.sequence for record in records)


def rows(records: Sequence[Seen]) -> list[tuple[int, int]]:
    """Stream sequence and deliveries, in order of the consumer sequence."""
    assert [record.token.consumer_sequence for record in records] == list(range(1, len(records) + 1))
    return [(record.token.sequence, record.token.deliveries) for record in records]


def await_dispatch_loop(served: Served) -> DispatchLoop:
    """Who serves the machines of the only shard."""
    found = wait_until(
        lambda: next((each.dispatch_loop for each in served.service.sessions), None), DEADLINE_S, "machines are served"
    )
    assert found is not None
    return found


def await_pending(served: Served, name: str, count: int) -> None:
    """Wait until so many messages are pending."""
    await_state(
        served, name, lambda found: found.get("acks", {}).get("num_ack_pending") == count, f"has {count} pending"
    )


def await_acked(served: Served, name: str) -> None:
    """Wait until nothing is pending."""
    await_pending(served, name, 0)


ACKED: dict[str, Any] = {"ack_policy": "explicit", "ack_wait": "1s", "interest": "always"}
UNHURRIED = {"ack_wait": "600s"}
"""For tests whose acks have to arrive in time: an AckClock ends it."""
ACK_WAIT_S = 601


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_what_is_not_acked_comes_again(
    scene: Scene, new_topic: NewTopicFixture, ack_clock: AckClock, delivery: str
) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", "t.a", **ACKED | UNHURRIED, delivery=delivery)
    produce(scene.bootstrap, topic, ["a", "b"] * 10)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        first = await_records(reader, 10)[:10]
        assert rows(first) == [(n, 1) for n in range(1, 20, 2)]
        say(scene, first[:7])
        await_pending(served, "c", 3)
        ack_clock.advance(ACK_WAIT_S)
        again = await_records(reader, 13)[10:13]
        assert [(r.token.sequence, r.token.deliveries) for r in again] == [(15, 2), (17, 2), (19, 2)]
        say(scene, again)
        await_acked(served, "c")
        assert max(count(reader.read()).values()) <= 3


def test_a_restart_goes_on(scene: Scene, new_topic: NewTopicFixture, ack_clock: AckClock) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | UNHURRIED)
    produce(scene.bootstrap, topic, ["a"] * 10)
    with CommittedReader(scene.bootstrap, output) as reader:
        with serve(scene):
            first = await_records(reader, 10)[:10]
            say(scene, first[:5])
        produce(scene.bootstrap, topic, ["a"] * 2)
        with serve(scene) as served:
            await_pending(served, "c", 7)
            ack_clock.advance(ACK_WAIT_S)
            wait_until(
                lambda: count(reader.read())[10] >= 2 and count(reader.seen)[12] >= 1,
                DEADLINE_S,
                "the rest comes again",
            )
            say(scene, reader.seen[5:])
            await_acked(served, "c")
        found = reader.read()
    assert all(count(found)[sequence] == 1 for sequence in range(1, 6))
    rows(found)


def test_a_consumer_that_was_away_is_given_again_what_it_had_not_acked(
    scene: Scene, new_topic: NewTopicFixture
) -> None:
    """Its file is gone for a while. What the service remembers of it is kept, though its log of states is cut meanwhile."""
    topic = new_topic()
    scene.add_stream("S", topic)
    produce(scene.bootstrap, topic, ["a"] * 10)
    more = ACKED | {"ack_wait": "2s"}
    output = scene.add_consumer("S", "c", **more)
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 10)
    scene.remove_consumer("c")
    scene.add_consumer("S", "plain")
    with serve(scene) as served:
        await_caught_up(served, "plain")
    scene.add_consumer("S", "c", **more)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        wait_until(lambda: min(count(reader.read())[n] for n in range(1, 11)) >= 2, DEADLINE_S, "all of it comes again")
        say(scene, reader.seen)
        await_acked(served, "c")


def new_inbox(scene: Scene, name: str = "a", **config: str) -> str:
    """Create a topic that clients may name for answers."""
    return make_topic(scene.bootstrap, f"{scene.prefix}.replies.{name}", config=config)


def test_an_answer_that_its_topic_refuses_holds_up_no_ack(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Who asks for it there gets none; acks are taken, and what comes later is delivered."""
    topic, inbox = new_topic(), new_inbox(scene, **{"max.message.bytes": "64"})
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | {"ack_wait": "60s"})
    produce(scene.bootstrap, topic, ["a"] * 10)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        say(scene, await_records(reader, 10), more=[("Overlay-Reply-Topic", inbox), ("Overlay-Correlation-Id", "7")])
        await_acked(served, "c")
        produce(scene.bootstrap, topic, ["a"] * 5)
        assert len(rows(await_records(reader, 15))) == 15
    assert not read_committed(scene.bootstrap, inbox)


def test_what_is_given_up_lies_in_the_dead_letter_topic(
    scene: Scene, new_topic: NewTopicFixture, ack_clock: AckClock
) -> None:
    topic, graves = new_topic(), f"{scene.prefix}-graves"
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | UNHURRIED, max_deliver=2, dead_letter=graves)
    produce(scene.bootstrap, topic, ["a"] * 4)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        first = await_records(reader, 4)[:4]
        say(scene, first[:1])
        say(scene, first[1:2], b"+TERM cannot be read")
        say(scene, first[2:3], b"-NAK")
        for records in (5, 6):
            # 3 comes again because of its NAK, and 4 after ack_wait; each of them is given up an ack_wait later
            await_records(reader, records)
            await_pending(served, "c", 7 - records)
            ack_clock.advance(ACK_WAIT_S)
        with CommittedReader(scene.bootstrap, graves) as letters:
            found = await_records(letters, 3)
        await_acked(served, "c")
        reader.read()
    assert rows(reader.seen)[:4] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert count(reader.seen) == {1: 1, 2: 1, 3: 2, 4: 2}
    reasons = {letter.token.sequence: letter.header(b"Overlay-Dead-Reason") for letter in found}
    assert reasons == {2: b"term", 3: b"max_deliver", 4: b"max_deliver"}
    await_markers(scene.bootstrap, f"{scene.prefix}.events")
    events = {record.key for record in read_committed(scene.bootstrap, f"{scene.prefix}.events")}
    kinds = {(key or b"").decode().removeprefix("$JS.EVENT.ADVISORY.CONSUMER.") for key in events}
    assert {"MAX_DELIVERIES.S.c", "MSG_TERMINATED.S.c", "MSG_NAKED.S.c"} <= kinds


def test_ack_wait_begins_when_the_group_has_read(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", ack_policy="explicit", ack_wait="500ms", deliver_group="readers")
    produce(scene.bootstrap, topic, ["a"] * 6)
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 6)
        group = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "readers", "enable.auto.commit": False})
        half = reader.seen[2].offset + 1
        group.commit(offsets=[TopicPartition(output, 0, half)], asynchronous=False)
        again = await_records(reader, 9)[6:9]
        assert {record.token.sequence for record in again} == {1, 2, 3}
        assert {record.token.deliveries for record in again} == {2}
        group.close()


def test_readers_that_are_done_are_known_after_a_restart(scene: Scene, new_topic: NewTopicFixture) -> None:
    """They commit the offset behind the last record, below the marker that ends its transaction; nothing new is written."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer(
        "S", "c", ack_policy="explicit", ack_wait="500ms", output={"partitions": 3, "partition_by": "subject"}
    )
    produce(scene.bootstrap, topic, ["a"] * 6)
    with CommittedReader(scene.bootstrap, output) as reader:
        with serve(scene):
            await_records(reader, 6)
        ends = {record.partition: record.offset + 1 for record in reader.seen}
        assert len(ends) < 3
        group = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "c", "enable.auto.commit": False})
        group.commit(offsets=[TopicPartition(output, p, end) for p, end in ends.items()], asynchronous=False)
        group.close()
        with serve(scene):
            again = await_records(reader, 12)[6:12]
        assert {record.token.sequence for record in again} == set(range(1, 7))


def test_an_answer_comes_with_the_state(scene: Scene, new_topic: NewTopicFixture) -> None:
    """An ack that wants an answer gets one; one that names a topic that is not there changes nothing for the others."""
    topic, answers = new_topic(), new_inbox(scene)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED)
    produce(scene.bootstrap, topic, ["a"] * 2)
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        first = await_records(reader, 2)[:2]
        say(
            scene, first[:1], more=[("Overlay-Reply-Topic", f"{scene.prefix}-nowhere"), ("Overlay-Correlation-Id", "1")]
        )
        say(scene, first[1:], more=[("Overlay-Reply-Topic", answers), ("Overlay-Correlation-Id", "2")])
        with CommittedReader(scene.bootstrap, answers) as replies:
            (answer,) = await_records(replies, 1)
        await_acked(served, "c")
    assert (answer.key, answer.header(b"Overlay-Correlation-Id"), answer.value) == (b"2", b"2", b"")


def test_a_reader_that_does_not_ack_holds_up_no_other(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that takes ten at a time leaves its neighbour's cursor, and gets everything in the end."""
    monkeypatch.setattr("overlay.worker.backpressure.FULL", 100)
    topic = new_topic()
    scene.add_stream("S", topic)
    slow = scene.add_consumer("S", "slow", **ACKED | {"ack_wait": "60s"}, max_ack_pending=10)
    fast = scene.add_consumer("S", "fast")
    with serve(scene) as served, CommittedReader(scene.bootstrap, slow) as reader:
        for _ in range(6):
            produce(scene.bootstrap, topic, ["a"] * 100)
            with CommittedReader(scene.bootstrap, fast) as neighbour:
                await_records(neighbour, 100)
        with CommittedReader(scene.bootstrap, fast) as neighbour:
            await_records(neighbour, 600)
        (session,) = served.service.sessions
        assert ("S", "slow") in session.cursors.parked
        assert len(await_records(reader, 10)) == 10
        done = 0
        while done < 600:
            found = await_records(reader, done + 1)
            say(scene, found[done:])
            done = len(found)
        await_acked(served, "slow")
        assert not session.cursors.parked
    source = read_committed(scene.bootstrap, topic)
    check_output(reader.seen, expect(source), consumer="slow")


def test_a_pull_is_answered_on_the_reply_topic(scene: Scene, new_topic: NewTopicFixture) -> None:
    """+NXT acks and asks for more; the messages come to the topic that the ack names, as would those of any pull."""
    topic, inbox = new_topic(), new_inbox(scene)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c", deliver_subject="", ack_policy="explicit", max_batch=5)
    produce(scene.bootstrap, topic, ["a"] * 8)
    with serve(scene) as served, CommittedReader(scene.bootstrap, inbox) as reader:
        reply, dispatch_loop = str(Address(inbox, b"7")), await_dispatch_loop(served)
        served._loop.call_soon_threadsafe(dispatch_loop.order, ("S", "c"), Pulled(PullRequest(batch=2), reply))
        first = await_records(reader, 2)
        assert rows(first) == [(1, 1), (2, 1)]
        assert {record.header(b"Overlay-Correlation-Id") for record in first} == {b"7"}
        more: Headers = [("Overlay-Reply-Topic", inbox), ("Overlay-Correlation-Id", "8")]
        say(scene, first[:1], b"+NXT 3", more)
        found = await_records(reader, 5)
        assert rows(found) == [(n, 1) for n in range(1, 6)]
        assert {record.header(b"Overlay-Correlation-Id") for record in found[2:]} == {b"8"}
        await_state(served, "c", lambda found: found["acks"]["num_ack_pending"] == 4, "has four pending")


def test_values_may_be_left_out(scene: Scene, new_topic: NewTopicFixture) -> None:
    """headers_only, with acks and without: neither key nor headers are touched."""
    topic = new_topic()
    scene.add_stream("S", topic)
    outputs = [
        scene.add_consumer("S", "plain", headers_only=True),
        scene.add_consumer("S", "c", **ACKED, headers_only=True),
    ]
    produce(scene.bootstrap, topic, ["a"] * 12)
    with serve(scene):
        for output in outputs:
            with CommittedReader(scene.bootstrap, output) as reader:
                found = await_records(reader, 12)[:12]
            assert {record.value for record in found} == {None}
            assert [record.header(b"Nats-Msg-Size") for record in found] == [b"1"] * 10 + [b"2"] * 2
            assert [record.key for record in found] == [b"%d" % (number % 7) for number in range(12)]


def test_a_stream_of_several_partitions(scene: Scene, new_topic: NewTopicFixture, ack_clock: AckClock) -> None:
    """Sequences of the ledger in order; what is read again after a restart is found by them."""
    topic = new_topic(partitions=3)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", **ACKED | UNHURRIED)
    produce(scene.bootstrap, topic, ["a"] * 60)
    with CommittedReader(scene.bootstrap, output) as reader:
        with serve(scene) as served:
            first = await_records(reader, 60)[:60]
            say(scene, first[:40])
            await_pending(served, "c", 20)
        with serve(scene) as served:
            ack_clock.advance(ACK_WAIT_S)
            wait_until(lambda: len(count(reader.read()[60:])) == 20, DEADLINE_S, "the rest comes again")
            say(scene, reader.seen[60:])
            await_acked(served, "c")
            reader.read()
    assert [sequence for sequence, _ in rows(reader.seen)[:60]] == list(range(1, 61))
    assert set(count(reader.seen[60:])) == set(range(41, 61))
    values = {record.token.sequence: record.value for record in reader.seen[:60]}
    assert all(record.value == values[record.token.sequence] for record in reader.seen[60:])
