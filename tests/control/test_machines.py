"""Requests about consumers with acks: what their machines are told, and what they tell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from overlay.client.control import Control, PullRefused
from overlay.config import ConsumerConfig
from overlay.config.unsupported import find_unsupported
from tests.control.test_serve import control as control
from tests.control.test_serve import read_events, read_output
from tests.control.test_serve import served as served
from tests.control.test_serve import stage as stage
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, produce, read_committed
from tests.worker.scenes import scene as scene

pytestmark = pytest.mark.timeout(240)

PULL = {"stream": "S", "durable_name": "w", "inactive_threshold": "1s"}
needs_pulls = pytest.mark.xfail(
    any(find_unsupported(ConsumerConfig.model_validate(PULL))),
    reason="not offered yet (config/unsupported.py)",
    strict=True,
)


def list_kinds(scene: Scene, name: str) -> list[str]:
    """The advisories about a consumer, by the part of their subject that tells them apart."""
    prefix, suffix = "$JS.EVENT.ADVISORY.CONSUMER.", f".S.{name}"
    subjects = [subject for subject, _ in read_events(scene) if subject.endswith(suffix)]
    return [subject.removeprefix(prefix).removesuffix(suffix) for subject in subjects]


def test_a_machine_takes_changes_over(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    config = {"durable_name": "c", "deliver_subject": f"{scene.prefix}-c", "interest": "always", "max_ack_pending": 3}
    assert control.add("S", config).state == "running"
    produce(scene.bootstrap, topic, ["rome"] * 10)
    tokens = [str(seen.token) for seen in read_output(scene, "c", 3)]

    def info() -> tuple[int, int | None, str]:
        found = control.info("S", "c")
        return found.num_ack_pending, found.num_pending, found.raw["overlay"]["gate"]

    wait_until(lambda: info() == (3, 7, "max_ack_pending"), DEADLINE_S, "three are given out")
    holding = served.service.holding
    assert holding is not None
    session = holding.shards[0].session
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
    assert holding.shards[0].session is session
    control.delete("S", "c")
    assert list_kinds(scene, "c") == ["CREATED", "PAUSE", "PAUSE", "DELETED"]


@needs_pulls
def test_pulls_by_request(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome"] * 5)
    control.add("S", durable_name="w", ack_wait="60s", dead_letter=f"{scene.prefix}-dead")
    first, second, third = control.next("S", "w", 3)
    assert [message.value for message in (first, second, third)] == [b"0", b"1", b"2"]
    control.ack(first.token)
    control.term(second.token, "bad")
    control.nak(third.token)
    (again,) = control.next("S", "w")
    assert (again.value, again.token.split(".")[4]) == (b"2", "2")
    (letter,) = read_committed(scene.bootstrap, f"{scene.prefix}-dead")
    assert (letter.value, letter.header(b"Overlay-Source-Offset")) == (b"1", b"1")

    # what is not used goes, what is deleted tells who waits
    control.add("S", name="e", inactive_threshold="1s")
    wait_until(lambda: [found.name for found in control.consumers()] == ["w"], DEADLINE_S, "e is gone")
    control.next("S", "w", 10, no_wait=True)
    other = Control({"bootstrap.servers": scene.bootstrap}, scene.prefix)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.next, "S", "w", 5, expires=60)
        wait_until(lambda: control.info("S", "w").num_waiting == 1, DEADLINE_S, "a pull waits")
        control.delete("S", "w")
        with pytest.raises(PullRefused, match="409 Consumer Deleted"):
            waiting.result(60)
    other.close()
    assert list_kinds(scene, "w") == ["CREATED", "MSG_TERMINATED", "MSG_NAKED", "DELETED"]
