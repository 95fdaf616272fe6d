"""Tasks of the service beside the shards, without Kafka."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from overlay.config import Loaded
from overlay.control.registry import Registry
from overlay.waits import until
from overlay.worker import service
from overlay.worker.service import Service
from tests.control.registries import make_config, make_files


async def test_files_that_cannot_be_taken_up_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a control topic. The task is one of a group: if it ended, all shards of the worker would."""

    class Manager:
        tried: list[Loaded]

        async def take_up(self, loaded: Loaded) -> None:
            self.tried.append(loaded)
            if len(self.tried) < 3:
                raise KeyError("zork")

    monkeypatch.setattr(service, "LOOK_S", 0.001)
    monkeypatch.setattr(service, "REST_S", (0.0, 0.0))
    worker, manager, stop = Service(make_files(make_config())), Manager(), asyncio.Event()
    manager.tried = []
    registry = Registry(worker.loaded)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(worker._follow_files(registry, cast(Any, manager), stop))
        worker.reload(make_files(make_config(), make_config("d")))
        await until(lambda: len(manager.tried) == 3, pause_s=0.001)
        stop.set()
    assert manager.tried[-1].consumers.keys() == {("S", "c"), ("S", "d")}
    assert worker.metrics.registry.get_sample_value("overlay_unforeseen_errors_total", {"task": "files"}) == 2
