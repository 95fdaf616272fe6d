"""Requests to a running service, and what it makes of them: consumers without files, and files that change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from overlay.client.control.consumer_info import ConsumerInfo
from overlay.client.control.control import Control
from overlay.client.control.inbox import NoAnswer
from overlay.client.control.refusals import (
    ConsumerAlreadyExists,
    ConsumerNotFound,
    ConsumerRefused,
    DuplicateFilterSubjects,
    InvalidRequest,
    OverlappingFilterSubjects,
    StreamNotFound,
)
from overlay.errors import SourceUnavailable
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers
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
    produce,
    read_committed,
    serve,
)
from tests.worker.scenes import scene as scene

IS_SERVED = ("catching up", "running")
"""States of a consumer whose create is answered. Whether it has met the end of the log by then is up to the machine."""


@pytest.fixture
def stage(scene: Scene, new_topic: NewTopicFixture) -> tuple[Scene, str]:
    """A scene with stream S over a topic of its own."""
    topic = new_topic()
    scene.add_stream("S", topic)
    return scene, topic


@pytest.fixture
def served(stage: tuple[Scene, str]) -> Iterator[Served]:
    with serve(stage[0]) as running:
        yield running


@pytest.fixture
def control(scene: Scene) -> Iterator[Control]:
    found = Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S, name="test")
    yield found
    found.close()


def add(control: Control, name: str = "c", **fields: object) -> ConsumerInfo:
    """A consumer without acks for t.rome."""
    config = {
        "durable_name": name,
        "deliver_subject": f"{control.prefix}-{name}",
        "ack_policy": "none",
        "filter_subjects": ["t.rome"],
    }
    return control.add("S", config | fields)


def read_output(scene: Scene, name: str, count: int) -> list[Seen]:
    with CommittedReader(scene.bootstrap, f"{scene.prefix}-{name}") as reader:
        return await_records(reader, count)


def list_states(served: Served) -> dict[str, str]:
    return {found["name"]: found["state"] for found in served.report()["consumers"]}


def read_events(scene: Scene) -> list[tuple[str, Any]]:
    """Key and value of each event. The answer to a request may come before the marker that commits its events."""
    await_markers(scene.bootstrap, f"{scene.prefix}.events")
    return [
        ((seen.key or b"").decode(), json.loads(seen.value or b""))
        for seen in read_committed(scene.bootstrap, f"{scene.prefix}.events")
    ]


def test_a_consumer_by_request(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome", "oslo"] * 10)
    info = add(control)
    assert (info.stream, info.name, info.config.filters) == ("S", "c", ("t.rome",))
    assert info.state in IS_SERVED
    check_output(read_output(scene, "c", 10), expect(read_committed(scene.bootstrap, topic), ["t.rome"]))

    # what is there is granted again, what differs is not, and the consumer goes on as it was
    assert add(control).created == info.created
    with pytest.raises(ConsumerAlreadyExists, match="consumer already exists"):
        add(control, description="other")
    with pytest.raises(ConsumerRefused, match="deliver policy can not be updated") as refused:
        control.update("S", durable_name="c", deliver_subject="x", ack_policy="none", deliver_policy="new")
    assert (refused.value.err_code, refused.value.code) == (10012, 500)
    assert "remove the consumer and create it again" in refused.value.hint

    def count_delivered() -> int:
        return control.info("S", "c").delivered.consumer_seq

    wait_until(lambda: count_delivered() == 10, DEADLINE_S, "info tells what was delivered")
    # another filter holds from the consumer's position on
    config = {"durable_name": "c", "deliver_subject": f"{scene.prefix}-c", "ack_policy": "none"}
    assert control.update("S", config, filter_subject="t.oslo").config.filters == ("t.oslo",)
    produce(scene.bootstrap, topic, ["rome", "oslo"])
    found = read_output(scene, "c", 11)
    assert [seen.token.consumer_sequence for seen in found] == list(range(1, 12))
    assert found[-1].subject == "t.oslo"


def test_deleting_forgets(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome"] * 3)
    add(control)
    read_output(scene, "c", 3)
    control.delete("S", "c")
    with pytest.raises(ConsumerNotFound):
        control.info("S", "c")
    with pytest.raises(ConsumerNotFound):
        control.delete("S", "c")
    assert control.consumers() == []
    assert served.report()["consumers"] == []
    add(control)
    assert [seen.token.consumer_sequence for seen in read_output(scene, "c", 6)] == [1, 2, 3, 1, 2, 3]

    kinds = [(subject, body["type"].rsplit(".", 1)[1]) for subject, body in read_events(scene)]
    assert [kind for kind in kinds if "ADVISORY.CONSUMER" in kind[0]] == [
        ("$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.c", "consumer_action"),
        ("$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c", "consumer_action"),
        ("$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.c", "consumer_action"),
    ]
    audits = [body for subject, body in read_events(scene) if subject == "$JS.EVENT.ADVISORY.API"]
    assert [audit["subject"] for audit in audits] == [
        "$JS.API.CONSUMER.CREATE.S.c",
        "$JS.API.CONSUMER.DELETE.S.c",
        "$JS.API.CONSUMER.DELETE.S.c",
        "$JS.API.CONSUMER.CREATE.S.c",
    ]
    assert {audit["client"]["name"] for audit in audits} == {"test"}
    assert json.loads(audits[2]["response"])["error"]["err_code"] == 10014


def test_definitions_outlive_the_service(stage: tuple[Scene, str], control: Control) -> None:
    scene, topic = stage
    with serve(scene):
        created = add(control).created
        control.pause("S", "c", timedelta(hours=1))
    produce(scene.bootstrap, topic, ["rome"] * 4)
    with serve(scene) as served:
        await_state(served, "c", lambda found: found["state"] == "paused", "is served again")
        info = control.info("S", "c")
        assert (info.created, info.config.pause_until is None) == (created, False)
        control.resume("S", "c")
        assert control.info("S", "c").config.pause_until is None
        read_output(scene, "c", 4)


def test_files_and_requests(stage: tuple[Scene, str], control: Control) -> None:
    scene, topic = stage
    output = scene.add_consumer("S", "c", "t.rome")
    with serve(scene) as served:
        produce(scene.bootstrap, topic, ["rome", "oslo"])
        assert [info.name for info in control.consumers("S")] == ["c"]
        # what a file has is the file's
        with pytest.raises(ConsumerRefused, match="consumer has a file"):
            control.delete("S", "c")
        with pytest.raises(ConsumerAlreadyExists, match=r"c\.yaml"):
            add(control, description="other")
        with pytest.raises(ConsumerRefused, match="change or remove that file"):
            control.update("S", durable_name="c", deliver_subject=output, ack_policy="none")

        # a file that changes is an update, while the service runs
        scene.add_consumer("S", "c", "t.oslo")
        scene.add_consumer("S", "d", "t.rome")
        served.reload(scene)
        wait_until(lambda: list_states(served) == {"c": "running", "d": "running"}, DEADLINE_S, "both are served")
        assert served.consumer("c")["filters"] == ["t.oslo"]
        # one that is forbidden leaves everything as it was
        scene.add_consumer("S", "c", "t.oslo", deliver_policy="new")
        served.reload(scene)
        produce(scene.bootstrap, topic, ["oslo"])
        assert [seen.subject for seen in read_output(scene, "c", 2)] == ["t.rome", "t.oslo"]
        assert control.info("S", "c").config.deliver_policy == "all"
        (scene.folder / "consumers" / "d.yaml").write_text("stream: [")
        served.reload(scene, problems=1)
        scene.remove_consumer("c")
        served.reload(scene, problems=1)
        wait_until(lambda: list_states(served) == {"d": "running"}, DEADLINE_S, "c is gone")
    # also when the service did not run: the file says `new` now, the consumer was made with `all`
    (scene.folder / "consumers" / "d.yaml").unlink()
    scene.add_consumer("S", "c", "t.rome", deliver_policy="new")
    with serve(scene) as served:
        assert control.info("S", "c").config.deliver_policy == "all"


def test_requests_that_make_no_sense(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, _ = stage
    for fields, refusal, words in (
        ({"ack_policy": "zork"}, InvalidRequest, 'ack_policy: found "zork", allowed are'),
        ({"filter_subjects": ["t.*", "t.rome"]}, OverlappingFilterSubjects, "can not overlap|cannot overlap"),
        ({"filter_subject": "t.rome"}, DuplicateFilterSubjects, "both FilterSubject and FilterSubjects"),
        ({"deliver_subject": f"{scene.prefix}.state"}, ConsumerRefused, "begins like the overlay's own topics"),
        ({"filter": {"sql": "a >"}}, ConsumerRefused, "column 4 of the expression"),
        ({"output": {"partitions": 101}}, ConsumerRefused, r"over the limit of 100.*raise requests\.output_partitions"),
    ):
        with pytest.raises(refusal, match=words):
            add(control, **fields)
    with pytest.raises(StreamNotFound):
        control.add("T", durable_name="c", deliver_subject="x", ack_policy="none")
    with pytest.raises(StreamNotFound):
        control.consumers("T")
    with pytest.raises(InvalidRequest, match="pause_until"):
        add(control)
        control.pause("S", "c", "tomorrow")
    assert [stream["config"]["name"] for stream in control.streams()] == ["S"]

    # what is no request at all is answered, or passed over, and stops no other request
    producer = SureProducer(scene.bootstrap)
    topic = f"{scene.prefix}.control"
    for key, value in (
        (b"request 1", b"{"),
        (b"request 2", b'{"op":"x"}'),
        (b"request 3", b'{"op":"consumer.info","stream":"\\ud800","consumer":"x"}'),
        (b"zork", b"1"),
        (b"request", b""),
    ):
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0
    assert control.info("S", "c").name == "c"

    def read_errors() -> dict[bytes | None, int]:
        found = read_committed(scene.bootstrap, f"{scene.prefix}.replies")
        answers = {seen.key: json.loads(seen.value or b"") for seen in found if seen.key in (b"1", b"2", b"3")}
        return {key: answer["error"]["err_code"] for key, answer in answers.items()}

    wait_until(lambda: read_errors() == dict.fromkeys((b"1", b"2", b"3"), 10025), DEADLINE_S, "nonsense is answered")


def test_without_a_service_there_is_no_answer(stage: tuple[Scene, str], control: Control) -> None:
    scene, _ = stage
    with pytest.raises(SourceUnavailable, match="makes this topic when it starts"):
        control.info("S", "c")
    with serve(scene):
        pass
    control.timeout = 0.5
    with pytest.raises(NoAnswer, match=r"Does a service with topics\.prefix"):
        control.info("S", "c")
    # its sender waits no more, so it is not done either
    with pytest.raises(NoAnswer):
        add(control)
    with serve(scene):
        control.timeout = DEADLINE_S
        assert control.consumers() == []


def test_a_successor_answers(stage: tuple[Scene, str], control: Control) -> None:
    """A request without an answer waits in the topic for the next owner of the shard."""
    scene, _ = stage
    with serve(scene):
        pass
    with ThreadPoolExecutor(1) as pool:
        control.timeout = DEADLINE_S
        asked = pool.submit(add, control)
        topic = f"{scene.prefix}.control"
        wait_until(lambda: read_committed(scene.bootstrap, topic), DEADLINE_S, "the request is there")
        with serve(scene):
            assert asked.result(DEADLINE_S).state in IS_SERVED
