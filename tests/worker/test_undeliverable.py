"""Records that the output topic can never take, on a real broker: in the dead letters with `on_undeliverable: dead_letter`,
and nothing else lost, doubled or held up; with acks and without, through restarts and kill -9."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Seen,
    Served,
    await_records,
    await_state,
    check_output,
    expect,
    read_committed,
    serve,
)
from tests.worker.test_acked import say
from tests.worker.test_faults import alter_topic, produce_sizes

LIMIT = 10_000
SMALL, LARGE = 50, 40_000
ACKED: dict[str, Any] = {"ack_policy": "explicit", "ack_wait": "60s", "interest": "always", "max_ack_pending": -1}


def graves_of(output: str) -> str:
    return f"{output}-graves"


def add(scene: Scene, name: str, limit: int = LIMIT, **more: Any) -> str:
    """A consumer whose output takes little; returns its output."""
    output = f"{scene.prefix}-{name}"
    scene.add_consumer("S", name, **{"on_undeliverable": "dead_letter", "dead_letter": graves_of(output), **more})
    return make_topic(scene.bootstrap, output, 1, {"max.message.bytes": str(limit)})


def split(scene: Scene, topic: str) -> tuple[list[Seen], list[Seen]]:
    """The records of the source that fit into outputs, and the others."""
    wanted = expect(read_committed(scene.bootstrap, topic))
    return [r for r in wanted if len(r.value or b"") < LIMIT], [r for r in wanted if len(r.value or b"") >= LIMIT]


def check_letters(found: Sequence[Seen], wanted: Sequence[Seen], name: str) -> None:
    """Exactly these records, never delivered, each once and whole."""
    assert [letter.header(b"Overlay-Source-Offset") for letter in found] == [b"%d" % r.offset for r in wanted]
    for letter, record in zip(found, wanted, strict=True):
        assert (letter.key, letter.value) == (record.key, record.value)
        assert letter.header(b"Overlay-Dead-Reason") == b"undeliverable"
        assert letter.header(b"Overlay-Deliveries") == b"0"
        assert (letter.header(b"Overlay-Consumer") or b"").decode() == name
        assert (letter.token.consumer_sequence, letter.token.sequence) == (0, record.offset + 1)


def count_dead_letters(served: Served, name: str) -> float:
    labels = {"stream": "S", "consumer": name}
    return served.service.metrics.registry.get_sample_value("overlay_dead_letters_total", labels) or 0.0


def await_dead_letters(served: Served, name: str, count: int) -> None:
    wait_until(lambda: count_dead_letters(served, name) == count, DEADLINE_S, f"{count} letters of {name} are counted")


def read_terminated(scene: Scene, name: str) -> list[tuple[int, int, int, str]]:
    """The advisories of a consumer's terminated messages: stream and consumer sequence, deliveries, reason."""
    key = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.{name}".encode()
    bodies = [
        json.loads(e.value or b"") for e in read_committed(scene.bootstrap, f"{scene.prefix}.events") if e.key == key
    ]
    return [(b["stream_seq"], b["consumer_seq"], b["deliveries"], b["reason"]) for b in bodies]


