"""Agents of a real `faust worker` on a real broker: what they get, and what becomes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import overlay
from overlay.client import Client, ConsumerInfo
from tests.faust.workers import FaustApp, end_all
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Scene, await_records, produce, serve

START_S = 120.0
COUNT = 60
"""Messages of a test; half of the records that it produces."""

StartApp = Callable[..., FaustApp]


@pytest.fixture
def topic(scene: Scene, new_topic: NewTopicFixture) -> str:
    """The source topic of stream S, whose property `doubled` is a number in a header."""
    topic = new_topic()
    scene.add_stream("S", topic, properties={"doubled": {"type": "long", "from": "{header:to}"}})
    return topic


@pytest.fixture
def start_app(scene: Scene, tmp_path: Path) -> Iterator[StartApp]:
    """`start_app(manner)`: start a worker of tests/faust/application.py that reads consumer c; it is killed in the end."""
    with ExitStack() as stack:

        def start(manner: str, **more: object) -> FaustApp:
            app = FaustApp(scene.prefix, scene.bootstrap, scene.folder, "c", manner, tmp_path, **more)  # type: ignore[arg-type]
            stack.callback(end_all, app)
            app.start()
            return app

        yield start


SHORT = "2s"
"""An ack_wait for tests of redelivery. On a busy machine messages that are acked in time may come again as well."""


def add_consumer(scene: Scene, **more: object) -> str:
    """Consumer c, whose reader group is the application's; returns its output topic."""
    acks = {} if more.get("ack_policy") == "none" else {"ack_policy": "explicit", "ack_wait": "60s"}
    fields = {"deliver_group": scene.prefix, **acks}
    return scene.add_consumer("S", "c", "t.a", **{**fields, **more})


def await_settled(client: Client, app: FaustApp, count: int = COUNT) -> ConsumerInfo:
    """Wait until so many messages are delivered and all of them settled."""

    def look() -> ConsumerInfo | None:
        app.read()  # fails if a worker has ended
        info = client.control.info("S", "c")
        return info if info.ack_floor.stream_seq >= 2 * count - 1 and not info.num_ack_pending else None

    found = wait_until(look, START_S, "all is settled")
    assert found is not None
    return found


def count_sequences(app: FaustApp) -> Counter[int]:
    return Counter(line["sequence"] for line in app.read())


EVERY_OTHER = list(range(1, 2 * COUNT, 2))
FAILED = [11, 61]
"""Sequences of the messages that agents fail at."""


def write_others(scene: Scene, output: str) -> None:
    """Write records to an output topic that are no messages: a stray one, and a delivery that was taken back."""
    producer = SureProducer(scene.bootstrap)
    producer.produce(output, b"stray")
    producer.flush()
    taken_back = SureProducer(scene.bootstrap, {"transactional.id": scene.prefix})
    taken_back.init_transactions(START_S)
    taken_back.begin_transaction()
    token = "$JS.ACK._.1x1.S.c.1.999.999.1700000000000000000.0"
    taken_back.produce(output, b"999", headers=[("Nats-Subject", b"t.a"), ("Nats-Reply-To", token.encode())])
    taken_back.flush()
    taken_back.abort_transaction(START_S)


def test_messages_are_acked_when_the_agent_takes_the_next(scene: Scene, topic: str, start_app: StartApp) -> None:
    output = add_consumer(scene)
    with serve(scene), overlay.open(scene.folder) as client:
        write_others(scene, output)
        app = start_app("each")
        produce(scene.bootstrap, topic, ["a", "b"] * COUNT)
        wait_until(lambda: len(app.read()) >= COUNT, START_S, "all is recorded")
        assert app.workers[0].stop() == 0, app.workers[0].read_log()
        await_settled(client, app)
    assert [line["sequence"] for line in app.read()] == EVERY_OTHER
    assert {line["subject"] for line in app.read()} == {"t.a"}
    with CommittedReader(scene.bootstrap, output) as reader:
        assert len(reader.read()) == COUNT + 1  # with the stray record: nothing was delivered again


@pytest.mark.parametrize("manner", ["fail", "by_hand", "fail_batches"])
def test_an_exception_has_messages_redelivered(scene: Scene, topic: str, start_app: StartApp, manner: str) -> None:
    add_consumer(scene, ack_wait=SHORT)
    with serve(scene), overlay.open(scene.folder) as client:
        app = start_app(manner)
        produce(scene.bootstrap, topic, ["a", "b"] * COUNT)
        await_settled(client, app)
    assert sorted(count_sequences(app)) == EVERY_OTHER
    again = {line["sequence"] for line in app.read() if line["deliveries"] > 1}
    assert again >= {*FAILED}


def test_batches_are_acked_whole(scene: Scene, topic: str, start_app: StartApp) -> None:
    add_consumer(scene)
    with serve(scene), overlay.open(scene.folder) as client:
        app = start_app("batches")
        produce(scene.bootstrap, topic, ["a", "b"] * COUNT)
        await_settled(client, app)
    batches = [line["batch"] for line in app.read()]
    assert [sequence for batch in batches for sequence in batch] == EVERY_OTHER
    assert max(map(len, batches)) == 7


def test_verbs_of_messages(scene: Scene, topic: str, start_app: StartApp) -> None:
    dead = f"{scene.prefix}-dead"
    add_consumer(scene, filter_subjects=["t.*"], dead_letter=dead, ack_wait=SHORT)
    with serve(scene), overlay.open(scene.folder) as client:
        app = start_app("verbs")
        produce(scene.bootstrap, topic, [str(2 * number) for number in range(COUNT)])
        await_settled(client, app, COUNT // 2)
        with CommittedReader(scene.bootstrap, dead) as reader:
            letters = await_records(reader, COUNT // 10)
    deliveries = {int(line["value"]): line["deliveries"] for line in app.read()}
    assert sorted(deliveries) == list(range(COUNT))
    assert all(count > 1 for number, count in deliveries.items() if number % 10 in (1, 5))
    assert {letter.value for letter in letters} == {b"%d" % number for number in range(2, COUNT, 10)}
    assert {letter.header(b"Overlay-Dead-Reason") for letter in letters} == {b"term"}
    assert all(line["properties"] == 2 * line["content"] == 2 * int(line["value"]) for line in app.read())


def test_sinks_get_what_agents_yield(scene: Scene, topic: str, start_app: StartApp, new_topic: NewTopicFixture) -> None:
    add_consumer(scene)
    sink = new_topic()
    with serve(scene), overlay.open(scene.folder) as client:
        app = start_app("forward", more={"SINK": sink}, concurrency=3)
        produce(scene.bootstrap, topic, ["a", "b"] * COUNT)
        await_settled(client, app)
        with CommittedReader(scene.bootstrap, sink) as reader:
            values = [int(record.value or b"") for record in reader.read()]
    assert sorted(values) == list(range(0, 2 * COUNT, 2))


def test_a_consumer_without_acks(scene: Scene, topic: str, start_app: StartApp) -> None:
    add_consumer(scene, ack_policy="none")
    with serve(scene):
        app = start_app("each")
        produce(scene.bootstrap, topic, ["a", "b"] * COUNT)
        wait_until(lambda: len(app.read()) == COUNT, START_S, "all is recorded")
    assert [line["sequence"] for line in app.read()] == EVERY_OTHER
