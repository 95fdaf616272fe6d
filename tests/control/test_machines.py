"""Requests about consumers with acks: what their machines are told, and what they tell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from overlay.client.control.answers import PullRefused
from overlay.client.control.control import Control
from overlay.client.control.refusals import ConsumerNameInUse
from tests.control.test_serve import IS_SERVED, read_events, read_output
from tests.control.test_serve import control as control
from tests.control.test_serve import served as served
from tests.control.test_serve import stage as stage
from tests.support.kafka import make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, Served, await_records, produce
from tests.worker.scenes import scene as scene


def list_kinds(scene: Scene, name: str) -> list[str]:
    """The advisories about a consumer, by the part of their subject that tells them apart."""
    prefix, suffix = "$JS.EVENT.ADVISORY.CONSUMER.", f".S.{name}"
    subjects = [subject for subject, _ in read_events(scene) if subject.endswith(suffix)]
    return [subject.removeprefix(prefix).removesuffix(suffix) for subject in subjects]


def await_kinds(scene: Scene, name: str, *wanted: str) -> None:
    """Wait until these are all advisories about a consumer. A request is answered before its advisory can be read."""
    found: list[str] = []

    def are_there() -> bool:
        found[:] = list_kinds(scene, name)
        return len(found) >= len(wanted)

    wait_until(are_there, DEADLINE_S, f"{len(wanted)} advisories about {name}")
    assert found == list(wanted)


def test_a_machine_takes_changes_over(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    config = {"durable_name": "c", "deliver_subject": f"{scene.prefix}-c", "interest": "always", "max_ack_pending": 3}
    assert control.add("S", config).state in IS_SERVED
    produce(scene.bootstrap, topic, ["rome"] * 10)
    tokens = [str(seen.token) for seen in read_output(scene, "c", 3)]

    def info() -> tuple[int, int | None, str]:
        found = control.info("S", "c")
        return found.num_ack_pending, found.num_pending, found.raw["overlay"]["gate"]

    wait_until(lambda: info() == (3, 7, "max_ack_pending"), DEADLINE_S, "three are given out")
    shard_manager = served.service.shard_manager
    assert shard_manager is not None
    session = shard_manager.shards[0].session
    assert control.update("S", config, max_ack_pending=5).config.max_ack_pending == 5
    read_output(scene, "c", 5)
    control.pause("S", "c", timedelta(hours=1))
    wait_until(lambda: control.info("S", "c").paused, DEADLINE_S, "it is paused")
    for token in tokens:
        control.ack(token)
    assert info()[0] == 2
    control.resume("S", "c")
    read_output(scene, "c", 8)
    # all of this was done by the machine as it ran
    assert shard_manager.shards[0].session is session
    control.delete("S", "c")
    await_kinds(scene, "c", "CREATED", "PAUSE", "PAUSE", "DELETED")


def test_pulls_by_request(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome"] * 5)
    control.add("S", durable_name="w", ack_wait="60s", dead_letter=f"{scene.prefix}-dead")
    first, second, third = control.next("S", "w", 3, expires=DEADLINE_S)
    assert [message.value for message in (first, second, third)] == [b"0", b"1", b"2"]
    control.ack(first.token)
    control.term(second.token, "bad")
    control.nak(third.token)
    (again,) = control.next("S", "w", expires=DEADLINE_S)
    assert (again.value, again.token.split(".")[-5]) == (b"2", "2")
    with CommittedReader(scene.bootstrap, f"{scene.prefix}-dead") as reader:
        (letter,) = await_records(reader, 1)
    assert (letter.value, letter.header(b"Overlay-Source-Offset")) == (b"1", b"1")

    # what is not used goes, what is deleted tells who waits
    control.add("S", name="e", inactive_threshold="1s")
    wait_until(lambda: [found.name for found in control.consumers()] == ["w"], DEADLINE_S, "e is gone")
    control.next("S", "w", 10, no_wait=True)
    other = Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.next, "S", "w", 5, expires=60)
        wait_until(lambda: control.info("S", "w").num_waiting == 1, DEADLINE_S, "a pull waits")
        control.delete("S", "w")
        with pytest.raises(PullRefused, match="409 Consumer Deleted"):
            waiting.result(60)
    other.close()
    await_kinds(scene, "w", "CREATED", "MSG_TERMINATED", "MSG_NAKED", "DELETED")


def read_rows(scene: Scene, name: str, count: int) -> list[tuple[int, int, int]]:
    """Consumer sequence, stream sequence and deliveries of what an output has, in order."""
    tokens = [seen.token for seen in read_output(scene, name, count)]
    return [(token.consumer_sequence, token.sequence, token.deliveries) for token in tokens]


def test_a_changed_filter_holds_from_the_position_on(
    stage: tuple[Scene, str], served: Served, control: Control
) -> None:
    scene, topic = stage
    config = {"durable_name": "c", "deliver_subject": f"{scene.prefix}-c", "interest": "always", "max_ack_pending": 3}
    control.add("S", config, filter_subjects=["t.rome"], ack_wait="60s")
    produce(scene.bootstrap, topic, ["rome", "oslo"] * 10)
    assert read_rows(scene, "c", 3) == [(1, 1, 1), (2, 3, 1), (3, 5, 1)]
    # what the old filter had found and what is on hand is forgotten, and nothing else
    control.update("S", config, filter_subjects=["t.oslo"], ack_wait="60s")
    done, wanted = 0, [1, 3, 5, *range(8, 21, 2)]
    while done < len(wanted):
        found = read_output(scene, "c", done + 1)
        for seen in found[done:]:
            control.ack(str(seen.token))
        done = len(found)
    wait_until(lambda: control.info("S", "c").num_ack_pending == 0, DEADLINE_S, "all is acked")
    assert read_rows(scene, "c", len(wanted)) == [(number, seq, 1) for number, seq in enumerate(wanted, 1)]


def test_with_another_output_goes_again_what_is_pending(
    stage: tuple[Scene, str], served: Served, control: Control
) -> None:
    scene, topic = stage
    config = {"durable_name": "c", "interest": "always", "max_ack_pending": 3, "ack_wait": "60s"}
    control.add("S", config, deliver_subject=f"{scene.prefix}-c")
    produce(scene.bootstrap, topic, ["rome"] * 5)
    first, *_ = read_output(scene, "c", 3)
    control.ack(str(first.token))
    assert read_rows(scene, "c", 4)[3] == (4, 4, 1)
    control.update("S", config, deliver_subject=f"{scene.prefix}-d")
    assert read_rows(scene, "d", 3) == [(5, 2, 2), (6, 3, 2), (7, 4, 2)]
    control.ack(str(read_output(scene, "d", 3)[0].token))
    assert read_rows(scene, "d", 4)[3] == (8, 5, 1)
    assert len(read_output(scene, "c", 4)) == 4
    # while it has a reader, it stays
    reader = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "c"})
    reader.subscribe([f"{scene.prefix}-d"])

    def is_bound() -> bool:
        reader.poll(0.1)
        return control.info("S", "c").push_bound

    wait_until(is_bound, DEADLINE_S, "the group has a member")
    with pytest.raises(ConsumerNameInUse, match="is being read"):
        control.update("S", config, deliver_subject=f"{scene.prefix}-e")
    reader.close()


def test_a_pin_by_request(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome"] * 3)
    control.add("S", durable_name="w", priority_policy="pinned_client", priority_groups=["g"], priority_timeout="60s")
    (first,) = control.next("S", "w", group="g", expires=DEADLINE_S)
    pin = (dict(first.headers)["Nats-Pin-Id"] or b"").decode()
    (second,) = control.next("S", "w", group="g", id=pin, expires=DEADLINE_S)
    assert (first.value, second.value) == (b"0", b"1")
    with pytest.raises(PullRefused, match="423"):
        control.next("S", "w", group="g", id="other")
    await_kinds(scene, "w", "CREATED", "PINNED")


def test_a_temporary_topic_goes_unless_another_delivers_to_it(
    stage: tuple[Scene, str], served: Served, control: Control
) -> None:
    scene, topic = stage
    shared, alone = f"{scene.prefix}-shared", f"{scene.prefix}-alone"
    short = {"ack_policy": "none", "inactive_threshold": "1s", "output": {"temporary": True}}
    foreign = make_topic(scene.bootstrap, f"{scene.prefix}-foreign")
    control.add("S", {"name": "guest", "deliver_subject": foreign, **short})
    control.add("S", durable_name="stays", deliver_subject=shared, ack_policy="none", filter_subjects=["t.rome"])
    control.add("S", {"name": "goes", "deliver_subject": shared, **short}, filter_subjects=["t.oslo"])
    went = {"name": "went", "deliver_subject": alone, **short}
    control.add("S", went, inactive_threshold="1h")

    def list_outputs() -> set[str]:
        admin = AdminClient({"bootstrap.servers": scene.bootstrap})
        return {foreign, shared, alone}.intersection(admin.list_topics(timeout=DEADLINE_S).topics)

    assert list_outputs() == {foreign, shared, alone}
    control.update("S", went)
    wait_until(lambda: [found.name for found in control.consumers()] == ["stays"], DEADLINE_S, "three have ended")
    wait_until(lambda: list_outputs() == {foreign, shared}, DEADLINE_S, "the topic of its own is gone")
    produce(scene.bootstrap, topic, ["rome"])
    assert [seen.token.consumer for seen in read_output(scene, "shared", 1)] == ["stays"]


def test_a_delete_request_leaves_a_temporary_topic(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    """The service made it, but only inactive_threshold takes it along."""
    scene, _ = stage
    output = f"{scene.prefix}-left"
    fields = {"durable_name": "goes", "ack_policy": "none", "inactive_threshold": "1h", "output": {"temporary": True}}
    control.add("S", fields, deliver_subject=output)
    control.delete("S", "goes")
    # once these are answered, the service has done all that the first deletion asks for
    control.add("S", fields, deliver_subject=f"{output}-too")
    control.delete("S", "goes")
    admin = AdminClient({"bootstrap.servers": scene.bootstrap})
    assert output in admin.list_topics(timeout=DEADLINE_S).topics
