"""The fleet's application ends by an error, and another one goes on from its tables."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from overlay.clock import now_ms
from overlay.config.consumer import ConsumerConfig
from overlay.control.records import Definition, write_definition
from overlay.fleet import app
from overlay.fleet.live import LivePicture
from overlay.fleet.memory import Memory
from overlay.kafka.own_topics import control_topic

from .scenes import Scene, following, list_workers

pytestmark = pytest.mark.kafka


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["timer", "agent"])
async def test_an_error_in_any_part_ends_no_picture(bootstrap: str, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(app, "PAUSES_S", (0.1, 1.0))
    scene = Scene(bootstrap, LivePicture())
    await scene.make_topics()
    owner, name = {"timer": (LivePicture, "judge"), "agent": (Memory, "take")}[part]
    rightly, errors = getattr(owner, name), [TypeError("none of ours")]

    def fail_once(*args: Any, **named: Any) -> Any:
        if errors and list_workers(scene.find()):
            raise errors.pop()
        return rightly(*args, **named)

    with capture_logs() as logs:
        async with following(scene):
            scene.tell("a")
            await scene.until(lambda: list_workers(scene.find()) == ["a"], "a status is read")
            monkeypatch.setattr(owner, name, fail_once)
            scene.tell("b")
            await scene.until(lambda: not errors, "the application fails")
            scene.tell("c")
            await scene.until(lambda: "c" in list_workers(scene.find()), "another application reads on")
            assert {"a", "c"} <= {*list_workers(scene.find())}
    # Faust itself starts an agent that failed again
    is_told = "the fleet's application ended and begins again" in [line["event"] for line in logs]
    assert is_told is (part == "timer")


class Hanging:
    """A part of an application that does not stop before `released` is set, and does not let itself be cancelled."""

    crash_reason = None

    def __init__(self, released: asyncio.Event, *children: Hanging) -> None:
        self._children, self._futures, self.asked = [*children, None], set[Any](), 0
        self._released = released

    async def stop(self) -> None:
        self.asked += 1
        if self.asked > 1:
            return
        while not self._released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._released.wait()


async def test_an_application_that_does_not_stop_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Kafka is away a client may try to commit for ever."""
    monkeypatch.setattr(app, "STOP_S", 0.05)
    released = asyncio.Event()
    inner = Hanging(released)
    outer = Hanging(released, Hanging(released), inner)
    timer = asyncio.get_running_loop().create_future()
    outer._futures.add(timer)
    async with asyncio.timeout(20):
        await app._end(cast("Any", Hanging(released, outer)))
    released.set()
    assert (outer.asked, inner.asked) == (1, 1)
    assert timer.cancelled()


async def test_what_the_control_topic_has_defined_is_known(bootstrap: str) -> None:
    scene = Scene(bootstrap, LivePicture())
    await scene.make_topics()
    for name in ("c", "d"):
        record = write_definition(Definition(ConsumerConfig(stream="S", durable_name=name), 0, makes_output=False))
        scene.write(control_topic(scene.prefix), record.key, record.value)
    scene.write(control_topic(scene.prefix), record.key, None)
    confirmed = await app.find_confirmed(scene.service)
    assert confirmed.consumers == {("S", "c")}
    assert confirmed.before < now_ms()