def test_they_lie_in_the_dead_letters(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Of consumers of every kind, and a restart changes nothing."""
    topic = new_topic()
    scene.add_stream("S", topic)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "quick": {"delivery": "at_least_once"},
        "acked": ACKED,
        "all": ACKED | {"ack_policy": "all"},
        "both": ACKED | {"delivery": "at_least_once"},
    }
    outputs = {name: add(scene, name, **kind) for name, kind in kinds.items()}
    # a neighbour whose output takes everything
    whole = scene.add_consumer("S", "whole")
    dead_letters = dict.fromkeys(kinds, 0.0)
    for _ in range(2):
        produce_sizes(scene.bootstrap, topic, [LARGE, SMALL, SMALL, LARGE, LARGE, SMALL, LARGE])
        small, large = split(scene, topic)
        with serve(scene) as served:
            for name, output in outputs.items():
                with CommittedReader(scene.bootstrap, graves_of(output)) as letters:
                    check_letters(await_records(letters, len(large)), large, name)
                with CommittedReader(scene.bootstrap, output) as reader:
                    check_output(await_records(reader, len(small)), small, consumer=name)
            with CommittedReader(scene.bootstrap, whole) as reader:
                await_records(reader, len(small) + len(large))
            for name in kinds:
                await_dead_letters(served, name, 4)
                dead_letters[name] += count_dead_letters(served, name)
    for name, output in outputs.items():
        check_output(read_committed(scene.bootstrap, output), small, consumer=name)
        check_letters(read_committed(scene.bootstrap, graves_of(output)), large, name)
        told = [] if name in ("plain", "quick") else [(r.offset + 1, 0, 0, "undeliverable") for r in large]
        assert read_terminated(scene, name) == told
    assert set(dead_letters.values()) == {len(large)}


def test_a_kill_in_the_middle(scene: Scene, new_topic: NewTopicFixture, running_service: StartService) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    outputs = {"plain": add(scene, "plain"), "acked": add(scene, "acked", **ACKED)}
    sizes = [LARGE if number % 50 == 7 else SMALL for number in range(3_000)]
    produce_sizes(scene.bootstrap, topic, sizes)
    service = running_service(scene.folder, wait=False)
    with CommittedReader(scene.bootstrap, make_topic(scene.bootstrap, graves_of(outputs["plain"]))) as letters:
        await_records(letters, 1, 120)
        # what is under way now dies with it
        producer = SureProducer(scene.bootstrap)
        for number in range(2_000):
            value = b"x" * 20 if number % 100 else make_noise(LARGE)
            producer.produce(topic, value, headers=[("to", "a")])
            producer.poll(0)
        service.kill()
        assert producer.flush(30) == 0
    small, large = split(scene, topic)
    with serve(scene):
        for name, output in outputs.items():
            with CommittedReader(scene.bootstrap, output) as reader:
                check_output(await_records(reader, len(small)), small, consumer=name)
            with CommittedReader(scene.bootstrap, graves_of(output)) as letters:
                await_records(letters, len(large))
    for name, output in outputs.items():
        check_output(read_committed(scene.bootstrap, output), small, consumer=name)
        check_letters(read_committed(scene.bootstrap, graves_of(output)), large, name)


def make_noise(size: int) -> bytes:
    with open("/dev/urandom", "rb") as noise:
        return noise.read(size)


def test_an_output_that_takes_less_than_it_did(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The broker refuses first; no consumer is stalled. What was delivered before keeps its history in the letter."""
    topic = new_topic()
    scene.add_stream("S", topic)
    outputs = {"plain": add(scene, "plain", 1 << 20), "acked": add(scene, "acked", 1 << 20, **ACKED)}
    produce_sizes(scene.bootstrap, topic, [LARGE, SMALL, LARGE])
    with serve(scene) as served:
        for output in outputs.values():
            with CommittedReader(scene.bootstrap, output) as reader:
                first = await_records(reader, 3)
            alter_topic(scene.bootstrap, output, max_message_bytes=str(LIMIT))
        produce_sizes(scene.bootstrap, topic, [LARGE, SMALL])
        say(scene, first[1:2])
        say(scene, first[2:3], b"-NAK")
        source = read_committed(scene.bootstrap, topic)
        with CommittedReader(scene.bootstrap, graves_of(outputs["plain"])) as letters:
            check_letters(await_records(letters, 1), source[3:4], "plain")
        with CommittedReader(scene.bootstrap, graves_of(outputs["acked"])) as letters:
            found = await_records(letters, 2)
        deliveries = {r.token.sequence: r.header(b"Overlay-Deliveries") for r in found}
        assert deliveries == {3: b"1", 4: b"0"}
        for name, output in outputs.items():
            with CommittedReader(scene.bootstrap, output) as reader:
                check_output(await_records(reader, 4), [*source[:3], source[4]], consumer=name)
            assert served.consumer(name)["state"] == "running"
        await_state(served, "acked", lambda found: found["acks"]["num_ack_pending"] == 2, "waits for two acks")


@pytest.mark.parametrize("kind", ["plain", "acked"])
def test_letters_that_do_not_fit_either(scene: Scene, new_topic: NewTopicFixture, kind: str) -> None:
    """Without the value where that helps; else it is as with `stop`, and the neighbour goes on."""
    topic = new_topic()
    scene.add_stream("S", topic)
    more: dict[str, Any] = ACKED if kind == "acked" else {}
    output, good = add(scene, "c", **more), scene.add_consumer("S", "good")
    graves = make_topic(scene.bootstrap, graves_of(output), 1, {"max.message.bytes": "20000"})
    produce_sizes(scene.bootstrap, topic, [SMALL, LARGE, SMALL])
    with serve(scene) as served:
        with CommittedReader(scene.bootstrap, graves) as letters:
            (letter,) = await_records(letters, 1)
        assert (letter.value, letter.header(b"Nats-Msg-Size")) == (None, b"%d" % LARGE)
        assert letter.header(b"Overlay-Source-Offset") == b"1"
        producer = SureProducer(scene.bootstrap)
        producer.produce(topic, b"x", headers=[("to", "a"), ("more", make_noise(LARGE))])
        producer.flush(30)
        stalled = await_state(served, "c", lambda found: found["state"] == "stalled", "is stalled")
        assert graves in stalled["reason"] and "source offset 3 " in stalled["reason"]
        produce_sizes(scene.bootstrap, topic, [SMALL])
        with CommittedReader(scene.bootstrap, good) as reader:
            await_records(reader, 5)
    assert [record.offset for record in read_committed(scene.bootstrap, output)]
    assert len(read_committed(scene.bootstrap, graves)) == 1


def test_with_stop_a_consumer_with_acks_is_told_before_anything_is_sent(
    scene: Scene, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = add(scene, "c", **ACKED | {"on_undeliverable": "stop"})
    good = scene.add_consumer("S", "good", **ACKED)
    produce_sizes(scene.bootstrap, topic, [SMALL, LARGE, SMALL])
    with serve(scene) as served:
        stalled = await_state(served, "c", lambda found: found["state"] == "stalled", "is stalled")
        assert "source offset 1 " in stalled["reason"] and output in stalled["reason"]
        with CommittedReader(scene.bootstrap, good) as reader:
            await_records(reader, 3)
