"""The fleet's application ends by an error, and another one goes on from its tables."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from overlay.fleet import app
from overlay.fleet.live import LivePicture
from overlay.fleet.memory import Memory

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
