"""What holds a consumer back or tells of it, through the dispatcher on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import overlay
from overlay.kafka.own_topics import acks_topic
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.stalls import Stalls
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, Seen, await_records, produce, read_committed, serve

LARGE = bytes(100_000)
SPAN_MS = 1_200
ATTEMPTS = 4


def fill(scene: Scene, topic: str, values: Sequence[bytes], gap_ms: int = 0) -> None:
    """Records for t.a, their times apart."""
    producer = SureProducer(scene.bootstrap)
    first = int(time.time() * 1000) - 60_000
    for number, value in enumerate(values):
        producer.produce(topic, value, headers=[("to", "a")], timestamp=first + number * gap_ms)
    assert producer.flush(30) == 0


def split(records: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
    """Messages and statuses."""
    return [r for r in records if r.value is not None], [r for r in records if r.header(b"Nats-Status")]


def answer(scene: Scene, token: bytes) -> None:
    """Write an empty record to the ack topic."""
    producer = SureProducer(scene.bootstrap)
    producer.produce(acks_topic(scene.prefix, "S"), b"", headers=[("Nats-Reply-To", token)])
    assert producer.flush(30) == 0


def test_flow_control_stalls_until_it_is_answered(scene: Scene, new_topic: NewTopicFixture) -> None:
    """As servers do with messages of 100 kB: asked after the 11th, stalled after the 21st (docs/jetstream.md#push)."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", ack_policy="all", flow_control=True, idle_heartbeat="200ms")
    fill(scene, topic, [LARGE] * 30)

    def find_stalled() -> bytes | None:
        beats = split(reader.read())[1]
        return next((stalled for r in beats if (stalled := r.header(b"Nats-Consumer-Stalled"))), None)

    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        subject = wait_until(find_stalled, DEADLINE_S, "a heartbeat says what is waited for")
        assert subject is not None
        messages, statuses = split(reader.seen)
        request = next(r for r in statuses if r.header(b"Nats-Description") == b"FlowControl Request")
        assert (request.header(b"Nats-Status"), request.header(b"Nats-Reply-To")) == (b"100", subject)
        assert (len(messages), sum(r.offset < request.offset for r in messages)) == (21, 11)
        answer(scene, b"$JS.FC.S.c.zzzz")
        answer(scene, subject)
        wait_until(lambda: len(split(reader.read())[0]) == 30, DEADLINE_S, "the rest comes")
    assert [r.token.sequence for r in split(reader.seen)[0]] == list(range(1, 31))


def test_flow_control_acks(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Messages go out as far as max_ack_pending lets them, and on as requests are answered; also after a restart."""
    topic = new_topic()
    scene.add_stream("S", topic)
    fields = {"max_ack_pending": 10, "flow_control": True, "idle_heartbeat": "1s"}
    output = scene.add_consumer("S", "c", ack_policy="flow_control", **fields)
    produce(scene.bootstrap, topic, ["a"] * 35)
    with CommittedReader(scene.bootstrap, output) as reader:
        with serve(scene):
            wait_until(lambda: len(split(reader.read())[0]) == 10, DEADLINE_S, "as many as may be pending come")
        # the request was made before; another one comes with a heartbeat
        with serve(scene), overlay.open(scene.folder) as client, client.subscribe("c") as messages:
            found = [message.metadata.sequence for message in islice(messages, 35)]
            wait_until(
                lambda: client.control.info("S", "c").num_ack_pending < 10, DEADLINE_S, "answers ack what was taken"
            )
        assert found == list(range(1, 36))
        assert [r.token.sequence for r in split(reader.read())[0]] == found


def test_heartbeats_say_where_the_consumer_stands(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic(partitions=1)
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", "t.a", idle_heartbeat="200ms", output={"partitions": 2})
    produce(scene.bootstrap, topic, ["a", "b"] * 3)

    def find_beats() -> list[Seen]:
        said = (b"100", b"Idle Heartbeat", b"3", b"5")
        names = (b"Nats-Status", b"Nats-Description", b"Nats-Last-Consumer", b"Nats-Last-Stream")
        return [r for r in reader.read() if tuple(map(r.header, names)) == said]

    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        wait_until(lambda: {r.partition for r in find_beats()} == {0, 1}, DEADLINE_S, "both partitions tell of it")
        assert len(split(reader.seen)[0]) == 3
        assert {(r.key, r.value) for r in find_beats()} == {(None, None)}


def test_messages_keep_a_pace(scene: Scene, new_topic: NewTopicFixture) -> None:
    """replay original, rate_limit_bps and pause_until; each delays a consumer of its own."""
    slow, large = new_topic(), new_topic()
    scene.add_stream("S", slow)
    scene.add_stream("L", large)
    until = datetime.now(UTC) + timedelta(seconds=3)
    paused = scene.add_consumer("S", "paused", pause_until=until.isoformat())
    fill(scene, slow, [b"x"] * 4, gap_ms=500)
    # beyond 1 MiB, which goes at once, four of them want 1.6 s at this rate
    fill(scene, large, [LARGE] * 14)

    def find_span(topic: str, count: int) -> tuple[int, int]:
        with CommittedReader(scene.bootstrap, topic) as reader:
            times = [record.timestamp for record in await_records(reader, count)]
        assert len(times) == count
        return times[0], times[-1]

    # a stall delays the first message and not the last, so that a short span says nothing then
    for attempt in range(ATTEMPTS):
        original = scene.add_consumer("S", f"original-{attempt}", replay_policy="original")
        paced = scene.add_consumer("L", f"paced-{attempt}", rate_limit_bps=2_000_000)
        with Stalls(scene.bootstrap) as stalls, serve(scene):
            assert find_span(paused, 4)[0] >= until.timestamp() * 1000
            spans = [last - first for first, last in (find_span(original, 4), find_span(paced, 14))]
        if min(spans) >= SPAN_MS or not stalls.seen:
            break
    assert min(spans) >= SPAN_MS, spans


def test_samples_are_events(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", ack_policy="explicit", sample_freq="50%")
    produce(scene.bootstrap, topic, ["a"] * 4)

    def find_samples() -> list[Seen]:
        found = read_committed(scene.bootstrap, f"{scene.prefix}.events")
        return [r for r in found if r.key == b"$JS.EVENT.METRIC.CONSUMER.ACK.S.c"]

    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        for record in await_records(reader, 4):
            answer(scene, record.header(b"Nats-Reply-To") or b"")
        wait_until(lambda: len(find_samples()) == 2, DEADLINE_S, "two of four acks are told of")
    bodies = [json.loads(record.value or b"") for record in find_samples()]
    assert [(body["stream_seq"], body["consumer_seq"], body["deliveries"]) for body in bodies] == [(2, 2, 1), (4, 4, 1)]
    assert {(body["type"], body["stream"], body["consumer"]) for body in bodies} == {
        ("io.nats.jetstream.metric.v1.consumer_ack", "S", "c")
    }
    assert all(0 < body["ack_time"] < 60e9 for body in bodies)
