"""Files that change in moments when no control topic tells of it: there is none, or it is just being read."""

from __future__ import annotations

import asyncio
import threading

import pytest

from overlay.control.serve import RequestServer
from overlay.worker.service import Service
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, serve


def await_consumers(served: Served, *names: str) -> None:
    def list_running() -> set[str]:
        return {found["name"] for found in served.report()["consumers"] if found["state"] == "running"}

    wait_until(lambda: list_running() == set(names), DEADLINE_S, f"{names} are served")


@pytest.fixture
def stage(scene: Scene, new_topic: NewTopicFixture) -> Scene:
    scene.add_stream("S", new_topic())
    scene.add_consumer("S", "c", "t.rome")
    return scene


def test_without_a_control_topic(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> bool:
        return False

    monkeypatch.setattr(Service, "_ensure_control", refuse)
    with serve(stage) as served:
        stage.add_consumer("S", "d", "t.rome")
        served.reload(stage)
        await_consumers(served, "c", "d")
        # as with a control topic, a file that breaks leaves its consumer as it was
        (stage.folder / "consumers" / "c.yaml").write_text("stream: [")
        stage.remove_consumer("d")
        served.reload(stage, problems=1)
        await_consumers(served, "c")


def test_while_the_control_topic_is_read(stage: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, changed = threading.Event(), threading.Event()
    read = RequestServer.open

    async def linger(request_server: RequestServer) -> None:
        await read(request_server)
        reading.set()
        await asyncio.to_thread(changed.wait, DEADLINE_S)

    monkeypatch.setattr(RequestServer, "open", linger)
    with serve(stage, wait=False) as served:
        assert reading.wait(DEADLINE_S)
        stage.add_consumer("S", "d", "t.rome")
        served.reload(stage)
        changed.set()
        await_consumers(served, "c", "d")
